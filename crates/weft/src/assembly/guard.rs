//! What stands between connections and a service: who may ask what, and from when on.

use net::{Caller, Deadline, Handler, LocalFuture};
use rt::IoBuf;
use rt::sync::Event;
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, Error, Result, SessionId};
use wire::{KvRequest, MetaOp, MetaRequest, Part, StorageOp, StorageRequest};

/// How long a request waits until its service has started: less than a client's usual patience, so that the client learns the reason.
const PATIENCE: Duration = Duration::from_secs(45);

/// A service behind its guard.
pub struct Guarded<S> {
    service: Arc<S>,
    /// Set when the service may be asked.
    open: Arc<Event>,
}

impl<S> Guarded<S> {
    /// A service that may be asked when `open` is set.
    pub fn new(service: Arc<S>, open: Arc<Event>) -> Arc<Guarded<S>> {
        Arc::new(Guarded { service, open })
    }
}

/// A request that says what only other services may ask.
pub trait Guard {
    /// Whether it acts for the cluster and not for a client.
    fn is_internal(&self) -> bool;
}

impl Guard for StorageRequest {
    fn is_internal(&self) -> bool {
        let between_members = self.group.is_some_and(|group| group.part != Part::Primary);
        let is_nodes = matches!(
            self.op,
            StorageOp::Fence { .. }
                | StorageOp::Settled
                | StorageOp::Regions { .. }
                | StorageOp::Survey { .. }
                | StorageOp::Heal { .. }
                | StorageOp::Mend { .. }
                | StorageOp::Forget { .. }
                | StorageOp::SetAside
                | StorageOp::MarkLost { .. }
                | StorageOp::SetTime { .. }
                | StorageOp::Digests { .. }
                | StorageOp::Adopt { .. }
                | StorageOp::Measure { .. }
                | StorageOp::Traffic
                | StorageOp::Rewrite { .. }
                | StorageOp::Expect { .. }
        );
        self.session == SessionId(0) || between_members || is_nodes
    }
}

impl Guard for MetaRequest {
    fn is_internal(&self) -> bool {
        self.session == SessionId(0) && !matches!(self.op, MetaOp::Sync)
    }
}

/// What is in the store, and who owns it, is between services.
impl Guard for KvRequest {
    fn is_internal(&self) -> bool {
        true
    }
}

impl<S, Req: Guard + 'static, Rep: 'static> Handler<Req, Rep> for Guarded<S>
where
    S: Handler<Req, Rep> + 'static,
{
    fn handle(&self, request: Req, payload: Option<IoBuf>) -> LocalFuture<'_, Result<Rep>> {
        self.service.handle(request, payload)
    }

    fn handle_from<'a>(
        &'a self,
        caller: &'a Caller,
        request: Req,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Result<Rep>> {
        self.handle_until(caller, Deadline::NEVER, request, payload)
    }

    fn handle_until<'a>(
        &'a self,
        caller: &'a Caller,
        deadline: Deadline,
        request: Req,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Result<Rep>> {
        if request.is_internal() && !caller.proof.is_trusted_as_node() {
            let message = format!("{} asks what only services of the cluster may ask", caller.name);
            return Box::pin(async { Err(Error::new(Errno::EACCES, message).hint("use weft mount")) });
        }
        if self.open.is_set() {
            return self.service.handle_until(caller, deadline, request, payload);
        }
        Box::pin(async move {
            if rt::timeout(PATIENCE, self.open.wait()).await.is_none() {
                return Err(Error::new(
                    Errno::ETIMEDOUT,
                    "the service is still settling what an earlier run left",
                )
                .hint("its log says what it waits for"));
            }
            self.service.handle_until(caller, deadline, request, payload).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use identity::{Identity, Role};
    use kv::{Durability, Memory, Writer};
    use kvnet::KvService;
    use net::{Proof, Transport};

    fn caller(proof: Proof) -> Caller {
        Caller {
            name: "somebody".into(),
            proof,
            address: "127.0.0.1:1".parse::<std::net::SocketAddr>().unwrap().into(),
            transport: Transport::Tcp,
            client: 1,
            core: 0,
            holder: 1,
            cluster: String::new(),
        }
    }

    fn member(role: Role) -> Proof {
        Proof::Member(Identity { cluster: "c".into(), role, expires: i64::MAX, serial: "1".into() })
    }

    #[test]
    fn what_a_check_asks_of_chunk_files_is_for_nodes_only() {
        let range = types::ByteRange::new(0, 4096);
        for op in [StorageOp::SetAside, StorageOp::Forget { range }] {
            let request = StorageRequest::new(SessionId(7), types::TargetId(1), types::InodeId(9), op);
            assert!(request.is_internal(), "{request:?}");
        }
    }

    #[test]
    fn the_store_is_for_nodes_only() {
        let ask = async {
            let writer = Arc::new(Writer::new(Arc::new(Memory::new()), Durability::Process));
            let open = Arc::new(Event::new());
            open.set();
            let guarded = Guarded::new(Arc::new(KvService::new(writer)), open);
            for request in [
                KvRequest::Persist,
                KvRequest::Apply { writer: 1, number: 1, verifier: 0, batches: Vec::new() },
            ] {
                for proof in [Proof::Stranger, member(Role::Client("c".into()))] {
                    let refused = guarded.handle_from(&caller(proof), request.clone(), None).await;
                    assert_eq!(refused.unwrap_err().errno, Errno::EACCES, "{request:?}");
                }
                for proof in [Proof::NotAsked, member(Role::Node(types::NodeId(2)))] {
                    guarded.handle_from(&caller(proof), request.clone(), None).await.unwrap();
                }
            }
        };
        rt::block_on(ask).unwrap();
    }
}
