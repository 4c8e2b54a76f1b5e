//! Access rules for networks: the rights of a request depend on the address that it comes from.

use crate::support;
use crate::support::world::{ROOT, World, simulated};
use crate::support::{CHUNK_MTIME, create, errno};
use bytes::Bytes;
use identity::{CapabilityKeys, CapabilityRing, CoreCapabilityCache, Rights};
use net::{Caller, Handler, Proof, Transport};
use std::sync::Arc;
use types::{
    ClusterMap, Credentials, Errno, Export, ExportAccess, ExportRule, InodeId, Result, SessionId, SetAttr,
    Squash,
};
use wire::{AccessTime, AsyncCreate, LeaseMode, MetaOp, MetaReply, MetaRequest, MetaResponse, PendingFile};

const OWNER: u32 = 1000;
const NOBODY: u32 = types::NOBODY;

/// The requester: a session at an address.
#[derive(Clone, Copy)]
struct From {
    session: u64,
    address: &'static str,
}

const FREE: From = From { session: 1, address: "10.0.0.1:1" };
const SQUASHED: From = From { session: 2, address: "10.0.1.1:1" };
const READER: From = From { session: 3, address: "10.0.2.1:1" };
const REFUSED: From = From { session: 4, address: "10.0.3.1:1" };
const NAMELESS: From = From { session: 5, address: "10.0.4.1:1" };

fn caller(from: From) -> Caller {
    Caller {
        name: "client".into(),
        host: String::new(),
        proof: Proof::NotRequired,
        holder: from.session,
        address: from.address.parse::<std::net::SocketAddr>().unwrap().into(),
        transport: Transport::Tcp,
        client: from.session,
        core: 0,
        cluster: String::new(),
    }
}

async fn ask(world: &World, from: From, who: (u32, u32), op: MetaOp) -> Result<MetaResponse> {
    ask_with(world, from, who, false, op).await
}

async fn ask_with(
    world: &World,
    from: From,
    (uid, pid): (u32, u32),
    privileged: bool,
    op: MetaOp,
) -> Result<MetaResponse> {
    let credentials = Credentials { uid, gid: uid, pid };
    let session = SessionId(from.session);
    let request = MetaRequest { session, slot_sequence: None, credentials, privileged, op };
    world.meta.handle_from(&caller(from), request, None).await
}

const AS_ROOT: (u32, u32) = (0, 7);
const AS_OWNER: (u32, u32) = (OWNER, 8);
/// For the client itself.
const ITSELF: (u32, u32) = (0, 0);

fn rules(world: &World, rules: &[(&str, ExportAccess, Squash)]) {
    let mut map = ClusterMap::clone(&world.map.load());
    map.epoch.0 += 1;
    let rule = |(clients, access, squash): &(&str, ExportAccess, Squash)| ExportRule {
        clients: clients.parse().unwrap(),
        export: Export { access: *access, squash: *squash, ..Export::default() },
    };
    map.exports = rules.iter().map(rule).collect();
    world.map.store(Arc::new(map));
}

fn usual_rules(world: &World) {
    rules(
        world,
        &[
            ("10.0.1.0/24", ExportAccess::Rw, Squash::Root),
            ("10.0.2.0/24", ExportAccess::Ro, Squash::None),
            ("10.0.3.0/24", ExportAccess::None, Squash::None),
            ("10.0.4.0/24", ExportAccess::Rw, Squash::All),
        ],
    );
}

async fn register(world: &World, from: From) -> Result<MetaResponse> {
    ask(
        world,
        from,
        ITSELF,
        MetaOp::Register {
            in_use: vec![],
            pending_creates: vec![],
            pending_changes: vec![],
            reporting_process: 0,
        },
    )
    .await
}

fn lookup(parent: InodeId, name: &str) -> MetaOp {
    MetaOp::Lookup { parent, name: Bytes::copy_from_slice(name.as_bytes()) }
}

fn open(ino: InodeId, wish: Option<LeaseMode>) -> MetaOp {
    MetaOp::Open { ino, requested_lease: wish }
}

