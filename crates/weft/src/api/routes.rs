//! The table of routes, which answers requests and from which the description is generated.

use super::http::{HttpRequest, Response};
use super::openapi;
use crate::control::{Request, Service};
use crate::node_config::TargetConfig;
use crate::numa;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::path::PathBuf;
use types::{Errno, Error, GroupId, NodeId, Result, SessionId, TargetId};
use wire::MgmtRequest;

/// A request to one route.
pub(super) struct Call<'a> {
    service: &'a dyn Service,
    /// The last part of the path, if it is a parameter.
    name: &'a str,
    body: &'a Map<String, Value>,
}

/// A method on a path, and its handler.
pub(super) struct Route {
    pub method: &'static str,
    /// With the name of its parameter in braces.
    pub path: &'static str,
    pub summary: &'static str,
    /// Schema of the body, if it has one.
    pub body: Option<&'static str>,
    /// Schema of the answer; `[X]`: a list; `None`: no content.
    pub answer: Option<&'static str>,
    run: fn(&Call<'_>) -> Result<Option<Value>>,
}

macro_rules! routes {
    ($($method:literal $path:literal $summary:literal $body:expr => $answer:expr, $run:expr;)*) => {
        &[$(Route { method: $method, path: $path, summary: $summary, body: $body, answer: $answer, run: $run }),*]
    };
}

/// All routes.
pub(super) const ROUTES: &[Route] = routes! {
    "GET" "/v1/openapi.json" "This description" None => Some("Any"), |_| Ok(Some(openapi::document()));
    "GET" "/v1/status" "Status of the answering process" None => Some("Any"), |c| c.control(Request::Status);
    "GET" "/v1/net" "Connections of the answering node" None => Some("[Any]"), |c| c.control(Request::Net);
    "GET" "/v1/health" "Cluster health and recommended actions" None => Some("Health"), |c| c.manage(MgmtRequest::Health).map(Some);
    "GET" "/v1/nodes" "All nodes" None => Some("[Node]"), |c| c.list(MgmtRequest::ListNodes, "nodes");
    "GET" "/v1/nodes/{node}" "A node, by id or name" None => Some("Node"), |c| c.node().map(Some);
    "PATCH" "/v1/nodes/{node}" "Change name, rack or roles of a node; rack null: none" Some("NodeChange") => None, |c| {
        c.change_node()
    };
    "DELETE" "/v1/nodes/{node}" "Remove a stopped node that has no targets" None => None, |c| {
        c.change(MgmtRequest::RemoveNode { node: c.node_id()? })
    };
    "GET" "/v1/targets" "All targets, with the progress of drains" None => Some("[Target]"), |c| {
        c.list(MgmtRequest::ListTargets, "targets")
    };
    "POST" "/v1/targets" "Make a directory of the answering node a target" Some("NewTarget") => Some("AddedTarget"), |c| {
        c.add_target()
    };
    "GET" "/v1/targets/{target}" "A target" None => Some("Target"), |c| {
        c.find_in_list(MgmtRequest::ListTargets, "targets", "id").map(Some)
    };
    "PATCH" "/v1/targets/{target}" "Change the pool of a target, or start or cancel its drain" Some("TargetChange") => None, |c| {
        c.change_target()
    };
    "DELETE" "/v1/targets/{target}" "Remove a drained, empty target" None => None, |c| {
        c.change(MgmtRequest::RemoveTarget { target: c.target()?, accept_loss: false })
    };
    "GET" "/v1/pools" "All pools" None => Some("[Pool]"), |c| c.list(MgmtRequest::ListPools, "pools");
    "GET" "/v1/pools/{pool}" "A pool, by name" None => Some("Pool"), |c| {
        c.find_in_list(MgmtRequest::ListPools, "pools", "name").map(Some)
    };
    "PATCH" "/v1/pools/{pool}" "Change the name of a pool, or the percentage of its targets that new files leave free" Some("PoolChange") => None, |c| {
        c.change_pool()
    };
    "DELETE" "/v1/pools/{pool}" "Remove a pool without targets" None => None, |c| {
        c.change(MgmtRequest::RemovePool { pool: c.name.into() })
    };
    "GET" "/v1/groups" "All redundancy groups, with the states of their members" None => Some("[Group]"), |c| {
        c.list(MgmtRequest::ListGroups, "groups")
    };
    "GET" "/v1/groups/{group}" "A redundancy group" None => Some("Group"), |c| {
        c.find_in_list(MgmtRequest::ListGroups, "groups", "id").map(Some)
    };
    "POST" "/v1/groups" "Create the missing groups of a scheme in a pool" Some("NewGroups") => Some("[Group]"), |c| {
        c.make_groups()
    };
    "POST" "/v1/rebalance" "Move members so that each group of a pool spans racks as far as possible, and memberships are spread evenly over targets" Some("Rebalance") => Some("[MembershipMove]"), |c| {
        let dry_run = c.flag("dry_run")?.unwrap_or(false);
        c.list(MgmtRequest::RebalanceGroups { pool: c.pool()?, dry_run }, "moves")
    };
    "POST" "/v1/recoveries" "Continue a group from an outdated member when all members that were in sync are lost for good; without accept_loss, refused with what would be lost" Some("Recovery") => Some("[Group]"), |c| {
        let (group, from) = (GroupId(c.number("group")?), TargetId(c.number("from")?));
        let accept_loss = c.flag("accept_loss")?.unwrap_or(false);
        c.list(MgmtRequest::RecoverGroup { group, from, accept_loss }, "groups")
    };
    "GET" "/v1/resync" "Resync settings, and progress of members that are out of sync" None => Some("Resync"), |c| {
        c.manage(MgmtRequest::ListResyncs).map(Some)
    };
    "PATCH" "/v1/resync" "Change the settings for resync and replacement of members; null: the default" Some("ResyncSettings") => None, |c| {
        c.change_resync()
    };
    "GET" "/v1/scrubs" "Scrub settings, progress of each target, and damage found" None => Some("Scrubs"), |c| {
        c.manage(MgmtRequest::ListScrubs).map(Some)
    };
    "PUT" "/v1/scrubs" "Change the scrub settings; increment `asked` to start one now" Some("ScrubSettings") => None, |c| {
        c.set_scrub()
    };
    "GET" "/v1/sessions" "All sessions of clients" None => Some("[Session]"), |c| {
        c.list(MgmtRequest::ListSessions, "sessions")
    };
    "DELETE" "/v1/sessions/{session}" "Evict a session: its client continues with a new one, and loses its open files and locks" None => None, |c| {
        let session = c.name.parse().map(SessionId).map_err(|_| c.not_found("session"))?;
        c.change(MgmtRequest::EvictSession { session })
    };
    "GET" "/v1/exports" "Export rules: access rights of clients" None => Some("[Export]"), |c| {
        c.list(MgmtRequest::ListExports, "exports")
    };
    "PUT" "/v1/exports" "Create or replace an export rule" Some("ExportChange") => None, |c| {
        c.set_export()
    };
    "DELETE" "/v1/exports/{clients}" "Remove an export rule; the slash of a network is written %2F" None => None, |c| {
        c.change(MgmtRequest::RemoveExport { clients: c.name.replace("%2F", "/").replace("%2f", "/").replace("%3A", ":").parse()? })
    };
    "GET" "/v1/tokens" "Valid join tokens, without their secrets" None => Some("[TokenInfo]"), |c| {
        c.list(MgmtRequest::ListTokens, "tokens")
    };
    "POST" "/v1/tokens" "Create a join token (for one node by default), or a cluster file that clients share" Some("TokenRequest") => Some("Token"), |c| {
        c.manage(MgmtRequest::NewToken(c.body_as()?)).map(Some)
    };
    "DELETE" "/v1/tokens/{token}" "Revoke a join token, by its id" None => None, |c| {
        c.change(MgmtRequest::RevokeToken { token: c.name.into() })
    };
    "GET" "/v1/clients" "Clients with certificates, including revoked ones" None => Some("[Client]"), |c| {
        c.list(MgmtRequest::ListClients, "clients")
    };
    "POST" "/v1/clients" "Create a client and its cluster file" Some("NewClient") => Some("Token"), |c| {
        c.manage(MgmtRequest::AddClient(c.body_as()?)).map(Some)
    };
    "DELETE" "/v1/clients/{client}" "Revoke a client's certificates: every service refuses it, and its sessions are evicted" None => Some("Revocation"), |c| {
        c.manage(MgmtRequest::RevokeClient { name: c.name.into() }).map(Some)
    };
};

impl Call<'_> {
    fn control(&self, request: Request) -> Result<Option<Value>> {
        self.service.answer(request).map(Some)
    }

