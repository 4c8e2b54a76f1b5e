//! Members can send the requests that the table allows them, and services see no others.

use super::support::*;
use identity::Credentials;
use net::{
    Channel, ClientIdentity, Handler, LocalFuture, Peer, PeerOptions, Router, Server, ServerLimits,
    ServerOptions,
};
use rt::IoBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use types::{
    ChunkFileId, ClusterMap, Epoch, Errno, MapHandle, Node, NodeId, NodeState, Refusal, Result, Role,
    SessionId, TargetId,
};
use wire::{
    DataPath, KvAnswer, KvReply, KvRequest, Message, MgmtReply, MgmtRequest, Request, StorageOp,
    StorageReply, StorageRequest,
};

/// Answers every request, and counts it.
#[derive(Default)]
struct Open {
    reached: AtomicUsize,
}

impl Open {
    fn answer<T: 'static>(&self, reply: T) -> LocalFuture<'_, Result<T>> {
        self.reached.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { Ok(reply) })
    }
}

impl Handler<KvRequest, KvReply> for Open {
    fn handle(&self, _: KvRequest, _: Option<IoBuf>) -> LocalFuture<'_, Result<KvReply>> {
        self.answer(KvReply { instance: 1, verifier: 1, has_space: true, answer: KvAnswer::Done })
    }
}

impl Handler<MgmtRequest, MgmtReply> for Open {
    fn handle(&self, _: MgmtRequest, _: Option<IoBuf>) -> LocalFuture<'_, Result<MgmtReply>> {
        self.answer(MgmtReply::Done)
    }
}

impl Handler<StorageRequest, StorageReply> for Open {
    fn handle(&self, _: StorageRequest, _: Option<IoBuf>) -> LocalFuture<'_, Result<StorageReply>> {
        self.answer(StorageReply::Unit)
    }
}

struct Site {
    authority: identity::Authority,
    map: MapHandle,
    services: Arc<Open>,
    server: Arc<Server>,
}

impl Site {
    /// Node 1 has management and metadata, node 2 only storage, node 3 only metadata.
    fn start() -> Site {
        let node = |(id, roles): (u32, &[Role])| Node {
            id: NodeId(id),
            name: format!("n{id}"),
            addresses: vec![],
            roles: roles.to_vec(),
            state: NodeState::Online,
            version: String::new(),
            rack: None,
        };
        let roles: [(u32, &[Role]); 3] =
            [(1, &[Role::Mgmt, Role::Meta]), (2, &[Role::Storage]), (3, &[Role::Meta])];
        let nodes = roles.into_iter().map(node).collect();
        let map = MapHandle::default();
        map.store(Arc::new(ClusterMap { epoch: Epoch(5), nodes, ..ClusterMap::default() }));
        let (authority, services) = (authority(), Arc::<Open>::default());
        let options = ServerOptions {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            cores: 1,
            name: "node 1".into(),
            cluster: CLUSTER.into(),
            security: member(&super::support::node(&authority, 1)),
            map: map.clone(),
            checksum_payloads: true,
            limits: ServerLimits::default(),
        };
        let router = Router::new()
            .with::<KvRequest, KvReply>(services.clone())
            .with::<MgmtRequest, MgmtReply>(services.clone())
            .with::<StorageRequest, StorageReply>(services.clone());
        Site { authority, map, services, server: Server::start(options, router).unwrap() }
    }

    fn peer(&self, credentials: &Credentials) -> Arc<Peer> {
        let identity = ClientIdentity { cluster: CLUSTER.into(), name: "n".into(), client: rt::random_u64() };
        let options = PeerOptions::new("node 1", self.server.addresses().to_vec(), identity);
        Peer::new(PeerOptions { security: member(credentials), timeout: TEST_TIME_OUT, ..options })
    }

    fn node(&self, id: u32) -> Arc<Peer> {
        self.peer(&super::support::node(&self.authority, id))
    }

    fn give_metadata_to_node_2(&self) {
        let mut next = ClusterMap::clone(&self.map.load());
        next.epoch = Epoch(6);
        next.nodes[1].roles.push(Role::Meta);
        self.map.store(Arc::new(next));
    }

    fn reached(&self) -> usize {
        self.services.reached.load(Ordering::SeqCst)
    }
}

