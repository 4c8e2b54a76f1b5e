//! Whether a caller may send a request, by the table of `wire::authorization`, its certificate, and
//! the entry of its node in the cluster map.
//!
//! Invariant: no service sees a request before it was admitted here.

use crate::Caller;
use crate::limits::{MAP_WAIT_LIMIT, REFUSAL_LOG_INTERVAL};
use identity::Member;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use types::{ClusterMap, Epoch, Errno, Error, MapHandle, NodeId, Refusal, Result, Role};
use wire::Service;
use wire::authorization::{AuthorizationRule, Callers, Principal, Roles};

/// Result of the authorization of a request.
pub(super) enum AuthorizationOutcome {
    Admitted,
    Refused(Error),
    /// Not admitted by the server's map, but the caller has a later one.
    NeedsNewerMap,
}

/// Authorizes requests for all cores of a server.
pub(super) struct Authorizer {
    map: MapHandle,
    /// Time of the last logged refusal, by the monotonic clock.
    logged_ns: AtomicU64,
}

/// The number of the requested service, and the request's row in its table.
type RequestedOperation<'a> = (u8, &'a AuthorizationRule);

impl Authorizer {
    /// Authorizes by the current version of this map.
    pub(super) fn new(map: MapHandle) -> Authorizer {
        Authorizer { map, logged_ns: AtomicU64::new(0) }
    }

    /// Authorizes a request of a caller that has the map `epoch`.
    pub(super) fn authorize(
        &self,
        caller: &Caller,
        operation: RequestedOperation<'_>,
        epoch: Epoch,
    ) -> AuthorizationOutcome {
        let (principal, callers) = (caller.proof.principal(), &operation.1.callers);
        // Requests of clients, by far the most, don't depend on the map.
        match callers.admits_by_certificate(principal) {
            Some(true) => return AuthorizationOutcome::Admitted,
            Some(false) => return AuthorizationOutcome::Refused(self.refusal(caller, operation, None)),
            None => {}
        }
        let map = self.map.load();
        if callers.admit(principal, &map) {
            return AuthorizationOutcome::Admitted;
        }
        if map.epoch < epoch.max(callers.oldest_deciding_epoch()) {
            return AuthorizationOutcome::NeedsNewerMap;
        }
        AuthorizationOutcome::Refused(self.refusal(caller, operation, Some(&map)))
    }

    /// The error for every request of a client whose certificate was revoked.
    #[cold]
    pub(super) fn revoked(&self, caller: &Caller) -> Error {
        let message = format!("the certificate of {} was revoked", caller.name);
        self.log(caller, &message);
        let error = Error::new(Errno::EACCES, message);
        match caller.proof.role() {
            Some(Member::Client(name)) => error.hint(format!(
                "weft client add {name}, on the management node, makes a new cluster file: unmount, and mount with it"
            )),
            _ => error,
        }
    }

    /// Logs a refusal, at a limited rate.
    fn log(&self, caller: &Caller, message: &str) {
        let (now_ns, last_ns) = (rt::monotonic_ns(), self.logged_ns.load(Ordering::Relaxed));
        if last_ns == 0 || now_ns.saturating_sub(last_ns) > REFUSAL_LOG_INTERVAL.as_nanos() as u64 {
            self.logged_ns.store(now_ns.max(1), Ordering::Relaxed);
            tracing::warn!(address = %caller.address, "a request is refused: {message}");
        }
    }

    /// Authorizes by the map that the caller has, as soon as the server gets it.
    pub(super) async fn authorize_with_newer_map(
        &self,
        caller: &Caller,
        operation: RequestedOperation<'_>,
        epoch: Epoch,
    ) -> Result<()> {
        let end_ns = rt::monotonic_ns().saturating_add(MAP_WAIT_LIMIT.as_nanos() as u64);
        loop {
            let seen = self.map.epoch();
            let is_over = rt::monotonic_ns() >= end_ns;
            match self.authorize(caller, operation, if is_over { Epoch(0) } else { epoch }) {
                AuthorizationOutcome::Admitted => return Ok(()),
                AuthorizationOutcome::Refused(error) => return Err(error),
                AuthorizationOutcome::NeedsNewerMap if is_over => {
                    let map = self.map.load();
                    return Err(self.refusal(caller, operation, Some(&map)));
                }
                AuthorizationOutcome::NeedsNewerMap => {
                    let left = Duration::from_nanos(end_ns.saturating_sub(rt::monotonic_ns()));
                    rt::timeout(left, self.map.changed_since(seen)).await;
                }
            }
        }
    }

    /// `map`: the map that decided, in addition to the certificate.
    #[cold]
    fn refusal(
        &self,
        caller: &Caller,
        (service, rule): RequestedOperation<'_>,
        map: Option<&ClusterMap>,
    ) -> Error {
        let AuthorizationRule { operation, callers } = rule;
        if let Some(map) = map.filter(|map| callers.have_other_group_version(map)) {
            return Error::new(
                Refusal::GroupVersionMismatch,
                format!("the group has another version in map {}", map.epoch),
            );
        }
        let (name, principal) = (&caller.name, caller.proof.principal());
        let service = Service::from_number(service).map_or("an unknown service", Service::name);
        let roles = match (principal, map) {
            (Principal::Node(node), Some(map)) => node_roles(map, node),
            _ => String::new(),
        };
        let message =
            format!("{name} may not send {operation} ({service} service); allowed: {callers}{roles}");
        self.log(caller, &message);
        Error::new(Errno::EACCES, message).hint(hint_for(principal, callers))
    }
}

/// The map's entry of a node, for messages.
fn node_roles(map: &ClusterMap, node: NodeId) -> String {
    match map.node(node) {
        None => format!(", and node {node} is not in cluster map {}", map.epoch),
        Some(known) => {
            let roles: Vec<&str> = known.roles.iter().map(|role: &Role| role.name()).collect();
            let roles = if roles.is_empty() { "no role".to_string() } else { roles.join(",") };
            format!(", and cluster map {} gives node {node} {roles}", map.epoch)
        }
    }
}

fn hint_for(principal: Principal, callers: &Callers) -> &'static str {
    match (principal, callers) {
        (Principal::NoCertificate, _) => "let it join: weft node join TOKEN",
        (_, Callers::LocalAdmin) => "run the command on the management node",
        (Principal::Node(_), Callers::Clients) => {
            "mount with a client's cluster file: weft client add NAME, on the management node, makes one"
        }
        (Principal::Node(_), Callers::Nodes(roles)) if *roles == Roles::MGMT => {
            "run the command on the management node"
        }
        (Principal::Node(_), Callers::Nodes(_) | Callers::NamedNode(..)) => {
            "weft node list shows the roles of nodes, weft node set NODE --roles changes them"
        }
        (Principal::Client, _) => "use weft mount; run commands of administrators on the management node",
        _ => "install the same version of weft on all machines",
    }
}
