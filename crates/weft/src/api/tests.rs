//! Compares the API description with a server that runs a real management service.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::connection_limits::{MAX_RUNNING, RESERVED_FOR_ADMINISTRATORS};
use super::openapi::document;
use super::routes::ROUTES;
use super::{ApiOptions, Certificate, REQUEST_TIMEOUT, Tokens, certificate_names, start};
use crate::control::{Request, Service};
use kv::{Durability, Memory, Writer};
use mgmt::{FirstNode, Management, MembershipAuthority, Metadata, Superblock};
use net::{Channel, LocalFuture};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use types::{InodeId, NodeId, PartitionId, Result, Role, SessionId, TargetId};
use wire::mgmt::{ClientInfo, ClientState, NewClient, TokenInfo};
use wire::mgmt::{
    DrainProgress, Heartbeat, Join, NewToken, Register, SessionInfo, TargetReport, TargetSpace,
};
use wire::{MgmtReply, MgmtRequest};

struct AdmitAll;

impl MembershipAuthority for AdmitAll {
    fn check(&self, _: &Join, _: i64) -> Result<()> {
        Ok(())
    }

    fn admit(&self, _: &Join, _: NodeId, _: i64) -> Result<String> {
        Ok(String::new())
    }

    fn capability_keys(&self, _: i64) -> Result<String> {
        Ok(String::new())
    }

    fn token(&self, wanted: &NewToken, _: i64) -> Result<String> {
        Ok(format!("token, client: {}", wanted.client))
    }

    fn tokens(&self, _: i64) -> Result<Vec<TokenInfo>> {
        Ok(vec![TokenInfo { id: "7f".into(), roles: vec!["node".into()], uses_left: 1, ends_s: 9 }])
    }

    fn revoke_token(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn add_client(&self, wanted: &NewClient, _: i64) -> Result<String> {
        Ok(format!("cluster file of {}", wanted.name))
    }

    fn clients(&self, _: i64) -> Result<Vec<ClientInfo>> {
        Ok(vec![a_client()])
    }

    fn revoke_client(&self, _: &str, _: i64) -> Result<()> {
        Ok(())
    }
}

/// The client that the gate above knows.
fn a_client() -> ClientInfo {
    let (state, sessions) = (ClientState::Valid, None);
    ClientInfo { name: "a".into(), state, ends_s: 9, last_s: None, added_s: 1, sessions }
}

impl Metadata for AdmitAll {
    fn reconcile(&self, _: TargetId, _: wire::mgmt::ReconcileFiles) -> LocalFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn reconcile_group(
        &self,
        _: types::GroupId,
        _: wire::mgmt::ReconcileFiles,
    ) -> LocalFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn find_file_on(&self, _: TargetId) -> LocalFuture<'_, Result<Option<InodeId>>> {
        Box::pin(async { Ok(None) })
    }

    fn usage(
        &self,
        _: std::collections::BTreeSet<types::GroupId>,
    ) -> LocalFuture<'_, Result<types::GroupUsage>> {
        Box::pin(async { Ok(types::GroupUsage::default()) })
    }

    fn find_pool_reference(&self, _: types::PoolId) -> LocalFuture<'_, Result<Option<InodeId>>> {
        Box::pin(async { Ok(Some(InodeId::ROOT)) })
    }

    fn drains(&self) -> LocalFuture<'_, Vec<(TargetId, DrainProgress)>> {
        let progress = DrainProgress { hindrance: Some("why".into()), ..DrainProgress::default() };
        Box::pin(async { vec![(TargetId(1), progress)] })
    }

    fn sessions(&self) -> LocalFuture<'_, Result<Vec<SessionInfo>>> {
        let info = SessionInfo {
            session: SessionId(7),
            client: "c".into(),
            host: "h:1".into(),
            address: "127.0.0.1:7".into(),
            idle_s: Some(1),
            leases: None,
            in_use: Some(2),
        };
        Box::pin(async { Ok(vec![info]) })
    }

    fn executed<'a>(&'a self, _: &'a types::Node) -> LocalFuture<'a, Result<Vec<PartitionId>>> {
        Box::pin(async { Ok(vec![PartitionId(0)]) })
    }

    fn evict(&self, _: SessionId) -> LocalFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

struct Node(Arc<Management>);