fn chmod(ino: InodeId, mode: u32) -> MetaOp {
    MetaOp::Setattr { ino, set: SetAttr { mode: Some(mode), ..SetAttr::default() } }
}

async fn made(world: &World, from: From, who: (u32, u32), op: MetaOp) -> types::Attr {
    match ask(world, from, who, op).await.unwrap().reply {
        MetaReply::Created { attr, .. } | MetaReply::Entry(attr) | MetaReply::Attr(attr) => attr,
        other => panic!("{other:?}"),
    }
}

/// A directory of OWNER that others may not search, with a file of mode 0600, and beside it a file
/// that every user may write.
async fn private(world: &World) -> (InodeId, InodeId) {
    made(world, FREE, AS_ROOT, chmod(ROOT, 0o777)).await;
    let dir = MetaOp::Mkdir { parent: ROOT, name: Bytes::from_static(b"dir"), mode: 0o700, umask: 0 };
    let dir = made(world, FREE, AS_OWNER, dir).await.ino;
    let file = made(world, FREE, AS_OWNER, create(dir, "secret")).await.ino;
    made(world, FREE, AS_OWNER, chmod(file, 0o600)).await;
    (dir, file)
}

#[test]
fn squashed_root_is_nobody() {
    simulated(|world| async move {
        usual_rules(&world);
        for from in [FREE, SQUASHED] {
            register(&world, from).await.unwrap();
        }
        let (dir, file) = private(&world).await;
        let read = |ino| MetaOp::MayOpen { ino, wanted: 4 };
        let readdir = MetaOp::Readdir { dir, cookie: 0, limit: 10, attributes: false, prefix: Bytes::new() };
        let xattr = |name: &'static [u8]| MetaOp::GetXattr { ino: file, name: Bytes::from_static(name) };
        for (op, refusal) in [
            (lookup(dir, "secret"), Errno::EACCES),
            (readdir.clone(), Errno::EACCES),
            (read(file), Errno::EACCES),
            (open(file, None), Errno::EACCES),
            (open(file, Some(LeaseMode::Write)), Errno::EACCES),
            (xattr(b"user.a"), Errno::EACCES),
            (xattr(b"trusted.a"), Errno::ENODATA),
            (create(dir, "new"), Errno::EACCES),
            (MetaOp::MayOpen { ino: file, wanted: 8 | 2 }, Errno::EACCES),
            (chmod(file, 0o600), Errno::EPERM),
        ] {
            assert_eq!(errno(ask(&world, SQUASHED, AS_ROOT, op.clone()).await), refusal, "{op:?}");
            if !matches!(op, MetaOp::GetXattr { .. }) {
                ask(&world, FREE, AS_ROOT, op.clone()).await.unwrap();
            }
        }
        // Other users keep their ids, and the client itself can continue with its open files.
        ask(&world, SQUASHED, AS_OWNER, lookup(dir, "secret")).await.unwrap();
        ask(&world, SQUASHED, AS_OWNER, read(file)).await.unwrap();
        ask(&world, SQUASHED, ITSELF, open(file, Some(LeaseMode::Write))).await.unwrap();
        // Capabilities of a process don't turn its user into root.
        let introduce = MetaOp::SupplyGroups { ino: dir, groups: vec![0] };
        ask(&world, SQUASHED, (OWNER + 1, 9), introduce).await.unwrap();
        let by_privilege = ask_with(&world, SQUASHED, (OWNER + 1, 9), true, create(dir, "by privilege"));
        assert_eq!(errno(by_privilege.await), Errno::EACCES);
        let own = made(&world, SQUASHED, AS_ROOT, create(ROOT, "own")).await;
        assert_eq!((own.uid, own.gid), (NOBODY, NOBODY));
        made(&world, SQUASHED, AS_ROOT, chmod(own.ino, 0o200)).await;
        assert_eq!(errno(ask(&world, SQUASHED, AS_ROOT, read(own.ino)).await), Errno::EACCES);
        ask(&world, SQUASHED, AS_ROOT, MetaOp::MayOpen { ino: own.ino, wanted: 2 }).await.unwrap();
    });
}

