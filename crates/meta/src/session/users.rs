//! Users of a session: what the client has reported of them beyond their ids.

use crate::limits::{GROUPS_PER_USER, USERS_PER_SESSION};
use namespace::Caller;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use types::{Credentials, Errno, Error, HashMap, Result};

/// The supplementary groups of a user.
#[derive(Debug)]
pub(crate) struct Groups(Vec<u32>);

impl Groups {
    /// The user with these ids and groups.
    pub fn caller(&self, credentials: Credentials) -> Caller<'_> {
        Caller { groups: &self.0, ..Caller::of(credentials) }
    }
}

/// The users whose groups a session's client has reported; the oldest are dropped, and reported
/// again.
///
/// Process ids are reused. So this stores groups only, which are checked in addition to the
/// client's kernel. Where that checks nothing, the client first reports the user again. Linux
/// capabilities come with each request.
#[derive(Default)]
pub(crate) struct SessionUsers {
    state: Mutex<State>,
}

/// A user in a process: one process may act for several users.
type User = (u32, u32, u32);

fn user(credentials: Credentials) -> User {
    (credentials.uid, credentials.gid, credentials.pid)
}

#[derive(Default)]
struct State {
    known: HashMap<User, Arc<Groups>>,
    /// In the order in which they were reported, each once.
    order: VecDeque<User>,
}

impl SessionUsers {
    /// The reported groups of a user.
    pub fn find(&self, credentials: Credentials) -> Option<Arc<Groups>> {
        self.state.lock().known.get(&user(credentials)).cloned()
    }

    /// Stores the groups of a user.
    ///
    /// # Errors
    /// `E2BIG` for more than [`GROUPS_PER_USER`] groups.
    pub fn set_groups(&self, credentials: Credentials, groups: Vec<u32>) -> Result<()> {
        if groups.len() > GROUPS_PER_USER {
            let message = format!(
                "user {} is in {} groups, at most {GROUPS_PER_USER} are supported",
                credentials.uid,
                groups.len()
            );
            return Err(Error::new(Errno::E2BIG, message));
        }
        let mut state = self.state.lock();
        if state.known.insert(user(credentials), Arc::new(Groups(groups))).is_none() {
            state.order.push_back(user(credentials));
        }
        if state.order.len() > USERS_PER_SESSION
            && let Some(oldest) = state.order.pop_front()
        {
            state.known.remove(&oldest);
        }
        Ok(())
    }
}
