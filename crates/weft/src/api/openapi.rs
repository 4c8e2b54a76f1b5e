//! The OpenAPI description of the interface, generated from the table of routes.

use super::routes::{ROUTES, Route};
use crate::verbs::verb_of;
use serde_json::{Map, Value, json};
use wire::mgmt::HealthCode;

/// Rules for all responses. docs/reference/json.md says the same for `--json`.
const DESCRIPTION: &str = "Sizes are bytes. Ids are numbers below 2^53, so that readers with double-precision numbers (JavaScript, jq) don't round them. HEAD answers as GET does, without a body. Unknown fields, queries and bodies are refused with 400. Programs must trust api.ca.pem in the node's directory.";

/// Returns the whole description, OpenAPI 3.1.
pub(super) fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.to_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "weft management", "version": "1", "description": DESCRIPTION },
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer",
                "description": "The content of api.token in the management node's directory, or for GET and HEAD a line of api.read-tokens. The certificate of the management node works as well, and for GET and HEAD that of any node." } },
            "schemas": schemas(),
        },
    })
}

fn operation(route: &Route) -> Value {
    let json_of = |schema: Value| json!({ "application/json": { "schema": schema } });
    // A test checks that every route has a verb.
    let verb = verb_of(route.method, route.path).unwrap_or_default();
    let tag = verb.split(' ').next().unwrap_or_default();
    let mut operation = json!({ "operationId": operation_id(verb), "tags": [tag], "summary": route.summary, "responses": {
        "default": { "description": "Refused or failed", "content": json_of(reference("Error")) } } });
    match route.answer {
        Some(answer) => {
            operation["responses"]["200"] =
                json!({ "description": "Done", "content": json_of(reference(answer)) });
        }
        None => operation["responses"]["204"] = json!({ "description": "Done" }),
    }
    if let Some(body) = route.body {
        operation["requestBody"] = json!({ "required": true, "content": json_of(reference(body)) });
    }
    if let Some((_, rest)) = route.path.split_once('{') {
        let name = rest.trim_end_matches('}');
        operation["parameters"] =
            json!([{ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }]);
    }
    operation
}

/// Returns the words of a verb in one, as generated clients name their functions: `targetList`.
fn operation_id(verb: &str) -> String {
    let mut id = String::new();
    for (at, word) in verb.split([' ', '-']).enumerate() {
        match (at, word.split_at_checked(1)) {
            (1.., Some((first, rest))) => id += &(first.to_uppercase() + rest),
            _ => id += word,
        }
    }
    id
}

/// Returns a reference to a schema by name; `[X]`: a list of them.
pub(super) fn reference(name: &str) -> Value {
    match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(item) => json!({ "type": "array", "items": reference(item) }),
        None => json!({ "$ref": format!("#/components/schemas/{name}") }),
    }
}

/// Returns the field names that the schema allows.
pub(super) fn fields(schema: &str) -> Vec<String> {
    schemas()[schema]["properties"]
        .as_object()
        .map(|known| known.keys().cloned().collect())
        .unwrap_or_default()
}

/// Returns the schema of an object with exactly these fields. Fields whose name ends in `?` are
/// optional.
fn object(fields: Value) -> Value {
    let Value::Object(fields) = fields else { return Value::Null };
    let required: Vec<&String> = fields.keys().filter(|name| !name.ends_with('?')).collect();
    let required = json!(required);
    let named = fields.into_iter().map(|(name, schema)| (name.trim_end_matches('?').to_string(), schema));
    let properties: Map<String, Value> = named.collect();
    json!({ "type": "object", "required": required, "properties": properties, "additionalProperties": false })
}

