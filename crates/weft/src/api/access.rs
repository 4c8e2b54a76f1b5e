//! Authentication and authorization of callers: by certificate, or by a token from a file in the
//! node's directory.

use super::http::HttpRequest;
use crate::node_config::write_atomically;
use crate::output::os_error;
use std::io::Read;
use std::path::Path;
use types::{ClusterMap, NodeId, Result, Role};

/// File with the administrators' token, in a node's directory.
const TOKEN_FILE: &str = "api.token";

/// File with the tokens of read-only programs, one per line.
const READ_TOKENS_FILE: &str = "api.read-tokens";

/// Random bytes in a new token.
const TOKEN_BYTES: usize = 32;

/// Rights of a caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rights {
    /// Only `GET` and `HEAD`.
    Read,
    /// All methods.
    Administrate,
}

impl Rights {
    /// Returns whether these rights cover a request with this method.
    pub(super) fn allow(self, method: &str) -> bool {
        self == Rights::Administrate || matches!(method, "GET" | "HEAD")
    }
}

/// The tokens of a node.
#[derive(Clone, PartialEq, Eq)]
pub struct Tokens {
    /// Token of administrators.
    pub administrate: String,
    /// Tokens of read-only programs.
    pub read: Vec<String>,
}

impl Tokens {
    /// Reads the tokens from a node's directory, and creates one of each kind if its file has none.
    pub fn load_or_create(dir: &Path) -> Result<Tokens> {
        let mut administrate = read_or_create_tokens(&dir.join(TOKEN_FILE))?;
        let read = read_or_create_tokens(&dir.join(READ_TOKENS_FILE))?;
        Ok(Tokens { administrate: administrate.swap_remove(0), read })
    }

    fn rights(&self, token: &str) -> Option<Rights> {
        // Every token is compared, even after a match, so that the time doesn't depend on which one
        // matches.
        let is_reader =
            self.read.iter().fold(false, |found, known| found | equals_in_constant_time(known, token));
        match equals_in_constant_time(&self.administrate, token) {
            true => Some(Rights::Administrate),
            false => is_reader.then_some(Rights::Read),
        }
    }
}

/// Returns the tokens in a file, without comments. Creates the file with a random token if it has
/// none.
///
/// # Errors
/// `EACCES` if another user may read the file: such a token proves nothing.
fn read_or_create_tokens(path: &Path) -> Result<Vec<String>> {
    let failed = |e: std::io::Error| os_error(path.display(), &e);
    let mut text = String::new();
    match std::fs::File::open(path) {
        Ok(mut file) => {
            identity::require_private_file(path, &file.metadata().map_err(failed)?)?;
            file.read_to_string(&mut text).map_err(failed)?;
        }
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
        Err(_) => {}
    }
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let tokens: Vec<String> = lines.map(String::from).collect();
    if !tokens.is_empty() {
        return Ok(tokens);
    }
    let token: String = rt::secret_bytes::<TOKEN_BYTES>().iter().map(|byte| format!("{byte:02x}")).collect();
    write_atomically(path, &format!("{token}\n"), 0o600)?;
    Ok(vec![token])
}

/// Compares in constant time for tokens of the same length.
fn equals_in_constant_time(token: &str, given: &str) -> bool {
    let (given, token) = (given.as_bytes(), token.as_bytes());
    given.len() == token.len() && given.iter().zip(token).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// Returns the caller's rights; `None`: none at all. A node's certificate has the rights of the
/// roles that the cluster map gives the node: the management node may administrate and other nodes
/// may read, as over their own connections.
pub(super) fn rights_of(
    tokens: &Tokens,
    node: Option<NodeId>,
    map: &ClusterMap,
    request: &HttpRequest,
) -> Option<Rights> {
    let by_certificate =
        node.and_then(|node| map.node(node)).map(|node| match node.roles.contains(&Role::Mgmt) {
            true => Rights::Administrate,
            false => Rights::Read,
        });
    let by_token = request.token.as_deref().and_then(|token| tokens.rights(token));
    match (by_certificate, by_token) {
        (Some(Rights::Administrate), _) | (_, Some(Rights::Administrate)) => Some(Rights::Administrate),
        (certificate, token) => certificate.or(token),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Node, NodeState};

    #[test]
    fn tokens_are_made_once_and_kept_in_files_of_their_owner() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let made = Tokens::load_or_create(dir.path()).unwrap();
        assert!(made.read.len() == 1 && made.read[0] != made.administrate);
        assert!(Tokens::load_or_create(dir.path()).unwrap() == made);
        for name in [TOKEN_FILE, READ_TOKENS_FILE] {
            let mode = std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        std::fs::write(dir.path().join(READ_TOKENS_FILE), "# monitoring\none\n\n two \n").unwrap();
        assert_eq!(Tokens::load_or_create(dir.path()).unwrap().read, ["one", "two"]);
    }

    #[test]
    fn a_certificate_counts_for_the_roles_of_its_node_and_a_token_for_its_file() {
        let node = |id, roles: &[Role]| Node {
            id: NodeId(id),
            name: format!("n{id}"),
            addresses: vec![],
            roles: roles.to_vec(),
            state: NodeState::Online,
            version: String::new(),
            rack: None,
        };
        let nodes = vec![node(1, &[Role::Mgmt, Role::Meta]), node(2, &[Role::Storage])];
        let map = ClusterMap { nodes, ..ClusterMap::default() };
        let tokens = Tokens { administrate: "sesame".into(), read: vec!["one".into(), "two".into()] };
        let (read, administrate) = (Some(Rights::Read), Some(Rights::Administrate));
        for (node, token, expected) in [
            (None, None, None),
            (None, Some("sesame"), administrate),
            (None, Some("sesamo"), None),
            (None, Some(""), None),
            (None, Some("two"), read),
            (Some(1), None, administrate),
            (Some(2), None, read),
            (Some(2), Some("sesame"), administrate),
            (Some(2), Some("wrong"), read),
            // A removed node: the map doesn't contain it.
            (Some(3), None, None),
        ] {
            let request = HttpRequest {
                method: "GET".into(),
                path: "/".into(),
                query: String::new(),
                body: vec![],
                token: token.map(String::from),
            };
            let rights = rights_of(&tokens, node.map(NodeId), &map, &request);
            assert_eq!(rights, expected, "node {node:?}, token {token:?}");
        }
        assert!(Rights::Read.allow("GET") && Rights::Read.allow("HEAD") && !Rights::Read.allow("DELETE"));
        assert!(Rights::Administrate.allow("DELETE"));
    }
}