#[test]
fn with_all_users_squashed_no_request_runs_as_another_user() {
    simulated(|world| async move {
        usual_rules(&world);
        let ring = Arc::new(CapabilityRing::new(60));
        ring.set_cluster_time(rt::now().secs, rt::monotonic_ns());
        ring.set(CapabilityKeys::create().unwrap());
        world.meta.sign_with(ring.clone());
        for from in [FREE, NAMELESS] {
            register(&world, from).await.unwrap();
        }
        let (dir, file) = private(&world).await;
        for who in [AS_ROOT, AS_OWNER, ITSELF] {
            for op in [
                lookup(dir, "secret"),
                open(file, None),
                open(file, Some(LeaseMode::Shared)),
                MetaOp::BeginWrite { ino: file },
                MetaOp::Truncate { ino: file, size: 0, kill_suid_sgid: false },
                create(dir, "new"),
            ] {
                assert_eq!(
                    errno(ask(&world, NAMELESS, who, op.clone()).await),
                    Errno::EACCES,
                    "{who:?} {op:?}"
                );
            }
        }
        // Neither explicit times nor reports circumvent that.
        let disguised =
            SetAttr { mode: Some(0o777), uid: Some(NOBODY), ctime: Some(CHUNK_MTIME), ..SetAttr::default() };
        let report = MetaOp::EndWrite {
            ino: file,
            size: 0,
            blocks: 0,
            lens: Vec::new(),
            mtime: Some(CHUNK_MTIME),
            done: true,
            kill_suid_sgid: true,
        };
        for who in [AS_ROOT, AS_OWNER, ITSELF] {
            let op = MetaOp::Setattr { ino: file, set: disguised };
            assert_eq!(errno(ask(&world, NAMELESS, who, op).await), Errno::EPERM, "{who:?}");
            assert_eq!(errno(ask(&world, NAMELESS, who, report.clone()).await), Errno::EACCES, "{who:?}");
        }
        // A user that creates an existing name gets no rights to its inode by that.
        made(&world, FREE, AS_OWNER, create(ROOT, "there")).await;
        let MetaOp::Create { parent, name, mode, umask, rdev, requested_lease: wish, .. } =
            create(ROOT, "there")
        else {
            panic!()
        };
        let again =
            MetaOp::Create { parent, name, mode, umask, rdev, requested_lease: wish, exclusive: false };
        let answer = ask(&world, NAMELESS, ITSELF, again).await.unwrap();
        assert!(matches!(answer.reply, MetaReply::Entry(_)) && answer.capability.is_none());
        let own = made(&world, NAMELESS, AS_OWNER, create(ROOT, "own")).await;
        assert_eq!((own.uid, own.gid), (NOBODY, NOBODY));
        // A file that may only be read gets a read capability, whatever lease comes with it. No
        // session acknowledges recalls here, so the first one may have been evicted.
        let other = From { session: 11, ..FREE };
        register(&world, other).await.unwrap();
        made(&world, other, AS_OWNER, chmod(file, 0o604)).await;
        for wish in [Some(LeaseMode::Shared), None] {
            let shared = ask(&world, NAMELESS, ITSELF, open(file, wish)).await.unwrap();
            let capability = identity::Capability::from_bytes(&shared.capability.unwrap().0).unwrap();
            let granted = ring
                .verify(
                    &mut CoreCapabilityCache::default(),
                    &capability,
                    ring.cluster_time_s(rt::monotonic_ns()),
                )
                .unwrap();
            assert_eq!(granted.rights, Rights::READ, "{wish:?}");
        }
        assert_eq!(
            errno(ask(&world, NAMELESS, ITSELF, open(file, Some(LeaseMode::Write))).await),
            Errno::EACCES
        );
    });
}