    /// Returns management's answer without the field that names its kind.
    fn manage(&self, request: MgmtRequest) -> Result<Value> {
        let mut reply = self.service.answer(Request::Manage { request })?;
        if let Some(fields) = reply.as_object_mut() {
            fields.remove("answer");
        }
        Ok(reply)
    }

    fn change(&self, request: MgmtRequest) -> Result<Option<Value>> {
        self.manage(request).map(|_| None)
    }

    fn list(&self, request: MgmtRequest, field: &str) -> Result<Option<Value>> {
        Ok(self.manage(request)?.get_mut(field).map(Value::take))
    }

    /// Returns the item of a list whose field `key` matches the path's parameter.
    fn find_in_list(&self, request: MgmtRequest, field: &str, key: &str) -> Result<Value> {
        let list = self.list(request, field)?.unwrap_or_default();
        let is_it = |item: &&Value| match &item[key] {
            Value::String(text) => text == self.name,
            other => other.as_u64().is_some_and(|id| self.name.parse() == Ok(id)),
        };
        list.as_array()
            .and_then(|list| list.iter().find(is_it))
            .cloned()
            .ok_or_else(|| self.not_found(&field[..field.len() - 1]))
    }

    fn node(&self) -> Result<Value> {
        let by = |key| self.find_in_list(MgmtRequest::ListNodes, "nodes", key);
        by("id").or_else(|_| by("name"))
    }

