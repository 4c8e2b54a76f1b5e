//! Tests of the authorization table: each operation, requested by each kind of caller.

use super::messages::samples::{kv_requests, meta_ops, partitions_requests, storage_ops};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use types::*;
use wire::authorization::{AuthorizationRule, Callers, Principal};
use wire::mgmt::{Heartbeat, Join, NewClient, NewToken, ReconcileFiles, Register};
use wire::*;

/// The map has the management node, a metadata node, and two storage nodes with a target each. The
/// group has a member on the second storage node and on a third one.
const MANAGEMENT: NodeId = NodeId(1);
const METADATA: NodeId = NodeId(2);
const OTHER_STORAGE: NodeId = NodeId(3);
const STORAGE: NodeId = NodeId(4);
const REMOVED: NodeId = NodeId(9);
const TARGET: TargetId = TargetId(4);
const GROUP: GroupId = GroupId(7);
const SINCE: Epoch = Epoch(40);

fn map() -> ClusterMap {
    let node = |(id, roles): (NodeId, &[Role])| Node {
        id,
        name: format!("n{id}"),
        addresses: vec![],
        roles: roles.to_vec(),
        state: NodeState::Online,
        version: String::new(),
        rack: None,
    };
    let target = |node: NodeId| Target {
        id: TargetId(node.0),
        node,
        pool: PoolId(1),
        path: String::new(),
        state: TargetState::Online,
        capacity: 0,
        free: 0,
        class: CapacityClass::Normal,
        drain: false,
        used: None,
    };
    let roles: [(NodeId, &[Role]); 5] = [
        (MANAGEMENT, &[Role::Mgmt, Role::Meta]),
        (METADATA, &[Role::Meta]),
        (OTHER_STORAGE, &[Role::Storage]),
        (STORAGE, &[Role::Storage]),
        (NodeId(5), &[Role::Storage]),
    ];
    let group = Group {
        scheme: Scheme::Mirror(2),
        members: vec![TARGET, TargetId(5)],
        since: SINCE,
        ..Group::single(GROUP, PoolId(1), TARGET)
    };
    ClusterMap {
        epoch: Epoch(50),
        nodes: roles.into_iter().map(node).collect(),
        targets: [OTHER_STORAGE, STORAGE, NodeId(5)].into_iter().map(target).collect(),
        groups: vec![group],
        ..ClusterMap::default()
    }
}

/// One request of each kind. Requests of a node name [`STORAGE`] and its target.
fn management_requests() -> Vec<MgmtRequest> {
    let (node, target, group, pool) = (STORAGE, TARGET, GROUP, || "default".to_string());
    let rule = ExportRule { clients: ExportClients::Local, export: Export::default() };
    let (join, register, heartbeat) = (join(), register(), heartbeat());
    vec![
        MgmtRequest::Join(join),
        MgmtRequest::Register(register),
        MgmtRequest::Heartbeat(heartbeat),
        MgmtRequest::Goodbye { node, instance: 1 },
        MgmtRequest::Attach { cluster: String::new(), version: String::new(), clock_s: 0 },
        MgmtRequest::WatchMap { after: Epoch(0) },
        MgmtRequest::ReportUnreachable { member: "c".into(), nodes: vec![] },
        MgmtRequest::AddTarget { node, path: "/t".into(), pool: pool() },
        MgmtRequest::Reconcile { target, touched: ReconcileFiles::default() },
        MgmtRequest::ReconcileGroup { group, touched: ReconcileFiles::default() },
        MgmtRequest::ListNodes,
        MgmtRequest::RenameNode { node, name: "n".into() },
        MgmtRequest::SetRack { node, rack: None },
        MgmtRequest::SetNode { node, changes: vec![] },
        MgmtRequest::RemoveNode { node },
        MgmtRequest::ListTargets,
        MgmtRequest::SetPool { target, pool: pool() },
        MgmtRequest::SetDrain { target, drain: true },
        MgmtRequest::RemoveTarget { target, accept_loss: false },
        MgmtRequest::ListPools,
        MgmtRequest::RenamePool { pool: pool(), name: "p".into() },
        MgmtRequest::RemovePool { pool: pool() },
        MgmtRequest::ListSessions,
        MgmtRequest::EvictSession { session: SessionId(7) },
        MgmtRequest::ListMetas,
        MgmtRequest::RebalanceMetas,
        MgmtRequest::ListExports,
        MgmtRequest::SetExport { rule },
        MgmtRequest::RemoveExport { clients: ExportClients::Local },
        MgmtRequest::Health,
        MgmtRequest::ListGroups,
        MgmtRequest::MakeGroups { pool: pool(), scheme: Scheme::Mirror(2) },
        MgmtRequest::SetMember {
            group,
            since: SINCE,
            target,
            state: MemberState::NeedsRebuild,
            reason: String::new(),
            orderly: false,
        },
        MgmtRequest::SetResync { settings: ResyncSettings::default() },
        MgmtRequest::SetScrub { settings: ScrubSettings::default() },
        MgmtRequest::SetChecksums { on: false },
        MgmtRequest::SetSpare { pool: pool(), percent: 1 },
        MgmtRequest::ListResyncs,
        MgmtRequest::RebalanceGroups { pool: pool(), dry_run: true },
        MgmtRequest::RecoverGroup { group, from: target, accept_loss: false },
        MgmtRequest::ListScrubs,
        MgmtRequest::NoteCeilings { ceilings: vec![] },
        MgmtRequest::ListCeilings,
        MgmtRequest::NewToken(NewToken::default()),
        MgmtRequest::ListTokens,
        MgmtRequest::RevokeToken { token: String::new() },
        MgmtRequest::AddClient(NewClient { name: pool(), expires_s: None, validity_s: None }),
        MgmtRequest::ListClients,
        MgmtRequest::RevokeClient { name: pool() },
        MgmtRequest::Renew { member: String::new(), csr: String::new() },
        MgmtRequest::CertifyApi { node, csr: String::new(), names: vec![] },
    ]
}

