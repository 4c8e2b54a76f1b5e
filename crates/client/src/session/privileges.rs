//! Facts about a user that the metadata service needs beyond the ids in the request: the groups,
//! and whether capabilities override what the ids permit.
//!
//! The client sends them when the service has refused a request. The kernel has checked most
//! requests before it sent them, with more knowledge. Requests that it has not checked
//! ([`wire::spec::MetaSpec::is_unchecked_by_kernel`]) need the capability that Linux requires.

use crate::UserPrivileges;
use crate::session::Session;
use crate::session::leases::Answer;
use types::{Credentials, Errno, InodeId, Result};
use wire::{MetaOp, SlotSequence};

// Linux `include/uapi/linux/capability.h`.
const CAP_CHOWN: u64 = 1;
const CAP_DAC_OVERRIDE: u64 = 1 << 1;
const CAP_FOWNER: u64 = 1 << 3;
const CAP_LINUX_IMMUTABLE: u64 = 1 << 9;
const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_MKNOD: u64 = 1 << 27;
const CAP_SETFCAP: u64 = 1 << 31;

/// The user of a request; by default the client itself.
#[derive(Clone, Copy, Default)]
pub(crate) struct RequestUser {
    pub(crate) credentials: Credentials,
    /// The kernel permits what the ids don't: because of capabilities, or because its ids are
    /// mapped.
    pub(crate) privileged: bool,
}

impl From<Credentials> for RequestUser {
    fn from(credentials: Credentials) -> RequestUser {
        RequestUser { credentials, privileged: false }
    }
}

impl Session {
    pub(super) async fn change_in_slot(
        &self,
        slot_sequence: SlotSequence,
        credentials: Credentials,
        op: MetaOp,
    ) -> Result<Answer> {
        let slot_sequence = Some(slot_sequence);
        // Root needs no introduction, and a single kernel's check is all that counts.
        let is_checked = !op.spec().is_unchecked_by_kernel;
        if is_checked && self.kernel.invalidator().is_some_and(|face| face.has_mapped_ids()) {
            let user = RequestUser { credentials, privileged: true };
            return self.send(slot_sequence, user, op).await;
        }
        match credentials.uid == 0 || self.leases.is_only_session() && is_checked {
            true => self.send(slot_sequence, credentials.into(), op).await,
            false => self.query_with_privileges(slot_sequence, credentials, op).await,
        }
    }

    /// Sends a request for a user. If the service refuses it, sends it again with all facts about
    /// the user.
    pub(crate) async fn query_with_privileges(
        &self,
        slot_sequence: Option<SlotSequence>,
        credentials: Credentials,
        op: MetaOp,
    ) -> Result<Answer> {
        match self.send(slot_sequence, credentials.into(), op.clone()).await {
            Err(error) if matches!(error.errno, Errno::EACCES | Errno::EPERM) => {
                match self.report_groups(credentials, &op).await {
                    Some(user) => self.send(slot_sequence, user, op).await,
                    None => Err(error),
                }
            }
            answer => answer,
        }
    }

    /// Reports the groups of the user of `op` to the service. `None` if they are unknown.
    pub(crate) async fn report_groups(&self, credentials: Credentials, op: &MetaOp) -> Option<RequestUser> {
        let privileges = self.kernel.invalidator().and_then(|face| face.privileges(credentials))?;
        let privileged = overrides(&privileges, op);
        self.send(None, credentials.into(), supply_groups(op, privileges.groups)).await.ok()?;
        Some(RequestUser { credentials, privileged })
    }
}

/// The request that supplies a user's groups to the service that refused `op`. It goes to the same
/// service, because it has the same home.
fn supply_groups(op: &MetaOp, groups: Vec<u32>) -> MetaOp {
    MetaOp::SupplyGroups { ino: op.spec().home.unwrap_or(InodeId::ROOT), groups }
}

/// Whether the user's capabilities explain that its kernel permits what its ids don't.
fn overrides(privileges: &UserPrivileges, op: &MetaOp) -> bool {
    let needed = match op {
        MetaOp::MayOpen { .. } => CAP_DAC_OVERRIDE,
        MetaOp::SetPattern { .. } | MetaOp::Migrate { .. } => CAP_FOWNER | CAP_SYS_ADMIN,
        MetaOp::Setattr { set, .. } if set.flags.is_some() => CAP_FOWNER | CAP_LINUX_IMMUTABLE,
        // The kernel has checked which of them the change needs.
        _ => CAP_CHOWN | CAP_DAC_OVERRIDE | CAP_FOWNER | CAP_SYS_ADMIN | CAP_MKNOD | CAP_SETFCAP,
    };
    privileges.capabilities & needed != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{PartitionId, SetAttr};

    #[test]
    fn groups_are_supplied_to_the_service_that_refused_the_operation() {
        let (ino, parent) = (InodeId::new(PartitionId(5), 77), InodeId::new(PartitionId(9), 78));
        let refused = [
            MetaOp::Unlink { parent, name: "f".into(), ino: None },
            MetaOp::Setattr { ino, set: SetAttr::default() },
            MetaOp::MayOpen { ino, wanted: 4 },
        ];
        for op in refused {
            let home = op.spec().home.expect("it is about an inode");
            let supplied = supply_groups(&op, vec![10, 11]);
            assert_eq!(supplied, MetaOp::SupplyGroups { ino: home, groups: vec![10, 11] });
            assert_eq!(supplied.spec().home.map(InodeId::partition), Some(home.partition()));
            assert_ne!(home.partition(), InodeId::ROOT.partition());
        }
    }

    #[test]
    fn unchecked_operations_need_their_capability() {
        let ino = InodeId(9);
        let unlink = MetaOp::Unlink { parent: ino, name: "f".into(), ino: None };
        let (open, move_it) =
            (MetaOp::MayOpen { ino, wanted: 4 }, MetaOp::Migrate { ino, pool: None, scheme: None });
        let may = |capabilities: u64| {
            let privileges = UserPrivileges { groups: vec![], capabilities };
            [&unlink, &open, &move_it].map(|op| overrides(&privileges, op))
        };
        assert_eq!(may(0), [false; 3]);
        assert_eq!(may(CAP_MKNOD), [true, false, false]);
        assert_eq!(may(CAP_DAC_OVERRIDE), [true, true, false]);
        assert_eq!(may(CAP_FOWNER), [true, false, true]);
        // `CAP_NET_BIND_SERVICE` doesn't concern files.
        assert_eq!(may(1 << 10), [false; 3]);
    }
}