    fn node_id(&self) -> Result<NodeId> {
        let id = self.node()?["id"].as_u64().and_then(|id| u32::try_from(id).ok());
        id.map(NodeId).ok_or_else(|| self.not_found("node"))
    }

    fn target(&self) -> Result<TargetId> {
        self.name.parse().map(TargetId).map_err(|_| self.not_found("target"))
    }

    fn change_target(&self) -> Result<Option<Value>> {
        let (target, drain) = (self.target()?, self.flag("drain")?);
        if !self.body.contains_key("pool") && drain.is_none() {
            return Err(
                Error::new(Errno::EINVAL, "the body contains nothing to change").hint("name pool or drain")
            );
        }
        if self.body.contains_key("pool") {
            self.change(MgmtRequest::SetPool { target, pool: self.text("pool")? })?;
        }
        match drain {
            Some(drain) => self.change(MgmtRequest::SetDrain { target, drain }),
            None => Ok(None),
        }
    }

    /// Makes a directory of this machine a target. Only the machine's own node can do that.
    fn add_target(&self) -> Result<Option<Value>> {
        let path = PathBuf::from(self.text("path")?);
        if !path.is_absolute() {
            return Err(Error::new(Errno::EINVAL, format!("{} is not an absolute path", path.display()))
                .hint("give the path on the management node's machine; on other nodes run weft target add"));
        }
        let pool = match self.body.contains_key("pool") {
            true => self.text("pool")?,
            false => mgmt::DEFAULT_POOL.1.to_string(),
        };
        let numa = self.zone()?;
        numa.map_or(Ok(()), |zone| numa::find(zone).map(drop))?;
        mgmt::check_name("pool", &pool)?;
        mgmt::require_target_or_vacant(&path)?;
        let added = self
            .service
            .answer(Request::AddTarget { target: TargetConfig { path, pool, numa, new: true } })?;
        Ok(Some(serde_json::json!({ "target": added })))
    }