impl Node {
    fn ask(&self, request: MgmtRequest) -> Result<MgmtReply> {
        let management = self.0.clone();
        rt::block_on(async move { Channel::in_process(management).call(request, None).await }).unwrap()
    }
}

impl Service for Node {
    fn answer(&self, request: Request) -> Result<Value> {
        match request {
            Request::Manage { request } => {
                self.ask(request).map(|reply| serde_json::to_value(reply).unwrap())
            }
            Request::Net => Ok(json!([])),
            Request::AddTarget { .. } => Ok(json!(4)),
            _ => Ok(json!({})),
        }
    }

    fn stop(&self, _: UnixStream) {}
}

#[test]
fn a_token_has_256_bits_and_is_for_its_owner() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let token_in = |dir: &std::path::Path| Tokens::load_or_create(dir).map(|tokens| tokens.administrate);
    let token = token_in(dir.path()).unwrap();
    assert_eq!((token.len(), token_in(dir.path()).unwrap()), (64, token.clone()));
    let path = dir.path().join("api.token");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(token_in(dir.path()).unwrap_err().errno, types::Errno::EACCES);
    std::fs::remove_file(&path).unwrap();
    assert_ne!(token_in(dir.path()).unwrap(), token);
}

/// Starts a cluster with a storage node that has five targets. Returns it with the address of its
/// interface.
fn cluster() -> (Arc<Node>, SocketAddr) {
    cluster_with(REQUEST_TIMEOUT)
}

fn tokens() -> Tokens {
    Tokens { administrate: "sesame".into(), read: vec!["look".into()] }
}

/// Like [`cluster`], with the longest time for a request to arrive.
fn cluster_with(request_time: Duration) -> (Arc<Node>, SocketAddr) {
    let superblock = Superblock::random("test");
    let uuid = superblock.uuid.clone();
    let (roles, version) = (vec![Role::Mgmt, Role::Meta], "0.1.0".to_string());
    let (name, addresses) = ("first".into(), vec!["127.0.0.1:7500".into()]);
    let first = FirstNode { name, addresses, roles, version, rack: Some("r1".into()) };
    let management = rt::block_on(async move {
        let writer = Arc::new(Writer::new(Arc::new(Memory::new()), Durability::Process));
        Management::open_cluster(writer, &superblock, &first, Path::new("/state")).await.unwrap()
    });
    let node = Arc::new(Node(Arc::new(management.unwrap())));
    node.0.set_authority(Arc::new(AdmitAll));
    node.0.set_metadata(Arc::new(AdmitAll));
    let (addresses, clock_s) = (vec!["127.0.0.1:7501".to_string()], rt::now().secs);
    let (roles, version) = (vec![Role::Storage], "0.1.0".to_string());
    let join = Join {
        secret: String::new(),
        name: "oss".into(),
        roles: roles.clone(),
        addresses: addresses.clone(),
        csr: String::new(),
        version: version.clone(),
        rack: Some("r2".into()),
        clock_s,
    };
    node.ask(MgmtRequest::Join(join)).unwrap();
    let id = NodeId(2);
    let register = |targets: Vec<TargetReport>| {
        MgmtRequest::Register(Register {
            cluster: uuid.clone(),
            node: id,
            instance: 1,
            addresses: addresses.clone(),
            roles: roles.clone(),
            version: version.clone(),
            clock_s,
            targets,
            again: false,
            is_elsewhere: false,
        })
    };
    node.ask(register(vec![])).unwrap();
    for (path, pool) in
        [("/t1", "default"), ("/t2", "default"), ("/t3", "empty"), ("/t4", "pair"), ("/t5", "pair")]
    {
        node.ask(MgmtRequest::AddTarget { node: id, path: path.into(), pool: pool.into() }).unwrap();
    }
    let space = Some(TargetSpace { capacity: 100 << 30, free: 50 << 30, device: 1, own: None });
    let report = |target| TargetReport {
        target: TargetId(target),
        cluster: uuid.clone(),
        path: format!("/t{target}"),
        space,
        work: None,
    };
    node.ask(register((1..=5).map(report).collect())).unwrap();
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    let options =
        ApiOptions { request_timeout: request_time, ..ApiOptions::new(listen, None, tokens(), node.0.map()) };
    let address = start(options, node.clone()).unwrap()[0];
    (node, address)
}

