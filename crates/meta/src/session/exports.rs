//! Access rules for clients of certain networks, from the cluster map: refused networks, read-only
//! ones, squashed users.
//!
//! Rules apply to each request, by the address of its connection. The session stores the rule of
//! its last request for checks at deeper levels.

use crate::partition::executor::Abort;
use crate::service::MetaService;
use crate::session::table::Session;
use crate::store::transaction_view::View;
use namespace::{Caller, Env};
use types::{Credentials, Errno, Error, Export, ExportAccess, MapHandle, Result, SessionId, Squash};
use wire::spec::MetaEffect;
use wire::{MetaOp, MetaRequest};

/// Credentials of a client that acts for itself and not for one of its users: reports, and requests
/// that open files need.
const CLIENT_CREDENTIALS: Credentials = Credentials { uid: 0, gid: 0, pid: 0 };

impl MetaService {
    /// Applies the rules of its caller to a request.
    ///
    /// # Errors
    /// `EACCES` from a network that may not mount, whose session is evicted; `EROFS` for a change
    /// from a read-only network.
    pub(crate) fn apply_export(&self, caller: &net::Caller, request: MetaRequest) -> Result<MetaRequest> {
        // A caller without a session acts for the cluster; its rights were checked before.
        if request.session == SessionId(0) {
            return Ok(request);
        }
        let export = self.access_rules.of(caller);
        let session = self.sessions.find(request.session).filter(|session| session.is_remote());
        match export.access {
            ExportAccess::None if !matches!(request.op, MetaOp::EndSession) => {
                if session.is_some_and(|session| session.check_holder(caller.holder).is_ok()) {
                    self.eviction.evict(request.session, "an export rule refuses its client".into());
                }
                return Err(refused(caller));
            }
            ExportAccess::Ro if request.op.spec().mutates() => return Err(read_only()),
            _ => {}
        }
        if let Some(session) = session {
            session.set_export(export);
        }
        Ok(squashed(&export, request))
    }
}

/// Access rules for clients of certain networks.
pub(crate) struct AccessRules {
    map: MapHandle,
    exports: net::Exports,
}

impl AccessRules {
    pub fn new(map: MapHandle) -> AccessRules {
        AccessRules { map, exports: net::Exports::default() }
    }

    /// The rule that applies to a caller now.
    pub fn of(&self, caller: &net::Caller) -> Export {
        self.exports.apply_map(&self.map.load());
        self.exports.of(caller)
    }
}

/// Whether the rule restricts nothing and maps no users.
pub(crate) fn is_unrestricted(export: &Export) -> bool {
    export.access == ExportAccess::Rw && export.squash == Squash::None
}

/// Replaces squashed users by the anonymous one.
fn squashed(export: &Export, mut request: MetaRequest) -> MetaRequest {
    let keeps = match export.squash {
        Squash::None => true,
        // The client is trusted for all users except root; it could send any request as another
        // user.
        Squash::Root => request.credentials == CLIENT_CREDENTIALS,
        Squash::All => false,
    };
    if keeps {
        return request;
    }
    request.credentials = export.squashed(request.credentials);
    request.privileged = false;
    if let MetaOp::SupplyGroups { groups, .. } = &mut request.op {
        *groups = export.squashed_groups(std::mem::take(groups));
    }
    request
}

/// Checks whether a session's user may execute the request. For the session of this process the
/// kernel has checked that, except for the operations that it leaves to the service. For root the
/// client's kernel has checked it, unless root is squashed. Returns true if the client may only
/// read the file.
pub(crate) fn permit(
    request: &MetaRequest,
    session: &Session,
    env: &Env<'_>,
    view: &View<'_>,
) -> Result<bool, Abort> {
    let spec = request.op.spec();
    if !session.is_remote() && !spec.is_unchecked_by_kernel {
        return Ok(false);
    }
    let (export, who) = (session.export(), request.credentials);
    let is_read_only = export.access == ExportAccess::Ro;
    if is_read_only && spec.effect == MetaEffect::Report {
        let Some(ino) = spec.home else { return Ok(true) };
        if !namespace::is_being_changed(env, view, ino)? {
            return Err(Abort::Refused(read_only()));
        }
    }
    let is_anonymous =
        export.squash != Squash::None && (who.uid, who.gid) == (export.anon_uid, export.anon_gid);
    if who.uid == 0 && !is_anonymous {
        return Ok(is_read_only);
    }
    let groups = session.users.find(who);
    let caller = groups.as_ref().map_or(Caller::of(who), |groups| groups.caller(who));
    let caller = Caller { privileged: request.privileged, ..caller };
    if !is_anonymous {
        namespace::permit(env, view, &caller, &request.op)?;
        return Ok(is_read_only);
    }
    namespace::permit_anonymous(env, view, &caller, &request.op)?;
    match request.op {
        MetaOp::Open { ino, .. } | MetaOp::Reopen { ino, .. } if !is_read_only => {
            Ok(!namespace::may_write(env, view, &caller, ino)?)
        }
        _ => Ok(is_read_only),
    }
}

fn refused(caller: &net::Caller) -> Error {
    let message = format!("{} at {} may not use this file system", caller.name, caller.address);
    Error::new(Errno::EACCES, message)
        .hint("weft export list, on a node, shows the rules for clients and networks")
}

fn read_only() -> Error {
    Error::new(Errno::EROFS, "the file system is read-only for this client")
        .hint("weft export list, on a node, shows the rules for clients and networks")
}
