//! One file that is migrated by the metadata service.

use crate::cmd::entry_info::{read_entry_info, xattr_error};
use rustix::fs::XattrFlags;
use rustix::io::Errno as Os;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use types::{Errno, Error, Result, Scheme};

/// Extended attributes through which the mount accepts the request, and returns its progress.
const REQUEST_ATTRIBUTE: &str = "weft.migrate";
const STATE_ATTRIBUTE: &str = "weft.migration";

/// Most requests for a file whose service has forgotten it, as after a restart before the migration
/// began.
const MAX_REQUESTS: u32 = 100;
/// Most consecutive time-outs of requests for a file, a minute each as a rule: a client that has
/// the file open may be disconnected.
const MAX_TIMEOUTS: u32 = 10;

/// Requested redundancy and pool.
pub struct MigrationRequest {
    pub scheme: Option<Scheme>,
    pub pool: Option<String>,
}

impl MigrationRequest {
    pub fn to_json(&self) -> Value {
        let mut request = json!({});
        if let Some(scheme) = self.scheme {
            request["scheme"] = json!(scheme);
        }
        if let Some(pool) = &self.pool {
            request["pool"] = json!(pool);
        }
        request
    }

    /// Returns whether a pattern or group has the requested redundancy and pool.
    fn is_satisfied_by(&self, current: &Value) -> bool {
        let scheme = self.scheme.is_none_or(|scheme| current["scheme"] == json!(scheme));
        scheme && self.pool.as_ref().is_none_or(|pool| current["pool"] == json!(pool))
    }

    /// Returns whether all groups of a file and its pattern for later groups match the request.
    fn is_satisfied(&self, entry: &Value) -> bool {
        let mut groups = entry["layout"]["groups"].as_array().into_iter().flatten();
        self.is_satisfied_by(&entry["pattern"]) && groups.all(|group| self.is_satisfied_by(group))
    }
}

/// The mount's answer about the migration of a file.
#[derive(Deserialize)]
struct State {
    bytes_moved: u64,
    given_up: bool,
    error: Option<Cause>,
}

#[derive(Deserialize)]
struct Cause {
    errno: i32,
    message: String,
    hint: String,
}

/// FileProgress of a file.
pub enum FileProgress {
    /// In progress, with this many bytes copied.
    Moving(u64),
    /// Complete.
    Done,
    /// The file was deleted.
    Deleted,
    Failed(Error),
}

/// A file in migration.
pub struct File {
    pub path: PathBuf,
    pub bytes: u64,
    attempts: u32,
    /// Whether the service accepted the last request.
    is_accepted: bool,
    /// Number of consecutive time-outs.
    timeouts: u32,
    /// What delays it for now.
    pub hindrance: Option<String>,
}

impl File {
    pub fn new(path: PathBuf, bytes: u64) -> File {
        File { path, bytes, attempts: 0, is_accepted: false, timeouts: 0, hindrance: None }
    }

    /// Returns whether the file matches the request already.
    pub fn is_migrated(&self, request: &MigrationRequest) -> Result<bool> {
        Ok(request.is_satisfied(&read_entry_info(&self.path)?))
    }

    /// Sends the request, or reads the progress.
    pub fn advance(&mut self, request: &MigrationRequest) -> FileProgress {
        let done = self.step(request);
        let is_timeout = done.as_ref().is_err_and(|error| error.errno == Errno::ETIMEDOUT);
        self.timeouts = if is_timeout { self.timeouts + 1 } else { 0 };
        match done {
            Ok(progress) => progress,
            Err(error) if is_timeout && self.timeouts < MAX_TIMEOUTS => {
                self.hindrance = Some(error.message.into_owned());
                FileProgress::Moving(0)
            }
            Err(error) if error.errno == Errno::ENOENT => FileProgress::Deleted,
            Err(error) => FileProgress::Failed(error),
        }
    }