fn send(address: SocketAddr, text: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, if body.is_empty() { Value::Null } else { serde_json::from_str(body).unwrap() })
}

fn call(address: SocketAddr, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    call_as("sesame", address, method, path, &body)
}

fn call_as(token: &str, address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, Value) {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: weft\r\nAuthorization: Bearer {token}\r\n");
    send(address, &format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()))
}

/// Lists the differences between a value and a schema; empty if there are none.
fn schema_violations(document: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let schema = document.pointer(name.trim_start_matches('#')).unwrap_or_else(|| panic!("{name}"));
        return schema_violations(document, schema, value, at);
    }
    if let Some(allowed) = schema["enum"].as_array() {
        return if allowed.contains(value) { vec![] } else { vec![format!("{at}: {value} is not allowed")] };
    }
    let is = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64(),
        "null" => value.is_null(),
        other => panic!("type {other}"),
    };
    let fits = match &schema["type"] {
        Value::String(kind) => is(kind),
        Value::Array(kinds) => kinds.iter().any(|kind| is(kind.as_str().unwrap())),
        _ => true,
    };
    if !fits {
        return vec![format!("{at}: {value} is no {}", schema["type"])];
    }
    let mut found = Vec::new();
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        found.extend(schema_violations(document, &schema["items"], item, &format!("{at}/{index}")));
    }
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if value.get(name).is_none() {
            found.push(format!("{at}: {name} is missing"));
        }
    }
    for (name, item) in value.as_object().into_iter().flatten() {
        match schema["properties"].get(name) {
            Some(property) => {
                found.extend(schema_violations(document, property, item, &format!("{at}/{name}")))
            }
            None if schema["additionalProperties"] == json!(false) => {
                found.push(format!("{at}: {name} is unknown"))
            }
            None => {}
        }
    }
    found
}

/// Calls in an order in which each has an effect.
fn calls() -> Vec<(&'static str, &'static str, &'static str, Value)> {
    let none = Value::Null;
    vec![
        ("GET", "/v1/openapi.json", "", none.clone()),
        ("GET", "/v1/status", "", none.clone()),
        ("GET", "/v1/net", "", none.clone()),
        ("GET", "/v1/health", "", none.clone()),
        ("GET", "/v1/nodes", "", none.clone()),
        ("GET", "/v1/nodes/{node}", "oss", none.clone()),
        ("PATCH", "/v1/nodes/{node}", "2", json!({ "name": "oss1", "rack": "r3", "roles": ["storage"] })),
        ("PATCH", "/v1/targets/{target}", "1", json!({ "drain": true, "pool": "default" })),
        ("GET", "/v1/targets", "", none.clone()),
        ("GET", "/v1/targets/{target}", "1", none.clone()),
        ("DELETE", "/v1/targets/{target}", "1", none.clone()),
        ("GET", "/v1/pools", "", none.clone()),
        ("GET", "/v1/pools/{pool}", "empty", none.clone()),
        ("PATCH", "/v1/pools/{pool}", "empty", json!({ "name": "spare", "spare": 20 })),
        ("DELETE", "/v1/pools/{pool}", "spare", none.clone()),
        ("POST", "/v1/groups", "", json!({ "pool": "pair", "scheme": "mirror:2" })),
        ("GET", "/v1/groups", "", none.clone()),
        ("GET", "/v1/groups/{group}", "100001", none.clone()),
        ("POST", "/v1/rebalance", "", json!({ "pool": "pair", "dry_run": true })),
        ("POST", "/v1/recoveries", "", json!({ "group": 100_001, "from": 4, "accept_loss": true })),
        ("PATCH", "/v1/resync", "", json!({ "rate": 1 << 30, "within_s": null, "paused": true })),
        ("GET", "/v1/resync", "", none.clone()),
        (
            "PUT",
            "/v1/scrubs",
            "",
            json!({ "every_s": 86_400, "rate": 1 << 26, "asked": 1, "stopped": false }),
        ),
        ("GET", "/v1/scrubs", "", none.clone()),
        ("GET", "/v1/sessions", "", none.clone()),
        ("DELETE", "/v1/sessions/{session}", "7", none.clone()),
        ("PUT", "/v1/exports", "", json!({ "clients": "10.0.0.0/8", "access": "ro", "squash": "root" })),
        ("GET", "/v1/exports", "", none.clone()),
        ("DELETE", "/v1/exports/{clients}", "10.0.0.0%2F8", none.clone()),
        ("POST", "/v1/targets", "", json!({ "path": "/nowhere/disk", "pool": "nvme" })),
        ("POST", "/v1/tokens", "", json!({ "uses": 4, "expires_s": 60 })),
        ("GET", "/v1/tokens", "", none.clone()),
        ("DELETE", "/v1/tokens/{token}", "7f", none.clone()),
        ("POST", "/v1/clients", "", json!({ "name": "a", "expires_s": 60 })),
        ("GET", "/v1/clients", "", none.clone()),
        ("DELETE", "/v1/clients/{client}", "a", none.clone()),
        ("DELETE", "/v1/nodes/{node}", "spare-node", none),
    ]
}

