//! One file that is handed to the metadata service.

use crate::cmd::entry_info::{describe, foreign};
use rustix::fs::XattrFlags;
use rustix::io::Errno as Os;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use types::{Errno, Error, Result, Scheme};

/// The attributes through which the mount takes the wish, and tells how far it is.
const ASK: &str = "weft.migrate";
const STATE: &str = "weft.migration";

/// How often a file is asked for again whose service forgot it, as one does that is started anew
/// before it began.
const MAX_ASKS: u32 = 100;
/// How often in a row a file may be held up for as long as a request waits, a minute as a rule: a
/// client that has it may be cut off.
const MAX_HELD_UP: u32 = 10;

/// What files are to have.
pub struct Wish {
    pub scheme: Option<Scheme>,
    pub pool: Option<String>,
}

impl Wish {
    pub fn to_json(&self) -> Value {
        let mut wish = json!({});
        if let Some(scheme) = self.scheme {
            wish["scheme"] = json!(scheme);
        }
        if let Some(pool) = &self.pool {
            wish["pool"] = json!(pool);
        }
        wish
    }

    /// Whether something that is described so has it.
    fn is_met_by(&self, kept: &Value) -> bool {
        let scheme = self.scheme.is_none_or(|scheme| kept["scheme"] == json!(scheme));
        scheme && self.pool.as_ref().is_none_or(|pool| kept["pool"] == json!(pool))
    }

    /// Whether all of a file is so, and what it gets later.
    fn is_met(&self, entry: &Value) -> bool {
        let mut groups = entry["layout"]["groups"].as_array().into_iter().flatten();
        self.is_met_by(&entry["pattern"]) && groups.all(|group| self.is_met_by(group))
    }
}

/// What the mount says of a file on its way.
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

/// How a file is.
pub enum Progress {
    /// On its way, with so many bytes copied.
    Moving(u64),
    /// There.
    Done,
    /// It has been deleted.
    Gone,
    Failed(Error),
}

/// A file on its way.
pub struct File {
    pub path: PathBuf,
    pub bytes: u64,
    asked: u32,
    /// The service took the last wish.
    is_taken: bool,
    /// Questions in a row that were not answered in time.
    held_up: u32,
    /// What keeps it for now.
    pub hindrance: Option<String>,
}

impl File {
    pub fn new(path: PathBuf, bytes: u64) -> File {
        File { path, bytes, asked: 0, is_taken: false, held_up: 0, hindrance: None }
    }

    /// Whether it needs nothing.
    pub fn is_there(&self, wish: &Wish) -> Result<bool> {
        Ok(wish.is_met(&describe(&self.path)?))
    }

    /// Asks for it to be moved, or how far it is.
    pub fn go_on(&mut self, wish: &Wish) -> Progress {
        let done = self.step(wish);
        let is_held_up = done.as_ref().is_err_and(|error| error.errno == Errno::ETIMEDOUT);
        self.held_up = if is_held_up { self.held_up + 1 } else { 0 };
        match done {
            Ok(progress) => progress,
            Err(error) if is_held_up && self.held_up < MAX_HELD_UP => {
                self.hindrance = Some(error.message.into_owned());
                Progress::Moving(0)
            }
            Err(error) if error.errno == Errno::ENOENT => Progress::Gone,
            Err(error) => Progress::Failed(error),
        }
    }

    fn step(&mut self, wish: &Wish) -> Result<Progress> {
        if !self.is_taken {
            self.ask(wish)?;
            return Ok(Progress::Moving(0));
        }
        match self.state()? {
            Some(state) if state.given_up => Err(state.cause(&self.path)),
            Some(state) => {
                self.hindrance = state.error.map(|error| error.message);
                Ok(Progress::Moving(state.bytes_moved))
            }
            None if self.is_there(wish)? => Ok(Progress::Done),
            // The service that had it was ended before it began. The next one is asked.
            None if self.asked < MAX_ASKS => {
                self.is_taken = false;
                Ok(Progress::Moving(0))
            }
            None => {
                let message =
                    format!("{}: the metadata service forgets it again and again", self.path.display());
                Err(Error::new(Errno::EIO, message)
                    .hint("look at its log; weft health says how the cluster is"))
            }
        }
    }

    fn ask(&mut self, wish: &Wish) -> Result<()> {
        self.asked += 1;
        let text = wish.to_json().to_string();
        match rustix::fs::setxattr(&self.path, ASK, text.as_bytes(), XattrFlags::empty()) {
            Ok(()) => self.is_taken = true,
            // There is too much to do already. Asked again in a moment.
            Err(Os::AGAIN) => self.asked -= 1,
            Err(cause) => return Err(self.refused(cause)),
        }
        Ok(())
    }

    /// The kernel hands back a number only; the cause is asked for.
    fn refused(&self, cause: Os) -> Error {
        let path = self.path.display();
        match cause {
            Os::PERM | Os::ACCESS => Error::new(Errno::EPERM, format!("{path}: not permitted"))
                .hint("the owner of a file and root may have it moved"),
            Os::INVAL | Os::NODEV | Os::NOSPC => match self.state() {
                Ok(Some(state)) if state.given_up => state.cause(&self.path),
                _ => foreign(&self.path, cause),
            },
            _ => foreign(&self.path, cause),
        }
    }

    fn state(&self) -> Result<Option<State>> {
        /// More than a state with the longest texts has, bytes.
        const MOST: usize = 16 * 1024;
        let mut buffer = vec![0; MOST];
        let length = rustix::fs::getxattr(&self.path, STATE, &mut buffer[..])
            .map_err(|cause| foreign(&self.path, cause))?;
        serde_json::from_slice(&buffer[..length]).map_err(|error| {
            Error::new(
                Errno::EPROTO,
                format!("the answer about {} is not understood: {error}", self.path.display()),
            )
            .hint("command and mounted file system may be of different versions")
        })
    }
}

impl State {
    fn cause(&self, path: &Path) -> Error {
        match &self.error {
            Some(Cause { errno, message, hint }) => {
                Error::new(Errno(*errno), format!("{}: {message}", path.display())).hint(hint.clone())
            }
            None => Error::new(Errno::EIO, format!("{} was given up", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_when_all_groups_and_its_pattern_are() {
        let wish = Wish { scheme: Some(Scheme::Mirror(2)), pool: None };
        assert_eq!(wish.to_json(), json!({ "scheme": "mirror:2" }));
        let entry = |pattern: &str, groups: &[&str]| {
            let group = |scheme: &&str| json!({ "scheme": scheme, "pool": "default" });
            let groups: Vec<Value> = groups.iter().map(group).collect();
            json!({ "pattern": { "scheme": pattern, "pool": "default" }, "layout": { "groups": groups } })
        };
        assert!(wish.is_met(&entry("mirror:2", &["mirror:2", "mirror:2"])));
        assert!(!wish.is_met(&entry("mirror:2", &["mirror:2", "single"])), "half way");
        assert!(!wish.is_met(&entry("single", &["mirror:2"])), "what it gets later would be single");
        let inline = json!({ "pattern": { "scheme": "mirror:2", "pool": "default" }, "layout": null });
        assert!(wish.is_met(&inline));
        let pool = Wish { scheme: None, pool: Some("cold".into()) };
        assert!(!pool.is_met(&inline) && pool.to_json() == json!({ "pool": "cold" }));
    }
}