    fn step(&mut self, request: &MigrationRequest) -> Result<FileProgress> {
        if !self.is_accepted {
            self.ask(request)?;
            return Ok(FileProgress::Moving(0));
        }
        match self.state()? {
            Some(state) if state.given_up => Err(state.cause(&self.path)),
            Some(state) => {
                self.hindrance = state.error.map(|error| error.message);
                Ok(FileProgress::Moving(state.bytes_moved))
            }
            None if self.is_migrated(request)? => Ok(FileProgress::Done),
            // The service was stopped before the migration began, so the next one gets the request.
            None if self.attempts < MAX_REQUESTS => {
                self.is_accepted = false;
                Ok(FileProgress::Moving(0))
            }
            None => {
                let message = format!("{}: the metadata service forgot it repeatedly", self.path.display());
                Err(Error::new(Errno::EIO, message)
                    .hint("see its log; weft health shows the state of the cluster"))
            }
        }
    }

    fn ask(&mut self, request: &MigrationRequest) -> Result<()> {
        self.attempts += 1;
        let text = request.to_json().to_string();
        match rustix::fs::setxattr(&self.path, REQUEST_ATTRIBUTE, text.as_bytes(), XattrFlags::empty()) {
            Ok(()) => self.is_accepted = true,
            // The service's queue is full. The request is sent again in a moment.
            Err(Os::AGAIN) => self.attempts -= 1,
            Err(cause) => return Err(self.refused(cause)),
        }
        Ok(())
    }

    /// Explains an error: the kernel returns only its number, so the cause is read from the state.
    fn refused(&self, cause: Os) -> Error {
        let path = self.path.display();
        match cause {
            Os::PERM | Os::ACCESS => Error::new(Errno::EPERM, format!("{path}: not permitted"))
                .hint("only the owner of a file and root may migrate it"),
            Os::INVAL | Os::NODEV | Os::NOSPC => match self.state() {
                Ok(Some(state)) if state.given_up => state.cause(&self.path),
                _ => xattr_error(&self.path, cause),
            },
            _ => xattr_error(&self.path, cause),
        }
    }

    fn state(&self) -> Result<Option<State>> {
        /// Larger than a state with the longest texts, in bytes.
        const MAX_STATE_BYTES: usize = 16 * 1024;
        let mut buffer = vec![0; MAX_STATE_BYTES];
        let length = rustix::fs::getxattr(&self.path, STATE_ATTRIBUTE, &mut buffer[..])
            .map_err(|cause| xattr_error(&self.path, cause))?;
        serde_json::from_slice(&buffer[..length]).map_err(|error| {
            Error::new(Errno::EPROTO, format!("invalid answer about {}: {error}", self.path.display()))
                .hint("command and mounted file system may be of different versions")
        })
    }
}

impl State {
    fn cause(&self, path: &Path) -> Error {
        match &self.error {
            Some(Cause { errno, message, hint }) => {
                Error::new(Errno::Number(*errno), format!("{}: {message}", path.display())).hint(hint.clone())
            }
            None => Error::new(Errno::EIO, format!("{} was given up", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_migrated_when_all_groups_and_its_pattern_match() {
        let request = MigrationRequest { scheme: Some(Scheme::Mirror(2)), pool: None };
        assert_eq!(request.to_json(), json!({ "scheme": "mirror:2" }));
        let entry = |pattern: &str, groups: &[&str]| {
            let group = |scheme: &&str| json!({ "scheme": scheme, "pool": "default" });
            let groups: Vec<Value> = groups.iter().map(group).collect();
            json!({ "pattern": { "scheme": pattern, "pool": "default" }, "layout": { "groups": groups } })
        };
        assert!(request.is_satisfied(&entry("mirror:2", &["mirror:2", "mirror:2"])));
        assert!(!request.is_satisfied(&entry("mirror:2", &["mirror:2", "single"])), "half way");
        assert!(!request.is_satisfied(&entry("single", &["mirror:2"])), "what it gets later would be single");
        let inline = json!({ "pattern": { "scheme": "mirror:2", "pool": "default" }, "layout": null });
        assert!(request.is_satisfied(&inline));
        let pool = MigrationRequest { scheme: None, pool: Some("cold".into()) };
        assert!(!pool.is_satisfied(&inline) && pool.to_json() == json!({ "pool": "cold" }));
    }
}