#[test]
fn answers_match_the_api_description() {
    let (node, address) = cluster();
    let spare = Join {
        secret: String::new(),
        name: "spare-node".into(),
        roles: vec![Role::Storage],
        addresses: vec!["127.0.0.1:7509".into()],
        csr: String::new(),
        version: "0.1.0".into(),
        rack: None,
        clock_s: rt::now().secs,
    };
    node.ask(MgmtRequest::Join(spare)).unwrap();
    let document = document();
    let mut asked = Vec::new();
    for (method, path, name, body) in calls() {
        let operation = &document["paths"][path][method.to_lowercase()];
        assert!(operation.is_object(), "{method} {path} is not described");
        let full =
            path.split_once('{').map_or_else(|| path.to_string(), |(before, _)| format!("{before}{name}"));
        if !body.is_null() {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            assert_eq!(schema_violations(&document, schema, &body, path), Vec::<String>::new());
        }
        if path == "/v1/clients/{client}" {
            // A revocation waits until the nodes have applied it.
            let beat = Heartbeat {
                node: NodeId(2),
                instance: 1,
                epoch: types::Epoch(1 << 40),
                clock_s: rt::now().secs,
                targets: vec![],
                resyncs: vec![],
                scrubs: vec![],
            };
            node.ask(MgmtRequest::Heartbeat(beat)).unwrap();
        }
        let (status, answer) = call(address, method, &full, &body);
        let refused = match (method, path) {
            // The pool still has a target.
            ("DELETE", "/v1/pools/{pool}") => Some(409),
            // The group has lost nothing, so there is nothing to recover.
            ("POST", "/v1/recoveries") => Some(400),
            _ => None,
        };
        if let Some(refused) = refused {
            let schema = &operation["responses"]["default"]["content"]["application/json"]["schema"];
            assert_eq!(
                (status, schema_violations(&document, schema, &answer, path)),
                (refused, vec![]),
                "{answer}"
            );
            asked.push((method, path));
            continue;
        }
        let described = &operation["responses"][status.to_string()];
        assert!(described.is_object(), "{method} {full} answers with {status}: {answer}");
        if status == 200 {
            let schema = &described["content"]["application/json"]["schema"];
            assert_eq!(schema_violations(&document, schema, &answer, path), Vec::<String>::new(), "{answer}");
        }
        asked.push((method, path));
    }
    for route in ROUTES {
        assert!(asked.contains(&(route.method, route.path)), "{} {} was not tried", route.method, route.path);
    }
    let described =
        document["paths"].as_object().unwrap().values().map(|path| path.as_object().unwrap().len());
    assert_eq!(described.sum::<usize>(), asked.len(), "more is described than there is");
}