#[test]
fn readers_change_nothing() {
    simulated(|world| async move {
        for from in [FREE, READER] {
            register(&world, from).await.unwrap();
        }
        let ring = Arc::new(CapabilityRing::new(60));
        ring.set_cluster_time(rt::now().secs, rt::monotonic_ns());
        ring.set(CapabilityKeys::create().unwrap());
        world.meta.sign_with(ring.clone());
        let file = made(&world, READER, AS_ROOT, create(ROOT, "file")).await.ino;
        let begun = made(&world, READER, AS_ROOT, create(ROOT, "begun")).await.ino;
        ask(&world, READER, ITSELF, MetaOp::BeginWrite { ino: begun }).await.unwrap();
        // The rule is added while the session exists.
        usual_rules(&world);
        let report = |ino| MetaOp::EndWrite {
            ino,
            size: 5,
            blocks: 8,
            lens: Vec::new(),
            mtime: None,
            done: true,
            kill_suid_sgid: false,
        };
        for op in [
            create(ROOT, "new"),
            MetaOp::Unlink { parent: ROOT, name: Bytes::from_static(b"file"), ino: None },
            chmod(file, 0o600),
            MetaOp::BeginWrite { ino: file },
            MetaOp::WriteInline {
                ino: file,
                offset: 0,
                data: Bytes::from_static(b"x"),
                kill_suid_sgid: false,
                at_end: false,
            },
            MetaOp::Truncate { ino: file, size: 9, kill_suid_sgid: false },
            open(file, Some(LeaseMode::Write)),
            MetaOp::NoteAccess { accesses: vec![AccessTime { ino: file, at: rt::now() }] },
            report(file),
        ] {
            assert_eq!(errno(ask(&world, READER, AS_ROOT, op.clone()).await), Errno::EROFS, "{op:?}");
        }
        ask(&world, READER, ITSELF, report(begun)).await.unwrap();
        let opened = ask(&world, READER, ITSELF, open(begun, Some(LeaseMode::Read))).await.unwrap();
        let capability = identity::Capability::from_bytes(&opened.capability.unwrap().0).unwrap();
        let granted = ring
            .verify(&mut CoreCapabilityCache::default(), &capability, ring.cluster_time_s(rt::monotonic_ns()))
            .unwrap();
        assert_eq!(granted.rights, Rights::READ);
        rules(&world, &[]);
        ask(&world, READER, AS_ROOT, create(ROOT, "new")).await.unwrap();
    });
}

#[test]
fn a_session_of_another_process_is_registered_first() {
    simulated(|world| async move {
        let before = world.meta.stats().sessions;
        assert_eq!(errno(ask(&world, FREE, AS_ROOT, lookup(ROOT, "x")).await), Errno::ENOTCONN);
        assert_eq!(world.meta.stats().sessions, before, "a stranger's request has made a session");
        register(&world, FREE).await.unwrap();
        assert_eq!(errno(ask(&world, FREE, AS_ROOT, lookup(ROOT, "x")).await), Errno::ENOENT);
    });
}

#[test]
fn tombstones_are_deleted_when_no_client_can_return() {
    const DAY_S: i64 = 24 * 3600;
    simulated(|world| async move {
        register(&world, FREE).await.unwrap();
        world.meta.evict_session(SessionId(FREE.session)).unwrap();
        rt::sleep(std::time::Duration::from_secs(1)).await;
        let now_s = rt::now().secs;
        for (later_s, answer) in
            [(0, Errno::ESTALE), (6 * DAY_S, Errno::ESTALE), (8 * DAY_S, Errno::ENOTCONN)]
        {
            world.meta.delete_old_tombstones(now_s + later_s).await.unwrap();
            assert_eq!(
                errno(ask(&world, FREE, AS_ROOT, lookup(ROOT, "x")).await),
                answer,
                "{later_s} s later"
            );
        }
        // The store has no record of it either: a restarted service answers the same.
        let world = world.restart().await;
        assert_eq!(errno(ask(&world, FREE, AS_ROOT, lookup(ROOT, "x")).await), Errno::ENOTCONN);
        world.meta.stop();
    });
}