    /// Returns the pool that the body names, or the default pool.
    fn pool(&self) -> Result<String> {
        match self.body.contains_key("pool") {
            true => self.text("pool"),
            false => Ok(mgmt::DEFAULT_POOL.1.to_string()),
        }
    }

    fn change_node(&self) -> Result<Option<Value>> {
        let node = self.node_id()?;
        let rack = match self.body.get("rack") {
            None => None,
            Some(Value::Null) => Some(None),
            Some(Value::String(rack)) => Some(Some(rack.clone())),
            Some(_) => return Err(invalid_field("rack", "a string or null")),
        };
        let roles = match self.body.get("roles") {
            None => None,
            Some(roles) => Some(
                serde_json::from_value(roles.clone())
                    .map_err(|_| invalid_field("roles", "a list of mgmt, meta and storage"))?,
            ),
        };
        // A change needs at least one field; without rack and roles, the name is required.
        let name = match (rack.is_none() && roles.is_none()) || self.body.contains_key("name") {
            true => Some(self.text("name")?),
            false => None,
        };
        match MgmtRequest::node_change_request(node, name, rack, roles) {
            Some(request) => self.change(request),
            None => Ok(None),
        }
    }

    fn change_pool(&self) -> Result<Option<Value>> {
        let pool = || self.name.to_string();
        if let Some(percent) = self.body.get("spare") {
            let percent = percent.as_u64().and_then(|percent| u8::try_from(percent).ok());
            let percent = percent.ok_or_else(|| invalid_field("spare", "a percentage"))?;
            self.change(MgmtRequest::SetSpare { pool: pool(), percent })?;
            if !self.body.contains_key("name") {
                return Ok(None);
            }
        }
        self.change(MgmtRequest::RenamePool { pool: pool(), name: self.text("name")? })
    }

    /// Changes the settings that the body names, and keeps the others.
    fn change_resync(&self) -> Result<Option<Value>> {
        let mut known = self.manage(MgmtRequest::ListResyncs)?["settings"].take();
        let Some(fields) = known.as_object_mut() else { return Err(invalid_field("settings", "known")) };
        fields.extend(self.body.iter().map(|(name, value)| (name.clone(), value.clone())));
        let settings = serde_json::from_value(known).map_err(|cause| {
            Error::new(Errno::EINVAL, format!("invalid settings in the body: {cause}"))
                .hint("docs/reference/openapi.json describes it")
        })?;
        self.change(MgmtRequest::SetResync { settings })
    }

    fn make_groups(&self) -> Result<Option<Value>> {
        let pool = self.pool()?;
        let scheme = self.text("scheme")?.parse().map_err(|cause: String| {
            Error::new(Errno::EINVAL, cause).hint("docs/reference/openapi.json describes the body")
        })?;
        self.list(MgmtRequest::MakeGroups { pool, scheme }, "groups")
    }

    fn set_scrub(&self) -> Result<Option<Value>> {
        self.change(MgmtRequest::SetScrub { settings: self.body_as()? })
    }

    fn zone(&self) -> Result<Option<u32>> {
        let zone = |value: &Value| value.as_u64().and_then(|zone| u32::try_from(zone).ok());
        self.body
            .get("numa")
            .map(|value| zone(value).ok_or_else(|| invalid_field("numa", "a number")))
            .transpose()
    }