#[test]
fn what_is_refused_has_a_status_and_says_why() {
    let (_, address) = cluster();
    let document = document();
    for (status, method, path, body) in [
        (404, "GET", "/v1/nothing", json!(null)),
        (404, "GET", "/v1/nodes/nobody", json!(null)),
        (404, "GET", "/v1/targets/99", json!(null)),
        (404, "DELETE", "/v1/targets/x", json!(null)),
        (405, "POST", "/v1/nodes", json!({})),
        (400, "PATCH", "/v1/targets/1", json!({})),
        (400, "PATCH", "/v1/targets/1", json!({ "drain": "yes" })),
        (400, "PATCH", "/v1/nodes/2", json!([1])),
        (400, "PATCH", "/v1/nodes/2", json!({ "name": "a name" })),
        (400, "PATCH", "/v1/nodes/2", json!({ "rack": "" })),
        (400, "PATCH", "/v1/nodes/2", json!({ "rack": "none" })),
        (400, "PATCH", "/v1/nodes/2", json!({ "rack": 7 })),
        (400, "PATCH", "/v1/nodes/2", json!({ "roles": ["gateway"] })),
        (409, "PATCH", "/v1/nodes/2", json!({ "roles": ["meta"] })),
        // Fields, queries and bodies that the description doesn't have.
        (400, "PATCH", "/v1/nodes/2", json!({ "rack": "r1", "bogus": 1 })),
        (400, "PATCH", "/v1/targets/1", json!({ "drain": true, "bogus": 1 })),
        (400, "PATCH", "/v1/pools/pair", json!({ "spare": 4, "bogus": 1 })),
        (400, "PATCH", "/v1/resync", json!({ "bogus": 1 })),
        (400, "PUT", "/v1/scrubs", json!({ "bogus": 1 })),
        (400, "PUT", "/v1/exports", json!({ "clients": "10.0.0.0/8", "bogus": 1 })),
        (400, "POST", "/v1/tokens", json!({ "client": true, "bogus": 1 })),
        (400, "POST", "/v1/tokens", json!({ "uses": "many" })),
        (400, "POST", "/v1/clients", json!({})),
        (400, "POST", "/v1/rebalance", json!({ "pool": "pair", "dry_run": true, "bogus": 1 })),
        (400, "GET", "/v1/targets?pool=pair", json!(null)),
        (400, "GET", "/v1/targets", json!({ "pool": "pair" })),
        (400, "DELETE", "/v1/sessions/7", json!({ "force": true })),
        (409, "DELETE", "/v1/targets/1", json!(null)),
        (404, "GET", "/v1/groups/99", json!(null)),
        (400, "POST", "/v1/groups", json!({ "scheme": "raid5" })),
        (400, "PATCH", "/v1/resync", json!({ "rate": "fast" })),
        (400, "PUT", "/v1/scrubs", json!({ "every_s": "often" })),
        (400, "PATCH", "/v1/pools/pair", json!({ "spare": 400 })),
        (400, "POST", "/v1/targets", json!({ "path": "disk" })),
        (400, "POST", "/v1/targets", json!({ "pool": "nvme" })),
        (400, "PUT", "/v1/exports", json!({ "clients": "10.0.0.1/8" })),
        (400, "PUT", "/v1/exports", json!({ "clients": "local", "squash": "root", "anon_uid": 0 })),
        (404, "DELETE", "/v1/exports/fd00::%2F8", json!(null)),
        (409, "PATCH", "/v1/nodes/2", json!({ "name": "first" })),
    ] {
        let (found, answer) = call(address, method, path, &body);
        assert_eq!(found, status, "{method} {path}: {answer}");
        let schema = super::openapi::reference("Error");
        assert_eq!(schema_violations(&document, &schema, &answer, path), Vec::<String>::new());
        assert!(!answer["hint"].as_str().unwrap().is_empty(), "{answer}");
    }
}

#[test]
fn name_and_rack_of_a_node_change_together_or_not_at_all() {
    let (_, address) = cluster();
    let path = "/v1/nodes/2";
    let before = call(address, "GET", path, &json!(null)).1;
    for body in [json!({ "name": "first", "rack": "r9" }), json!({ "name": "new", "rack": "none" })] {
        let (status, answer) = call(address, "PATCH", path, &body);
        assert!(status == 400 || status == 409, "{answer}");
        let after = call(address, "GET", path, &json!(null)).1;
        assert_eq!((&after["name"], &after["rack"]), (&before["name"], &before["rack"]), "{body}");
    }
    assert_eq!(call(address, "PATCH", path, &json!({ "name": "new", "rack": "r9" })).0, 204);
    let after = call(address, "GET", path, &json!(null)).1;
    assert_eq!((&after["name"], &after["rack"]), (&json!("new"), &json!("r9")), "{after}");
}

