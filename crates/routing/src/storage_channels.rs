//! The channels to all targets.

use crate::OwnRack;
use crate::node_channels::{Connect, NodeChannels};
use crate::target_load::Loads;
use net::{Channel, Distance, LocalFuture};
use rt::IoBuf;
use std::collections::BTreeMap;
use std::sync::Arc;
use types::{
    ClusterMap, Errno, Error, HashMap, MapHandle, Node, NodeState, Result, Target, TargetId, TargetState,
};
use wire::{StorageReply, StorageRequest};

/// A channel to the storage service of one node.
pub type StorageChannel = Channel<StorageRequest, StorageReply>;

/// Finds the channel to the service of a target.
pub struct StorageChannels {
    channels: ChannelSet,
    loads: Loads,
    own_rack: Arc<OwnRack>,
}

/// What happens to a request to a target whose node is known to be down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhenOffline {
    /// It is sent anyway, and waits as long as the transport does: the node may come back in time.
    Try,
    /// It is refused at once: for work that can be done later.
    Refuse,
}

enum ChannelSet {
    /// Ordered, so that a simulation drops them in the same order each time.
    Fixed(BTreeMap<TargetId, StorageChannel>),
    Mapped(Mapped),
}

/// Channels that follow the cluster map: target to node to channel. Nodes and targets that are
/// added later are found as soon as the map has them. A node with another address gets a new
/// channel.
struct Mapped {
    map: MapHandle,
    when_offline: WhenOffline,
    nodes: NodeChannels<StorageRequest, StorageReply>,
}

impl StorageChannels {
    /// Channels that follow the map.
    pub fn mapped(
        map: MapHandle,
        when_offline: WhenOffline,
        connect: Connect<StorageRequest, StorageReply>,
    ) -> StorageChannels {
        StorageChannels {
            channels: ChannelSet::Mapped(Mapped { map, when_offline, nodes: NodeChannels::new(connect) }),
            loads: Loads::default(),
            own_rack: Arc::default(),
        }
    }

    /// The same for a process in a rack: of members that aren't on its machine it prefers to read
    /// from those in its rack.
    #[must_use]
    pub fn with_rack(self, own_rack: Arc<OwnRack>) -> StorageChannels {
        StorageChannels { own_rack, ..self }
    }

    /// Sends a request to the target that it names.
    ///
    /// # Errors
    /// `ENXIO` for a target that no service serves, `EHOSTDOWN` for one whose node is known to be
    /// down with
    /// [`WhenOffline::Refuse`]: nothing was sent. Otherwise errors of the service and the transport.
    pub async fn call(&self, request: StorageRequest, payload: Option<IoBuf>) -> Result<StorageReply> {
        match &self.channels {
            ChannelSet::Fixed(channels) => {
                let channel = channels.get(&request.target).ok_or_else(|| not_served(request.target))?;
                channel.call(request, payload).await
            }
            ChannelSet::Mapped(mapped) => mapped.channel(request.target)?.call(request, payload).await,
        }
    }

    /// The channel to a target.
    pub(crate) fn channel_to(&self, target: TargetId) -> Result<StorageChannel> {
        match &self.channels {
            ChannelSet::Fixed(channels) => channels.get(&target).cloned().ok_or_else(|| not_served(target)),
            ChannelSet::Mapped(mapped) => mapped.channel(target),
        }
    }

    /// Network distance of a target.
    pub(crate) fn distance(&self, target: TargetId) -> Distance {
        self.channel_to(target).map_or(Distance::Remote, |channel| channel.distance())
    }

    pub(crate) fn own_rack(&self) -> &OwnRack {
        &self.own_rack
    }

    pub(crate) fn loads(&self) -> &Loads {
        &self.loads
    }

    /// As [`StorageChannels::call`], unless `given_up` completes first: see
    /// [`Channel::call_or_abandon`].
    pub async fn call_or_abandon(
        &self,
        given_up: LocalFuture<'_, ()>,
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> Option<Result<StorageReply>> {
        match self.channel_to(request.target) {
            Ok(channel) => channel.call_or_abandon(given_up, request, payload).await,
            Err(error) => Some(Err(error)),
        }
    }

    /// What happens to requests to targets that are known to be down. Channels that don't follow a
    /// map know of none.
    pub(crate) fn when_offline(&self) -> WhenOffline {
        match &self.channels {
            ChannelSet::Fixed(_) => WhenOffline::Try,
            ChannelSet::Mapped(mapped) => mapped.when_offline,
        }
    }

    /// All current targets.
    pub fn targets(&self) -> Vec<TargetId> {
        match &self.channels {
            ChannelSet::Fixed(channels) => channels.keys().copied().collect(),
            ChannelSet::Mapped(mapped) => mapped.current().targets.iter().map(|t| t.id).collect(),
        }
    }
}

impl From<HashMap<TargetId, StorageChannel>> for StorageChannels {
    fn from(channels: HashMap<TargetId, StorageChannel>) -> StorageChannels {
        channels.into_iter().collect()
    }
}

impl FromIterator<(TargetId, StorageChannel)> for StorageChannels {
    fn from_iter<T: IntoIterator<Item = (TargetId, StorageChannel)>>(channels: T) -> StorageChannels {
        StorageChannels {
            channels: ChannelSet::Fixed(BTreeMap::from_iter(channels)),
            loads: Loads::default(),
            own_rack: Arc::default(),
        }
    }
}

impl Mapped {
    fn current(&self) -> Arc<ClusterMap> {
        self.map.load()
    }