#[test]
fn refused_networks_have_no_sessions() {
    simulated(|world| async move {
        register(&world, REFUSED).await.unwrap();
        ask(&world, REFUSED, AS_ROOT, create(ROOT, "before")).await.unwrap();
        usual_rules(&world);
        let error = ask(&world, REFUSED, AS_ROOT, create(ROOT, "after")).await.unwrap_err();
        assert!(error.errno == Errno::EACCES && error.hint.contains("weft export list"), "{error}");
        rt::sleep(std::time::Duration::from_secs(1)).await;
        rules(&world, &[]);
        // Its session was evicted, with all its state.
        assert_eq!(errno(ask(&world, REFUSED, AS_ROOT, create(ROOT, "after")).await), Errno::ESTALE);
        usual_rules(&world);
        let again = From { session: 40, ..REFUSED };
        assert_eq!(errno(register(&world, again).await), Errno::EACCES);
        // From another address it is allowed.
        register(&world, From { session: 40, ..FREE }).await.unwrap();
    });
}

#[test]
fn only_unrestricted_clients_get_directory_delegations() {
    simulated(|world| async move {
        usual_rules(&world);
        for from in [SQUASHED, READER, NAMELESS, FREE] {
            register(&world, from).await.unwrap();
            let name = Bytes::copy_from_slice(format!("dir{}", from.session).as_bytes());
            let dir = MetaOp::Mkdir { parent: ROOT, name, mode: 0o777, umask: 0 };
            let local = support::Client::new(&world.meta, 9);
            let dir = support::entry(local.call(dir).await).unwrap().ino;
            let refusal = match from.session {
                _ if from.session == FREE.session => None,
                _ if from.session == READER.session => Some(Errno::EROFS),
                _ => Some(Errno::EBUSY),
            };
            for who in [AS_ROOT, AS_OWNER, ITSELF] {
                let answer =
                    ask(&world, from, who, MetaOp::PreallocateInodes { dir, count: 8, prefix: Bytes::new() })
                        .await;
                assert_eq!(answer.as_ref().err().map(|error| error.errno), refusal, "{who:?}: {answer:?}");
                let grants = answer.map_or_else(|_| vec![], |answer| answer.grants);
                assert_eq!(grants.is_empty(), refusal.is_some());
            }
        }
    });
}

/// It could claim that other users created its files.
#[test]
fn asynchronous_creates_of_restricted_clients_are_ignored() {
    simulated(|world| async move {
        let everybody = [FREE, SQUASHED, READER, NAMELESS];
        for from in everybody {
            register(&world, from).await.unwrap();
        }
        let reserve = MetaOp::PreallocateInodes { dir: ROOT, count: 8, prefix: Bytes::new() };
        let answer = ask(&world, FREE, AS_ROOT, reserve).await.unwrap().reply;
        let MetaReply::Preallocated { first, .. } = answer else { panic!("{answer:?}") };
        usual_rules(&world);
        let world = world.restart().await;
        for from in everybody {
            let name = Bytes::copy_from_slice(format!("{}", from.session).as_bytes());
            let (ino, mode) = (InodeId(first.0 + from.session), 0o644);
            let file = PendingFile {
                ino,
                parent: ROOT,
                name,
                mode,
                umask: 0,
                created: types::Timestamp::default(),
                content: Bytes::new(),
                begins_write: false,
                written: None,
                set: types::SetAttr::default(),
            };
            let promised = vec![AsyncCreate { credentials: Credentials::default(), file }];
            ask(
                &world,
                from,
                ITSELF,
                MetaOp::Register {
                    in_use: vec![],
                    pending_creates: promised,
                    pending_changes: vec![],
                    reporting_process: 0,
                },
            )
            .await
            .unwrap();
        }
        let local = support::Client::new(&world.meta, 9);
        assert_eq!(local.list(ROOT).await, [FREE.session.to_string()]);
        world.meta.stop();
    });
}