#[test]
fn unauthenticated_and_malformed_requests_are_refused() {
    let (_, address) = cluster();
    for token in
        ["", "Authorization: Bearer sesamo\r\n", "Authorization: Bearer s\r\n", "Authorization: sesame\r\n"]
    {
        let (status, _) = send(address, &format!("GET /v1/nodes HTTP/1.1\r\n{token}\r\n"));
        assert_eq!(status, 401, "{token}");
    }
    assert_eq!(send(address, "\x16\x03\x01\r\n\r\n").0, 400);
    let long = format!("GET / HTTP/1.1\r\nA: {}", "a".repeat(20_000));
    assert_eq!(send(address, &long).0, 400);
    assert_eq!(send(address, "POST /v1/tokens HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n").0, 400);
    assert_eq!(send(address, "POST /v1/tokens HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n").0, 400);
}

#[test]
fn a_refused_field_changes_nothing() {
    let (_, address) = cluster();
    let rack = || call(address, "GET", "/v1/nodes/2", &json!(null)).1["rack"].clone();
    assert_eq!(rack(), "r2");
    let (status, answer) = call(address, "PATCH", "/v1/nodes/2", &json!({ "rack": "r1", "bogus": 1 }));
    assert!(status == 400 && answer["error"].as_str().unwrap().contains("\"bogus\""), "{answer}");
    assert_eq!(rack(), "r2");
}

#[test]
fn readers_read_and_change_nothing() {
    let (_, address) = cluster();
    let as_reader = |method, path, body| call_as("look", address, method, path, body);
    assert_eq!(as_reader("GET", "/v1/nodes", "").0, 200);
    assert_eq!(as_reader("GET", "/v1/health", "").0, 200);
    for (method, path, body) in [
        ("PATCH", "/v1/nodes/2", "{\"name\":\"other\"}"),
        ("DELETE", "/v1/sessions/7", ""),
        ("POST", "/v1/tokens", "{}"),
        ("POST", "/v1/nothing", "{}"),
    ] {
        let (status, answer) = as_reader(method, path, body);
        assert!(status == 403 && !answer["hint"].as_str().unwrap().is_empty(), "{method} {path}: {answer}");
    }
    assert_eq!(as_reader("GET", "/v1/nodes/2", "").1["name"], "oss");
}

fn head_and_body(address: SocketAddr, text: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_string(), body.to_string())
}

#[test]
fn head_is_get_without_a_body() {
    let (_, address) = cluster();
    let ask = |method: &str, path: &str, token: &str| {
        let token = format!("Authorization: Bearer {token}\r\n");
        head_and_body(address, &format!("{method} {path} HTTP/1.1\r\n{token}\r\n"))
    };
    for path in ["/v1/openapi.json", "/v1/nodes", "/v1/nodes/2", "/v1/nothing", "/v1/nodes/9", "/v1/tokens"] {
        for token in ["sesame", "look", "wrong"] {
            let (get, head) = (ask("GET", path, token), ask("HEAD", path, token));
            assert!(!get.1.is_empty(), "{path}");
            assert_eq!(head, (get.0, String::new()), "{path} by {token}");
        }
    }
    let (head, _) = ask("PUT", "/v1/nodes/2", "sesame");
    assert!(
        head.contains("405 Method Not Allowed") && head.contains("Allow: GET, PATCH, DELETE, HEAD"),
        "{head}"
    );
}

