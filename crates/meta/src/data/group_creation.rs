//! On-demand creation of groups: when a directory's pattern or a migration needs groups of a scheme
//! that a pool doesn't have yet.

use crate::limits::GROUPS_TIMEOUT;
use crate::partition::executor::CommandOrigin;
use crate::service::command::{CommandAnswer, Commands};
use crate::session::table::Session;
use net::{Deadline, LocalFuture};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use types::{Errno, Error, Group, Result, Scheme};
use wire::{MetaOp, MetaRequest, PatternChange};

/// Creates groups: management.
pub trait GroupCreator: Send + Sync {
    /// Creates the groups that a pool should have of a scheme.
    fn make<'a>(&'a self, pool: &'a str, scheme: Scheme) -> LocalFuture<'a, Result<()>>;
}

/// Creates groups on demand.
pub(crate) struct OnDemandGroups {
    commands: Arc<Commands>,
    creator: OnceLock<Arc<dyn GroupCreator>>,
}

impl OnDemandGroups {
    pub fn new(commands: Arc<Commands>) -> OnDemandGroups {
        OnDemandGroups { commands, creator: OnceLock::new() }
    }

    /// Sets the group creator. Only the first call has an effect.
    pub fn set_creator(&self, creator: Arc<dyn GroupCreator>) {
        let _ = self.creator.set(creator);
    }

    /// Executes a command. If it needs groups that don't exist, creates them and executes it again.
    pub async fn execute(
        &self,
        request: &MetaRequest,
        session: &Arc<Session>,
        deadline: &Deadline,
    ) -> Result<CommandAnswer> {
        let refused = match self.commands.execute(CommandOrigin::Command, request, session, deadline).await {
            Err(error) if error.errno == Errno::ENODEV => error,
            answer => return answer,
        };
        let (ino, change) = match &request.op {
            MetaOp::SetPattern { dir, change } => (*dir, change.clone()),
            MetaOp::Migrate { ino, pool, scheme } => {
                let (pool, scheme) = (pool.clone(), scheme.clone());
                (*ino, PatternChange { pool, scheme, ..PatternChange::default() })
            }
            _ => return Err(refused),
        };
        let map = self.commands.map.load();
        let missing = self
            .commands
            .executors
            .read(ino.partition(), |view| namespace::missing_groups(view, &map, ino, &change))
            .await?;
        let (Some((pool, scheme)), Some(creator)) = (missing, self.creator.get()) else {
            return Err(refused);
        };
        creator.make(&pool, scheme).await?;
        self.await_groups(&pool, scheme).await?;
        self.commands.execute(CommandOrigin::Command, request, session, deadline).await
    }

    /// Waits until this process's map has the groups.
    async fn await_groups(&self, pool: &str, scheme: Scheme) -> Result<()> {
        let end_ns = rt::monotonic_ns().saturating_add(GROUPS_TIMEOUT.as_nanos() as u64);
        loop {
            let map = self.commands.map.load();
            let id = map.pool_named(pool).map(|pool| pool.id);
            let is_made =
                |group: &Group| Some(group.pool) == id && group.scheme == scheme && !group.is_lost();
            if map.groups.iter().any(is_made) {
                return Ok(());
            }
            let left_ns = end_ns.saturating_sub(rt::monotonic_ns());
            if left_ns == 0 {
                let message = format!(
                    "groups of scheme {scheme} were created in pool {pool}, but the cluster map of this service doesn't show them yet"
                );
                return Err(Error::new(Errno::EAGAIN, message).hint("try again in a moment"));
            }
            let changed = self.commands.map.changed_since(map.epoch);
            rt::timeout(Duration::from_nanos(left_ns), changed).await;
        }
    }
}