async fn ask<Req: Request + 'static, Rep: Message + 'static>(peer: &Arc<Peer>, request: Req) -> Result<()> {
    Channel::<Req, Rep>::remote(peer.clone()).call(request, None).await.map(drop)
}

async fn store(peer: &Arc<Peer>) -> Result<()> {
    ask::<_, KvReply>(peer, KvRequest::Persist).await
}

async fn set_checksums(peer: &Arc<Peer>) -> Result<()> {
    ask::<_, MgmtReply>(peer, MgmtRequest::SetChecksums { on: false }).await
}

async fn delete(peer: &Arc<Peer>, session: u64) -> Result<()> {
    let request = StorageRequest::new(SessionId(session), TargetId(4), ChunkFileId(9), StorageOp::Delete);
    ask::<_, StorageReply>(peer, request).await
}

#[test]
fn a_node_that_serves_storage_only_is_refused_metadata_changes_and_chunks_of_others() {
    let site = Site::start();
    let (storage, metadata) = (site.node(2), site.node(3));
    let client = site.peer(&client(&site.authority, "login1"));
    let run = async move {
        let refusals = [
            (store(&storage).await, "may not send persist (key-value service)"),
            (set_checksums(&storage).await, "may not send set-checksums (management service)"),
            (delete(&storage, 0).await, "may not send delete (storage service)"),
            // Not as a client either: a node has no session.
            (delete(&storage, 7).await, "may not send delete (storage service)"),
            (set_checksums(&metadata).await, "may not send set-checksums (management service)"),
            (store(&client).await, "may not send persist (key-value service)"),
            (delete(&client, 0).await, "may not send delete (storage service)"),
        ];
        for (outcome, cause) in refusals {
            let error = outcome.unwrap_err();
            assert!(error.errno == Errno::EACCES && error.message.contains(cause), "{error}");
            assert!(!error.hint.is_empty(), "{error}");
        }
        let error = store(&storage).await.unwrap_err();
        assert!(error.message.contains("cluster map 5 gives node 2 storage"), "{error}");
        assert_eq!(site.reached(), 0, "a service has seen what was refused");

        store(&metadata).await.unwrap();
        delete(&metadata, 0).await.unwrap();
        delete(&client, 7).await.unwrap();
        ask::<_, MgmtReply>(&storage, MgmtRequest::ListNodes).await.unwrap();
        set_checksums(&site.node(1)).await.unwrap();
        assert_eq!(site.reached(), 5);
    };
    rt::block_on(run).unwrap();
}

#[test]
fn a_role_from_the_map_applies_to_existing_connections() {
    let site = Site::start();
    let node = site.node(2);
    let run = async move {
        store(&node).await.unwrap_err();
        site.give_metadata_to_node_2();
        store(&node).await.unwrap();
    };
    rt::block_on(run).unwrap();
}

#[test]
fn a_caller_with_a_later_map_is_authorized_by_that_map() {
    let site = Site::start();
    let node = site.node(2);
    node.set_epoch(Epoch(6));
    let run = async move {
        let mut asked = std::pin::pin!(store(&node));
        // Longer than a refusal takes.
        assert!(rt::timeout(std::time::Duration::from_millis(300), asked.as_mut()).await.is_none());
        site.give_metadata_to_node_2();
        asked.await.unwrap();
        // The server gives up waiting for a map that doesn't exist.
        node.set_epoch(Epoch(u64::MAX));
        assert_eq!(set_checksums(&node).await.unwrap_err().errno, Errno::EACCES);
    };
    rt::block_on(run).unwrap();
}

#[test]
fn a_member_with_another_group_version_gets_eremchg() {
    let site = Site::start();
    let node = site.node(2);
    let run = async move {
        let part = wire::GroupRole::Member { sequence: 1, committed: 0 };
        let group = wire::GroupContext { group: types::GroupId(7), version: Epoch(3), role: part };
        let op = StorageOp::Write { offset: 0, path: DataPath::Cached, durable: false };
        let request = StorageRequest::new(SessionId(7), TargetId(4), ChunkFileId(9), op);
        let request = StorageRequest { group: Some(group), ..request };
        let error = ask::<_, StorageReply>(&node, request).await.unwrap_err();
        assert_eq!(error.errno, Refusal::GroupVersionMismatch, "{error}");
        assert_eq!(site.reached(), 0);
    };
    rt::block_on(run).unwrap();
}
