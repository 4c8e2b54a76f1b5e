//! The channels to all metadata services.

use crate::node_channels::{Connect, NodeChannels};
use net::Channel;
use std::sync::Arc;
use types::{ClusterMap, Error, MapHandle, NodeId, PartitionId, Refusal, Result, Role};
use wire::{MetaRequest, MetaResponse};

/// A channel to one metadata service.
pub type MetaChannel = Channel<MetaRequest, MetaResponse>;

/// Finds the metadata service that owns a partition, and the channel to it.
pub struct MetaChannels(ChannelSet);

enum ChannelSet {
    /// A single service owns all partitions.
    Single(MetaChannel),
    Mapped(Mapped),
}

/// Channels that follow the cluster map: partition to node to channel.
struct Mapped {
    map: MapHandle,
    nodes: NodeChannels<MetaRequest, MetaResponse>,
}

impl MetaChannels {
    /// Id of the single service that isn't found by the map. No node has this number.
    pub const SINGLE_SERVICE: NodeId = NodeId(0);

    /// Channels that follow the map.
    pub fn mapped(map: MapHandle, connect: Connect<MetaRequest, MetaResponse>) -> MetaChannels {
        MetaChannels(ChannelSet::Mapped(Mapped { map, nodes: NodeChannels::new(connect) }))
    }

    /// Whether services join, leave and hand over partitions.
    pub fn follows_map(&self) -> bool {
        matches!(self.0, ChannelSet::Mapped(_))
    }

    /// The service that owns a partition now; `None` when no node does.
    pub fn owner(&self, partition: PartitionId) -> Option<NodeId> {
        match &self.0 {
            ChannelSet::Single(_) => Some(MetaChannels::SINGLE_SERVICE),
            ChannelSet::Mapped(mapped) => mapped.current().owner(partition).map(|node| node.id),
        }
    }

    /// Each service that owns partitions, with one of its partitions.
    pub fn owners(&self) -> Vec<(PartitionId, NodeId)> {
        let ChannelSet::Mapped(mapped) = &self.0 else {
            return vec![(PartitionId(0), MetaChannels::SINGLE_SERVICE)];
        };
        let map = mapped.current();
        let mut owners: Vec<(PartitionId, NodeId)> = Vec::new();
        for number in 0..map.partitions.len().max(1) as u16 {
            let owner = map.owner(PartitionId(number)).map(|node| node.id);
            if let Some(node) = owner.filter(|node| owners.iter().all(|(_, known)| known != node)) {
                owners.push((PartitionId(number), node));
            }
        }
        owners
    }

    /// All current services: those that own partitions, and those that may get some at any time.
    pub fn services(&self) -> Vec<NodeId> {
        let mut services: Vec<NodeId> = self.owners().into_iter().map(|(_, node)| node).collect();
        if let ChannelSet::Mapped(mapped) = &self.0 {
            let map = mapped.current();
            let spare = |node: &&types::Node| node.roles.contains(&Role::Meta) && !map.partitions.is_empty();
            services.extend(map.nodes.iter().filter(spare).map(|node| node.id));
        }
        services.sort_unstable();
        services.dedup();
        services
    }

    /// Sends a request to a service.
    ///
    /// # Errors
    /// `PartitionNotServed` for a node that isn't in the map (any more): nothing was sent.
    /// Otherwise errors of the service and the transport.
    pub async fn call(&self, service: NodeId, request: MetaRequest) -> Result<MetaResponse> {
        let channel = match &self.0 {
            ChannelSet::Single(channel) => channel.clone(),
            ChannelSet::Mapped(mapped) => mapped.channel(service)?,
        };
        channel.call(request, None).await
    }
}

impl From<MetaChannel> for MetaChannels {
    fn from(channel: MetaChannel) -> MetaChannels {
        MetaChannels(ChannelSet::Single(channel))
    }
}

impl Mapped {
    fn current(&self) -> Arc<ClusterMap> {
        self.map.load()
    }

