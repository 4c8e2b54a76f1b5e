//! Clients and certificates: revocation and renewal.

use crate::limits::{EJECTION_POLL, REVOCATION_TIMEOUT};
use crate::management::Management;
use crate::refusal;
use identity::Member;
use net::Caller;
use types::{Errno, Error, NodeId, NodeState, Result, SessionId};
use wire::MgmtReply;
use wire::mgmt::{ClientInfo, RevocationInfo, SessionInfo};

impl Management {
    /// Revokes a client's certificates, informs every service, and evicts the client's sessions.
    ///
    /// The record is on disk first: if management dies meanwhile, its next map revokes the client,
    /// too.
    pub(crate) async fn revoke_client(&self, name: &str) -> Result<MgmtReply> {
        self.authority()?.revoke_client(name, rt::now().secs)?;
        tracing::warn!(client = name, "an administrator revokes the certificates of a client");
        self.refresh().await?;
        let not_ended = |cause: Error| refusal::sessions_not_ended(name, &cause);
        let mut sessions = self.end_sessions_of(name).await.map_err(not_ended)?;
        let unaware = self.await_confirmations().await;
        // Until then a service may have let the client begin another session.
        sessions.extend(self.end_sessions_of(name).await.map_err(not_ended)?);
        Ok(MgmtReply::Revoked(RevocationInfo { sessions, unaware }))
    }

    /// Evicts all sessions of a client.
    async fn end_sessions_of(&self, name: &str) -> Result<Vec<SessionId>> {
        let mut ended = Vec::new();
        for session in self.sessions_now().await?.iter().filter(|session| is_session_of(session, name)) {
            match self.metadata()?.evict(session.session).await {
                Ok(()) => ended.push(session.session),
                // The session has ended by itself.
                Err(error) if error.errno == Errno::ENOENT => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ended)
    }

    async fn sessions_now(&self) -> Result<Vec<SessionInfo>> {
        self.metadata()?.sessions().await
    }

    /// Waits until every reachable node uses the current map; returns the nodes that don't in time,
    /// and the unreachable ones.
    async fn await_confirmations(&self) -> Vec<NodeId> {
        let (epoch, began_ns) = (self.current().epoch, rt::monotonic_ns());
        loop {
            let unaware = self.unconfirmed_nodes(epoch);
            let waited_ns = rt::monotonic_ns() - began_ns;
            let reachable = self.reachability_snapshot(&self.current()).reachable;
            if !unaware.iter().any(|node| reachable.contains(node))
                || waited_ns > REVOCATION_TIMEOUT.as_nanos() as u64
            {
                return unaware;
            }
            rt::select(self.heartbeat_received.wait(), rt::sleep(EJECTION_POLL)).await;
        }
    }

    /// Nodes that may serve and haven't confirmed a map of this epoch.
    fn unconfirmed_nodes(&self, epoch: types::Epoch) -> Vec<NodeId> {
        let (map, liveness) = (self.current(), self.liveness());
        let may_serve = map.nodes.iter().filter(|node| node.state != NodeState::Offline);
        let is_aware = |node: NodeId| liveness.process(node).is_some_and(|seen| seen.epoch >= epoch);
        may_serve.map(|node| node.id).filter(|node| !is_aware(*node)).collect()
    }

    /// All clients, with their sessions.
    pub(crate) async fn clients(&self) -> Result<Vec<ClientInfo>> {
        let mut clients = self.authority()?.clients(rt::now().secs)?;
        // The list of clients doesn't need metadata services.
        let sessions = self.sessions_now().await.ok();
        for client in &mut clients {
            let count =
                |all: &Vec<SessionInfo>| all.iter().filter(|one| is_session_of(one, &client.name)).count();
            client.sessions = sessions.as_ref().map(count);
        }
        Ok(clients)
    }

    /// Certifies a new key of a member, in place of that in its present certificate. `caller`:
    /// `None` within this process, which acts for its own node.
    pub(crate) fn renew(&self, caller: Option<&Caller>, member: &str, csr: &str) -> Result<MgmtReply> {
        let authority = self.authority()?;
        let role: Member = member.parse().map_err(Error::from)?;
        let identity = caller.map(|caller| match &caller.proof {
            net::Proof::Member(identity) if identity.role == role => Ok(identity),
            _ => Err(refusal::not_allowed(&caller.name)),
        });
        let identity = identity.transpose()?;
        if let Member::Node(node) = role
            && self.current().node(node).is_none()
        {
            return Err(refusal::removed_node(node));
        }
        let renewed = authority.renew(&role, identity, csr, rt::now().secs)?;
        tracing::info!(member, "renewed the certificate of {member}");
        if let Member::Node(node) = role {
            self.liveness().note_certificate(node, renewed.ends_s);
        }
        Ok(MgmtReply::Certificate { chain: renewed.chain })
    }

    /// Records the expiry of the certificate that a node shows.
    pub(crate) fn note_certificate(&self, caller: &Caller) {
        if let net::Proof::Member(identity) = &caller.proof
            && let Member::Node(node) = identity.role
        {
            self.liveness().note_certificate(node, identity.expires);
        }
    }
}

fn is_session_of(session: &SessionInfo, client: &str) -> bool {
    session.client.strip_prefix("client/") == Some(client)
}