fn join() -> Join {
    Join {
        secret: String::new(),
        name: String::new(),
        roles: vec![],
        addresses: vec![],
        csr: String::new(),
        version: String::new(),
        clock_s: 0,
        rack: None,
    }
}

fn register() -> Register {
    Register {
        cluster: String::new(),
        node: STORAGE,
        instance: 1,
        addresses: vec![],
        roles: vec![],
        version: String::new(),
        clock_s: 0,
        targets: vec![],
        again: false,
        is_elsewhere: false,
    }
}

fn heartbeat() -> Heartbeat {
    Heartbeat {
        node: STORAGE,
        instance: 1,
        epoch: Epoch(0),
        clock_s: 0,
        targets: vec![],
        resyncs: vec![],
        scrubs: vec![],
    }
}

fn in_session(op: MetaOp, session: SessionId) -> MetaRequest {
    MetaRequest { session, slot_sequence: None, credentials: Credentials::default(), privileged: false, op }
}

fn of_storage(op: StorageOp, session: SessionId, part: Option<GroupRole>) -> StorageRequest {
    let group = part.map(|part| GroupContext { group: GROUP, version: SINCE, role: part });
    StorageRequest { group, ..StorageRequest::new(session, TARGET, ChunkFileId(9), op) }
}

/// Every request, by service and form.
fn tables() -> Vec<(&'static str, Vec<AuthorizationRule>)> {
    let client = SessionId(7);
    let register = MetaOp::Register {
        in_use: vec![],
        pending_creates: vec![],
        pending_changes: vec![],
        reporting_process: 0,
    };
    let metadata = |session| {
        let ops = meta_ops().into_iter().chain([register.clone()]);
        ops.map(|op| in_session(op, session).rule()).collect()
    };
    let storage = |session, part: Option<GroupRole>| {
        storage_ops().into_iter().map(|op| of_storage(op, session, part).rule()).collect()
    };
    let member = Some(GroupRole::Member { sequence: 1, committed: 0 });
    vec![
        ("management", management_requests().iter().map(Request::rule).collect()),
        ("metadata, in a client's session", metadata(client)),
        ("metadata, in session 0", metadata(SessionId(0))),
        ("storage, in a client's session", storage(client, None)),
        ("storage, in session 0", storage(SessionId(0), None)),
        ("storage, in session 0, of a group's primary", storage(SessionId(0), Some(GroupRole::Primary))),
        ("storage, of a member of a group", storage(client, member)),
        ("key-value store", kv_requests().iter().map(Request::rule).collect()),
        ("partitions", partitions_requests().iter().map(Request::rule).collect()),
    ]
}

/// The columns: callers. Requests name the last storage node.
const CALLERS: [(&str, Principal); 6] = [
    ("no certificate", Principal::NoCertificate),
    ("client", Principal::Client),
    ("storage node", Principal::Node(OTHER_STORAGE)),
    ("storage node concerned", Principal::Node(STORAGE)),
    ("metadata node", Principal::Node(METADATA)),
    ("management node", Principal::Node(MANAGEMENT)),
];