    fn channel(&self, target: TargetId) -> Result<StorageChannel> {
        let map = self.current();
        let found = map.target(target).and_then(|t| Some((t, map.node(t.node)?)));
        let (target, node) = found.ok_or_else(|| not_served(target))?;
        if target.state == TargetState::Offline && self.when_offline == WhenOffline::Refuse {
            return Err(offline(target, node));
        }
        Ok(self.nodes.channel(&map, node))
    }
}

/// Returns the error for an offline target. Its node may be online: then its disk is the cause.
fn offline(target: &Target, node: &Node) -> Error {
    let place = format!("target {} on node {} ({}) is offline", target.id, node.id, node.name);
    match node.state {
        NodeState::Online => {
            let message = format!("{place}: the node is online, and doesn't serve {}", target.path);
            Error::new(Errno::EHOSTDOWN, message)
                .hint("weft status on that node shows why; is the target's disk mounted?")
        }
        _ => Error::new(Errno::EHOSTDOWN, format!("{place}: the node is down"))
            .hint("weft node list shows which nodes are up; start weft serve there"),
    }
}

fn not_served(target: TargetId) -> Error {
    Error::new(Errno::ENXIO, format!("target {target} is not served by any node"))
        .hint("weft target list shows all targets and which are online")
}

#[cfg(test)]
mod tests {
    use super::*;
    use net::Handler;
    use std::sync::RwLock;
    use types::{CapacityClass, Epoch, InodeId, NodeId, PoolId, SessionId};
    use wire::StorageOp;

    /// Answers with its number.
    struct Numbered(u64);

    impl Handler<StorageRequest, StorageReply> for Numbered {
        fn handle(&self, _: StorageRequest, _: Option<IoBuf>) -> LocalFuture<'_, Result<StorageReply>> {
            Box::pin(async { Ok(StorageReply::Offset(Some(self.0))) })
        }
    }

    fn node(id: u32, address: &str) -> Node {
        Node {
            id: NodeId(id),
            name: format!("n{id}"),
            addresses: vec![address.into()],
            roles: vec![],
            state: NodeState::Online,
            version: String::new(),
            rack: None,
        }
    }

    fn target(id: u32, node: u32) -> Target {
        Target {
            id: TargetId(id),
            node: NodeId(node),
            pool: PoolId(1),
            path: String::new(),
            state: TargetState::Online,
            capacity: 0,
            free: 0,
            class: CapacityClass::Normal,
            drain: false,
            used: None,
        }
    }

    #[test]
    fn an_offline_target_of_an_online_node_is_not_blamed_on_the_node() {
        let (target, mut node) = (target(3, 1), node(1, "a:1"));
        let error = offline(&target, &node);
        assert!(error.message.contains("the node is online"), "{error}");
        node.state = NodeState::Offline;
        assert!(offline(&target, &node).message.contains("the node is down"));
    }

    #[test]
    fn the_channel_follows_the_map() {
        let first = ClusterMap {
            epoch: Epoch(1),
            nodes: vec![node(1, "a:1")],
            targets: vec![target(1, 1)],
            ..Default::default()
        };
        let map = MapHandle::new(first);
        let made = Arc::new(RwLock::new(0));
        let count = made.clone();
        let connect: Connect<StorageRequest, StorageReply> = Box::new(move |node| {
            *count.write().unwrap() += 1;
            let port = node.addresses[0].rsplit(':').next().and_then(|port| port.parse().ok());
            Channel::in_process(Arc::new(Numbered(port.unwrap_or(0))))
        });
        let channels = StorageChannels::mapped(map.clone(), WhenOffline::Refuse, connect);
        let change = move |edit: &dyn Fn(&mut ClusterMap)| {
            let mut next = ClusterMap::clone(&map.load());
            edit(&mut next);
            map.store(Arc::new(next));
        };
        let run = async move {
            let ask = async |id| {
                let op = StorageOp::Stat;
                let request =
                    StorageRequest::new(SessionId(1), TargetId(id), InodeId::ROOT.first_chunk_file(), op);
                match channels.call(request, None).await {
                    Ok(StorageReply::Offset(Some(port))) => Ok(port),
                    Ok(other) => panic!("{other:?}"),
                    Err(error) => Err(error.errno),
                }
            };
            assert_eq!(ask(1).await, Ok(1));
            assert_eq!(ask(1).await, Ok(1));
            assert_eq!(*made.read().unwrap(), 1, "a channel is made once");
            assert_eq!(ask(2).await, Err(Errno::ENXIO));
            // A node and a target that are added later.
            change(&|map| {
                map.nodes.push(node(2, "b:2"));
                map.targets.push(target(2, 2));
            });
            assert_eq!(ask(2).await, Ok(2));
            // A node with another address.
            change(&|map| map.nodes[0].addresses = vec!["c:3".into()]);
            assert_eq!(ask(1).await, Ok(3));
            assert_eq!(*made.read().unwrap(), 3);
            change(&|map| map.targets[1].state = TargetState::Offline);
            assert_eq!(ask(2).await, Err(Errno::EHOSTDOWN));
        };
        rt::block_on(run).unwrap();
    }
}