fn schemas() -> Value {
    let (text, flag, number) = (
        json!({ "type": "string" }),
        json!({ "type": "boolean" }),
        json!({ "type": "integer", "minimum": 0 }),
    );
    let maybe_number = json!({ "type": ["integer", "null"], "minimum": 0 });
    let rate = json!({ "type": "number", "minimum": 0 });
    let share = object(json!({ "limit": text, "share": rate }));
    let maybe_text = json!({ "type": ["string", "null"] });
    let texts = json!({ "type": "array", "items": text });
    let numbers = json!({ "type": "array", "items": number });
    let roles = json!({ "type": "array", "items": { "enum": ["mgmt", "meta", "storage"] } });
    let state = json!({ "enum": ["online", "probably-offline", "offline"] });
    let clients = json!({ "type": "string", "description": "ADDRESS/BITS, an address, local (the cluster's own nodes) or client:NAME" });
    let access = json!({ "enum": ["rw", "ro", "none"] });
    let squash = json!({ "enum": ["none", "root", "all"] });
    let scheme = json!({ "enum": ["single", "mirror:2", "mirror:3"] });
    let member_state = json!({ "enum": ["good", "needs-resync", "resyncing", "bad", "rebuilding"] });
    let resync_settings = object(json!({
        "rate?": maybe_number, "within_s?": maybe_number, "paused?": flag, "replace_after_s?": maybe_number,
    }));
    // Separate from the rest because of the macro's recursion limit.
    let scrub_settings =
        object(json!({ "every_s?": number, "rate?": number, "asked?": number, "stopped?": flag }));
    let scrub = object(json!({
        "target": number, "is_running": flag, "asked": number, "began_s": number, "ended_s": number, "bytes_done": number,
        "bytes_total": maybe_number, "files_done": number, "damaged": number, "mended": number, "missing": number, "stray": number,
        "hindrance?": text,
    }));
    let client = object(json!({
        "name": text, "state": { "enum": ["valid", "expires-soon", "expired", "revoked"] }, "ends_s": number,
        "last_s": maybe_number, "added_s": number, "sessions": maybe_number,
    }));
    let codes: Vec<&str> = HealthCode::ALL.iter().map(|code| code.name()).collect();
    let finding_code = json!({
        "type": "string", "examples": codes,
        "description": "what the finding is about; docs/reference/findings.md has the meaning of each code. Later versions may add codes",
    });
    let verdict = json!({ "enum": ["healthy", "warning", "critical"] });
    json!({
        "Any": {},
        "Error": object(json!({ "error": text, "hint": text })),
        "NodeChange": object(json!({ "name?": text, "rack?": maybe_text, "roles?": roles })),
        "NewTarget": object(json!({ "path": text, "pool?": text, "numa?": number })),
        "AddedTarget": object(json!({ "target": number })),
        "TargetChange": object(json!({ "pool?": text, "drain?": flag })),
        "Export": object(json!({ "clients": clients, "access": access, "squash": squash, "anon_uid": number, "anon_gid": number })),
        "ExportChange": object(json!({ "clients": clients, "access?": access, "squash?": squash, "anon_uid?": number, "anon_gid?": number })),
        "TokenRequest": object(json!({ "client?": flag, "uses?": number, "expires_s?": number })),
        "TokenInfo": object(json!({ "id": text, "roles": texts, "uses_left": number, "ends_s": number })),
        "NewClient": object(json!({ "name": text, "expires_s?": number })),
        "Client": client,
        "Revocation": object(json!({ "sessions": numbers, "unaware": numbers })),
        "Token": object(json!({ "token": text })),
        "Node": object(json!({
            "id": number, "name": text, "addresses": texts, "state": state, "version": text, "targets": numbers,
            "roles": roles, "silent_s": maybe_number,
            "rack?": text,
        })),
        "Target": object(json!({
            "id": number, "node": number, "node_name": text, "pool": number, "pool_name": text, "path": text, "state": state,
            "capacity": number, "free": number, "class": { "enum": ["normal", "low", "emergency"] }, "drain": flag,
            "progress?": reference("DrainProgress"),
        })),
        "DrainProgress": object(json!({
            "empty": flag, "files_left": maybe_number, "bytes_left": number, "files_moved": number, "bytes_moved": number,
            "rate": number, "remaining_s": maybe_number, "hindrance?": text, "groups_left?": number, "stuck?": text,
        })),
        "Pool": object(json!({
            "id": number, "name": text, "targets": number, "groups": number, "capacity": number, "free": number, "spare": number,
        })),
        "PoolChange": object(json!({ "name?": text, "spare?": number })),
        "Resync": object(json!({ "settings": resync_settings, "members": { "type": "array", "items": object(json!({
            "group": number, "target": number, "state": member_state, "progress?": reference("ResyncProgress"), "remaining_s?": number,
            "waits_for?": text,
        })) } })),
        "ResyncSettings": resync_settings,
        "Rebalance": object(json!({ "pool?": text, "dry_run?": flag })),
        "Recovery": object(json!({ "group": number, "from": number, "accept_loss?": flag })),
        "MembershipMove": object(json!({ "group": number, "from": number, "to": number })),
        "Group": object(json!({
            "id": number, "pool": number, "pool_name": text, "scheme": scheme, "members": numbers, "primary": maybe_number,
            "states?": { "type": "array", "items": member_state }, "since?": number, "leaving?": number, "revived?": number,
            "resyncs?": { "type": "array", "items": reference("ResyncProgress") },
            "racks?": { "type": "array", "items": maybe_text },
        })),
        "ResyncProgress": object(json!({
            "group": number, "target": number, "files_left": maybe_number, "bytes_left": maybe_number, "bytes_moved": number,
            "rate": number, "hindrance?": text,
        })),
        "ScrubSettings": scrub_settings,
        "Scrubs": object(json!({ "settings": reference("ScrubSettings"), "scrubs": { "type": "array", "items": scrub } })),
        "NewGroups": object(json!({ "pool?": text, "scheme": scheme })),
        "Session": object(json!({ "session": number, "client": text, "host": text, "address": text, "idle_s": maybe_number, "leases": maybe_number, "in_use": maybe_number })),
        "Health": object(json!({ "verdict": verdict, "findings": { "type": "array", "items": object(json!({
            "code": finding_code, "verdict": verdict, "what": text, "hint": text,
        })) }, "copies?": object(json!({
            "folder": text, "kept": number, "newest": maybe_text, "age_s": maybe_number, "failure": maybe_text,
        })), "store?": object(json!({
            "path": text, "used": number, "capacity": number, "free": number, "needed": number,
        })), "ceilings?": { "type": "array", "items": object(json!({ "place": text, "measured": maybe_text })) },
        "rates?": { "type": "array", "items": object(json!({
            "target": number, "read_bytes": rate, "written_bytes": rate, "reads": rate, "writes": rate,
            "one_drive_with?": numbers, "now?": share, "most?": share,
        })) } })),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::{Counterpart, ONLY_HTTP, VERBS};
    use std::collections::BTreeSet;

    #[test]
    fn every_route_has_a_verb_which_names_it() {
        let mut ids = BTreeSet::new();
        for route in ROUTES {
            let verb = verb_of(route.method, route.path);
            let verb = verb.unwrap_or_else(|| panic!("{} {} has no verb", route.method, route.path));
            let operation = operation(route);
            assert!(ids.insert(operation["operationId"].to_string()), "{verb} names two routes");
            assert_eq!(operation["tags"][0], verb.split(' ').next().unwrap());
        }
    }

    #[test]
    fn every_route_of_a_verb_exists() {
        let of_commands = VERBS.iter().filter_map(|verb| match verb.route {
            Counterpart::Route(route) => Some(route),
            Counterpart::None(_) => None,
        });
        for route in of_commands.chain(ONLY_HTTP.iter().map(|(route, ..)| *route)) {
            let exists = ROUTES.iter().any(|known| route == format!("{} {}", known.method, known.path));
            assert!(exists, "{route}");
        }
    }

    #[test]
    fn an_operation_id_is_one_word() {
        assert_eq!(operation_id("group resync status"), "groupResyncStatus");
        assert_eq!(operation_id("entry set-pattern"), "entrySetPattern");
        assert_eq!(operation_id("status"), "status");
    }
}