    /// Deserializes the body as part of a management request.
    fn body_as<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_value(Value::Object(self.body.clone())).map_err(|cause| {
            Error::new(Errno::EINVAL, format!("invalid body: {cause}"))
                .hint("docs/reference/openapi.json describes it")
        })
    }

    fn set_export(&self) -> Result<Option<Value>> {
        self.change(MgmtRequest::SetExport { rule: self.body_as()? })
    }

    fn text(&self, field: &str) -> Result<String> {
        self.body
            .get(field)
            .and_then(Value::as_str)
            .map(str::to_string)
            .ok_or_else(|| invalid_field(field, "a string"))
    }

    fn number(&self, field: &str) -> Result<u32> {
        let number =
            self.body.get(field).and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok());
        number.ok_or_else(|| invalid_field(field, "a number"))
    }

    fn flag(&self, field: &str) -> Result<Option<bool>> {
        let value = self.body.get(field);
        value.map(|value| value.as_bool().ok_or_else(|| invalid_field(field, "true or false"))).transpose()
    }

    fn not_found(&self, what: &str) -> Error {
        Error::new(Errno::ENOENT, format!("there is no {what} {}", self.name))
            .hint(format!("GET /v1/{what}s lists all"))
    }
}

fn invalid_field(field: &str, kind: &str) -> Error {
    Error::new(Errno::EINVAL, format!("{field:?} must be {kind}"))
        .hint("docs/reference/openapi.json describes the body")
}

/// Answers a request.
pub(super) fn answer(service: &dyn Service, request: &HttpRequest) -> Response {
    // The answer to HEAD is that to GET; only the body isn't sent.
    let method = if request.method == "HEAD" { "GET" } else { &request.method };
    let path = request.path.as_str();
    let at_path = || ROUTES.iter().filter(move |route| match_path(route.path, path).is_some());
    let Some(route) = at_path().find(|route| route.method == method) else {
        return no_route(at_path().map(|route| route.method).collect());
    };
    let name = match_path(route.path, path).unwrap_or_default();
    let body = match body_of(route, request) {
        Ok(body) => body,
        Err(error) => return Response::from_error(&error),
    };
    if method != "GET" {
        tracing::info!(method = route.method, path, "administrator's request over HTTP");
    }
    match (route.run)(&Call { service, name, body: &body }) {
        Ok(Some(value)) => Response::ok(value),
        Ok(None) => Response::no_content(),
        Err(error) => Response::from_error(&error),
    }
}

/// Returns 404 for an unknown path, and 405 for a path that has only other methods.
fn no_route(methods: Vec<&str>) -> Response {
    if methods.is_empty() {
        return Response::error(404, "unknown path", "GET /v1/openapi.json lists all paths");
    }
    let refused =
        Response::error(405, "method not allowed on this path", "GET /v1/openapi.json lists the methods");
    let mut allow = methods;
    if allow.contains(&"GET") {
        allow.push("HEAD");
    }
    Response { allow: Some(allow.join(", ")), ..refused }
}

/// Returns the fields of a request's body. Anything that would be ignored silently is refused:
/// unknown fields, and a body or a query where none is expected.
fn body_of(route: &Route, request: &HttpRequest) -> Result<Map<String, Value>> {
    let refused = |message: String| {
        Error::new(Errno::EINVAL, message).hint("docs/reference/openapi.json describes the requests")
    };
    if !request.query.is_empty() {
        return Err(refused(format!("unknown query {:?}", request.query)));
    }
    let Some(schema) = route.body else {
        return match request.body.is_empty() {
            true => Ok(Map::new()),
            false => Err(refused(format!("{} {} takes no body", route.method, route.path))),
        };
    };
    let body = match serde_json::from_slice(&request.body) {
        Ok(Value::Object(body)) => body,
        _ => return Err(refused("the body is not a JSON object".into())),
    };
    let known = openapi::fields(schema);
    match body.keys().find(|name| !known.contains(name)) {
        None => Ok(body),
        Some(name) => Err(refused(format!("the body has an unknown field {name:?}"))
            .hint(format!("known fields: {}", known.join(", ")))),
    }
}

/// Returns the parameter of a path that matches the route; empty for a route without one.
fn match_path<'a>(route: &str, path: &'a str) -> Option<&'a str> {
    match route.split_once('{') {
        None => (route == path).then_some(""),
        Some((before, _)) => path.strip_prefix(before).filter(|name| !name.is_empty() && !name.contains('/')),
    }
}