fn document() -> String {
    let map = map();
    let mut page = String::from(
        "# Who may ask for what\n\n\
         Written by a test of `wire` from `crates/wire/src/spec` and `crates/wire/src/authorization.rs`; don't edit by hand. A server\n\
         compares each request with this table, the certificate of the connection, and the cluster map. It\n\
         refuses what isn't listed. The *storage node concerned* is the one that the request speaks of: it\n\
         speaks for itself, serves the target, or has a member of the group. The metadata node has the\n\
         role `meta` only, the management node `mgmt` and `meta`.\n",
    );
    for (service, rules) in tables() {
        let names: Vec<&str> = CALLERS.iter().map(|(name, _)| *name).collect();
        write!(page, "\n## {service}\n\n| operation | {} | who |\n", names.join(" | "))
            .expect("a string takes it");
        writeln!(page, "|---|{}---|", "---|".repeat(CALLERS.len())).expect("a string takes it");
        for AuthorizationRule { operation, callers } in rules {
            let marks = CALLERS.map(|(_, principal)| match callers.admit(principal, &map) {
                true => "yes",
                false => "",
            });
            writeln!(page, "| `{operation}` | {} | {callers} |", marks.join(" | "))
                .expect("a string takes it");
        }
    }
    page
}

#[test]
fn the_document_matches_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/authorization.md");
    if std::env::var_os("WEFT_NEW_AUTHORIZATION").is_some() {
        std::fs::write(path, document()).unwrap();
    }
    let file = std::fs::read_to_string(path).unwrap();
    assert_eq!(file, document(), "WEFT_NEW_AUTHORIZATION=1 cargo test -p wire writes it again");
}