    fn channel(&self, service: NodeId) -> Result<MetaChannel> {
        let map = self.current();
        let node = map.node(service).ok_or_else(|| {
            Error::new(
                Refusal::PartitionNotServed,
                format!("node {service} isn't a member of the cluster any more"),
            )
            .hint("weft node list shows the members and their roles")
        })?;
        Ok(self.nodes.channel(&map, node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use net::{Handler, LocalFuture};
    use rt::IoBuf;
    use types::{Credentials, Epoch, InodeId, Node, NodeState, SessionId};
    use wire::{MetaOp, MetaReply};

    /// Answers with its name.
    struct Named(String);

    impl Handler<MetaRequest, MetaResponse> for Named {
        fn handle(&self, _: MetaRequest, _: Option<IoBuf>) -> LocalFuture<'_, Result<MetaResponse>> {
            Box::pin(async { Ok(MetaReply::Bytes(self.0.clone().into()).into()) })
        }
    }

    fn node(id: u32, roles: &[Role]) -> Node {
        Node {
            id: NodeId(id),
            name: format!("n{id}"),
            addresses: vec![format!("a:{id}")],
            roles: roles.to_vec(),
            state: NodeState::Online,
            version: String::new(),
            rack: None,
        }
    }

    #[test]
    fn the_channel_follows_the_partition() {
        let nodes =
            vec![node(1, &[Role::Mgmt, Role::Meta]), node(2, &[Role::Storage]), node(3, &[Role::Meta])];
        let first = ClusterMap { epoch: Epoch(1), nodes, ..ClusterMap::default() };
        let map = MapHandle::new(first);
        let connect: Connect<MetaRequest, MetaResponse> =
            Box::new(|node| Channel::in_process(Arc::new(Named(node.addresses[0].clone()))));
        let channels = MetaChannels::mapped(map.clone(), connect);
        let change = move |edit: &dyn Fn(&mut ClusterMap)| {
            let mut next = ClusterMap::clone(&map.load());
            edit(&mut next);
            map.store(Arc::new(next));
        };
        let run = async move {
            let ask = async |service| {
                let (session, credentials) = (SessionId(1), Credentials::default());
                let op = MetaOp::Getattr { ino: InodeId::ROOT };
                let request =
                    MetaRequest { session, slot_sequence: None, credentials, privileged: false, op };
                match channels.call(service, request).await {
                    Ok(MetaResponse { reply: MetaReply::Bytes(name), .. }) => Ok(name),
                    Ok(other) => panic!("{other:?}"),
                    Err(error) => Err(error.errno),
                }
            };
            // One service owns everything, and the second one isn't a metadata service yet.
            assert_eq!(channels.owner(PartitionId(5)), Some(NodeId(1)));
            assert_eq!(channels.owners(), [(PartitionId(0), NodeId(1))]);
            assert_eq!(channels.services(), [NodeId(1)]);
            change(&|map| map.partitions = [3, 3, 1].map(NodeId).to_vec());
            assert_eq!(channels.owner(PartitionId(1)), Some(NodeId(3)));
            assert_eq!(channels.owners(), [(PartitionId(0), NodeId(3)), (PartitionId(2), NodeId(1))]);
            assert_eq!(ask(NodeId(3)).await.unwrap(), "a:3");
            // A service without partitions may get some at any time.
            change(&|map| map.partitions = [1, 1, 1].map(NodeId).to_vec());
            assert_eq!(channels.services(), [NodeId(1), NodeId(3)]);
            change(&|map| map.nodes[2].addresses = vec!["b:3".into()]);
            assert_eq!(ask(NodeId(3)).await.unwrap(), "b:3");
            change(&|map| drop(map.nodes.pop()));
            assert_eq!(ask(NodeId(3)).await, Err(Refusal::PartitionNotServed.into()));
            assert_eq!(channels.services(), [NodeId(1)]);
        };
        rt::block_on(run).unwrap();
    }
}