#[test]
fn idle_connections_do_not_block_others() {
    let (_, address) = cluster_with(Duration::from_secs(3600));
    let mut idle: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert_eq!(call(address, "GET", "/v1/nodes", &json!(null)).0, 200);
    // Each connection has a thread: most are closed long before their time-out.
    idle[0].set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(idle[0].read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_request_that_comes_little_by_little_is_given_up() {
    let (_, address) = cluster_with(Duration::from_millis(300));
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    stream.write_all(b"GET /v1/nodes HTTP/1.1\r\nX: ").unwrap();
    // Each piece arrives in time; all of them together would take some seconds.
    let is_over = (0..300).any(|_| match stream.write_all(b"x").and_then(|()| stream.read(&mut [0])) {
        Ok(got) => got == 0,
        // Completions of another test's io_uring may interrupt any call.
        Err(e) => !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted),
    });
    assert!(is_over, "the server still waits for the rest of the request");
    assert_eq!(call(address, "GET", "/v1/nodes", &json!(null)).0, 200);
}

/// A service that answers `Status` when the test lets it.
#[derive(Default)]
struct BlockingService {
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl BlockingService {
    fn wait_until(&self, is_it: impl Fn(&(usize, bool)) -> bool) {
        drop(self.changed.wait_while(self.state.lock().unwrap(), |state| !is_it(state)).unwrap());
    }
}

impl Service for BlockingService {
    fn answer(&self, request: Request) -> Result<Value> {
        if !matches!(request, Request::Status) {
            return Ok(json!([]));
        }
        self.state.lock().unwrap().0 += 1;
        self.changed.notify_all();
        self.wait_until(|(_, is_over)| *is_over);
        Ok(json!({}))
    }

    fn stop(&self, _: UnixStream) {}
}

#[test]
fn waiting_readers_leave_slots_for_administrators() {
    let slow = Arc::new(BlockingService::default());
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    let options = ApiOptions::new(listen, None, tokens(), types::MapHandle::default());
    let address = start(options, slow.clone()).unwrap()[0];
    let readers: Vec<_> = (1..=MAX_RUNNING - RESERVED_FOR_ADMINISTRATORS)
        .map(|count| {
            let reader = std::thread::spawn(move || call_as("look", address, "GET", "/v1/status", "").0);
            // One after the other, since few connections may wait.
            slow.wait_until(|(begun, _)| *begun == count);
            reader
        })
        .collect();
    assert_eq!(call_as("look", address, "GET", "/v1/net", "").0, 503);
    assert_eq!(call_as("sesame", address, "GET", "/v1/net", "").0, 200);
    slow.state.lock().unwrap().1 = true;
    slow.changed.notify_all();
    for reader in readers {
        assert_eq!(reader.join().unwrap(), 200);
    }
    assert_eq!(call_as("look", address, "GET", "/v1/net", "").0, 200);
}

/// Returns what a program that trusts `ca` receives from the interface under a name.
fn by_tls(address: SocketAddr, ca: &identity::CaCertificate, name: &str) -> std::io::Result<String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from(name.to_string()).unwrap();
    let connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = rustls::StreamOwned::new(connection, TcpStream::connect(address)?);
    stream.write_all(b"GET /v1/nodes HTTP/1.1\r\nAuthorization: Bearer look\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn programs_know_the_interface_by_its_names_and_the_authority() {
    use identity::{Authority, Member, Validity};
    let authority = || {
        let now_s = rt::now().secs;
        Authority::create("01234567-89ab-4def-8123-456789abcdef", "test", now_s).unwrap()
    };
    let (ours, theirs) = (authority(), authority());
    let ca = ours.certificate().clone();
    let credentials = ours.issue(&Member::Node(NodeId(1)), Validity::of_node(rt::now().secs)).unwrap();
    assert!(credentials.authority_pem().starts_with("-----BEGIN CERTIFICATE-----\n"));
    let (node, _) = cluster();
    let map = node.0.map();
    let of_node = map.load().node(NodeId(1)).cloned().unwrap();
    let names = certificate_names(Some(&of_node), &["weft.example.com".into()]);
    assert_eq!(names, ["127.0.0.1", "::1", "first", "localhost", "weft.example.com"]);
    let certify = move |csr: &[u8]| -> Result<String> { Ok(ours.certify_api(csr, &names, rt::now().secs)?) };
    let certificate = Certificate::new(credentials, Box::new(certify)).unwrap();
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    let address = start(ApiOptions::new(listen, Some(certificate), tokens(), map), node).unwrap()[0];
    for name in ["localhost", "127.0.0.1", "first", "weft.example.com"] {
        assert!(by_tls(address, &ca, name).unwrap().starts_with("HTTP/1.1 200 OK\r\n"), "{name}");
    }
    by_tls(address, &ca, "10.0.0.9").unwrap_err();
    by_tls(address, &ca, "example.com").unwrap_err();
    by_tls(address, theirs.certificate(), "localhost").unwrap_err();
}

#[test]
fn the_file_is_what_the_program_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/openapi.json");
    let text = format!("{:#}\n", document());
    if std::env::var_os("WEFT_NEW_OPENAPI").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let file = std::fs::read_to_string(path).unwrap();
    assert_eq!(file, text, "WEFT_NEW_OPENAPI=1 cargo test -p weft api writes it again");
}