/// The kinds of requests that management's decoder knows, from its error for an unknown kind.
fn known_to_management() -> BTreeSet<String> {
    let refusal = MgmtRequest::decode(br#"{"ask":"nothing"}"#).expect_err("there is no such request").cause;
    let (_, names) = refusal.split_once("expected one of ").expect("the refusal lists the kinds");
    names.split('`').skip(1).step_by(2).map(String::from).collect()
}

#[test]
fn every_operation_has_a_row() {
    let rows = |service: &str| {
        let found = tables().into_iter().find(|(name, _)| *name == service).unwrap();
        let names: BTreeSet<String> = found.1.iter().map(|rule| rule.operation.to_string()).collect();
        assert_eq!(names.len(), found.1.len(), "two rows of {service} have one name");
        names
    };
    // The other services decode kinds by number: `every_kind_is_tested` finds a new one, and the
    // samples of these tests name each kind of the enum once.
    assert_eq!(rows("management"), known_to_management());
    assert_eq!(rows("metadata, in a client's session").len(), 50);
    assert_eq!(rows("storage, in session 0").len(), 30);
    assert_eq!(rows("key-value store").len(), 4);
    assert_eq!(rows("partitions").len(), 12);
}

fn admitted(principal: Principal) -> BTreeSet<(&'static str, &'static str)> {
    let map = map();
    let of = |(service, rules): (&'static str, Vec<AuthorizationRule>)| {
        let allowed = rules.into_iter().filter(|rule| rule.callers.admit(principal, &map));
        allowed.map(|rule| (service, rule.operation)).collect::<Vec<_>>()
    };
    tables().into_iter().flat_map(of).collect()
}

/// Management operations that every member that sees the cluster map may request.
const SEEN_BY_MEMBERS: [&str; 12] = [
    "attach",
    "watch-map",
    "list-nodes",
    "list-targets",
    "list-pools",
    "list-groups",
    "list-resyncs",
    "list-metas",
    "list-ceilings",
    "health",
    "renew",
    "report-unreachable",
];

#[test]
fn a_storage_node_is_limited_to_its_own_targets_and_groups() {
    let of_management =
        |names: &[&'static str]| names.iter().map(|name| ("management", *name)).collect::<Vec<_>>();
    let mut expected: BTreeSet<_> = of_management(&SEEN_BY_MEMBERS).into_iter().collect();
    expected.extend(of_management(&[
        "join",
        "list-sessions",
        "list-exports",
        "list-scrubs",
        "list-tokens",
        "list-clients",
    ]));
    expected.insert(("storage, in session 0", "traffic"));
    expected.insert(("storage, in session 0, of a group's primary", "traffic"));
    assert_eq!(
        admitted(Principal::Node(OTHER_STORAGE)),
        expected,
        "of a node that the requests don't concern"
    );

    expected.extend(of_management(&[
        "register",
        "heartbeat",
        "goodbye",
        "add-target",
        "tidy",
        "tidy-group",
        "set-member",
        "certify-api",
    ]));
    expected.insert(("storage, in session 0, of a group's primary", "repair"));
    let members = [
        "read",
        "write",
        "truncate",
        "allocate",
        "delete",
        "sync",
        "sync-target",
        "stat",
        "seek",
        "space",
        "committed",
        "regions",
        "survey",
        "discard-lost",
        "set-aside",
        "space-needed",
        "mark-lost",
        "set-time",
        "digests",
        "adopt-verifier",
        "rewrite",
        "expect-checksums",
    ];
    expected.extend(members.map(|name| ("storage, of a member of a group", name)));
    assert_eq!(admitted(Principal::Node(STORAGE)), expected);
}

#[test]
fn clients_and_unauthenticated_callers_are_limited_to_their_operations() {
    assert_eq!(admitted(Principal::NoCertificate), BTreeSet::from([("management", "join")]));
    let client = admitted(Principal::Client);
    let of_management: BTreeSet<_> =
        client.iter().filter(|(service, _)| *service == "management").map(|(_, name)| *name).collect();
    assert_eq!(of_management, SEEN_BY_MEMBERS.into_iter().chain(["join"]).collect());
    let elsewhere: BTreeSet<_> = client.iter().map(|(service, _)| *service).collect();
    let sessions = ["metadata, in a client's session", "storage, in a client's session"];
    assert_eq!(elsewhere, BTreeSet::from(["management", sessions[0], sessions[1]]));
}

#[test]
fn metadata_is_for_metadata_nodes_and_changes_of_the_cluster_for_management() {
    let metadata = admitted(Principal::Node(METADATA));
    for name in ["get", "scan", "apply", "persist"] {
        assert!(metadata.contains(&("key-value store", name)), "{name}");
    }
    for name in [
        "set-checksums",
        "set-node",
        "remove-target",
        "evict-session",
        "set-export",
        "new-token",
        "revoke-token",
        "add-client",
        "revoke-client",
    ] {
        assert!(!metadata.contains(&("management", name)), "{name}");
    }
    let management = admitted(Principal::Node(MANAGEMENT));
    assert!(management.contains(&("management", "set-checksums")));
    // Commands on the management node make tokens; that needs no connection.
    assert!(!management.contains(&("management", "new-token")));
    assert!(!management.contains(&("management", "add-client")));
    assert!(management.contains(&("management", "revoke-client")));
}

#[test]
fn permissions_of_a_node_follow_the_map() {
    let persist = KvRequest::Persist.rule().callers;
    let write = StorageOp::Write { offset: 0, path: DataPath::Cached, durable: false };
    let part = Some(GroupRole::Member { sequence: 1, committed: 0 });
    let write = of_storage(write, SessionId(7), part).rule().callers;
    let (other, mut map) = (Principal::Node(OTHER_STORAGE), map());
    assert!(!persist.admit(other, &map) && !write.admit(other, &map));
    assert_eq!((persist.admits_by_certificate(other), write.admits_by_certificate(other)), (None, None));
    assert_eq!(write.oldest_deciding_epoch(), SINCE);

    map.nodes[2].roles = vec![Role::Meta, Role::Storage];
    assert!(persist.admit(other, &map));
    map.groups[0].members[1] = TargetId(3);
    assert!(write.admit(other, &map));
    assert!(!write.have_other_group_version(&map));
    map.groups[0].since = Epoch(51);
    assert!(write.have_other_group_version(&map));

    // A disk that has moved to another node takes its permissions along.
    let reconcile =
        MgmtRequest::Reconcile { target: TARGET, touched: ReconcileFiles::default() }.rule().callers;
    assert!(reconcile.admit(Principal::Node(STORAGE), &map) && !reconcile.admit(other, &map));
    map.targets[1].node = OTHER_STORAGE;
    assert!(!reconcile.admit(Principal::Node(STORAGE), &map) && reconcile.admit(other, &map));
}

#[test]
fn a_removed_node_has_nothing_but_its_certificate() {
    let (removed, map) = (Principal::Node(REMOVED), map());
    for (service, rules) in tables() {
        for AuthorizationRule { operation, callers } in rules {
            let by_certificate = matches!(callers, Callers::Any | Callers::Members);
            assert_eq!(callers.admit(removed, &map), by_certificate, "{service}: {operation}");
        }
    }
    // Management itself informs the node that it was removed.
    let beat = MgmtRequest::Heartbeat(Heartbeat { node: REMOVED, ..heartbeat() });
    assert!(beat.rule().callers.admit(removed, &map));
}

#[test]
fn without_authentication_all_but_forbidden_operations_are_admitted() {
    for (service, rules) in tables() {
        for AuthorizationRule { operation, callers } in rules {
            let refused = matches!(callers, Callers::LocalAdmin | Callers::NoCaller);
            assert_eq!(callers.admit(Principal::Unauthenticated, &map()), !refused, "{service}: {operation}");
        }
    }
}
