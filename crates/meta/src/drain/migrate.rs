//! Migration of files to groups of another scheme or pool, while they are in use.
//!
//! A client requests it ([`wire::MetaOp::Migrate`]); the service does the work. Before a file's
//! migration begins, the service checks that there is enough space. Then the file's pattern names
//! the goal, so that new stripes are created there already, and a record says that the file is
//! migrating. The file moves stripe by stripe as from a draining target, and the record is deleted
//! when all have moved. So the next owner of the partition continues the migration. Every
//! intermediate state is valid, since each group has its own scheme.

use super::migrations::TaskEnd;
use super::stripe_move::{MoveRequest, StripeMover};
use super::{Drains, Migrations};
use crate::data::chunks::ChunkFiles;
use crate::limits::BACKGROUND_BATCH;
use crate::partition::executor::{CommandOutput, Executors};
use crate::partition::serving::Serving;
use crate::session::grace_period::GracePeriod;
use crate::session::table::{Session, Sessions};
use crate::store::transaction_view::View;
use namespace::{FilePlacement, Goal, MoveStep, ReadError, Writes};
use std::sync::Arc;
use types::{ClusterMap, Errno, Error, GroupId, InodeId, Layout, PartitionId, Result, SessionId};
use wire::{MetaOp, MetaReply};

/// Migrates files.
pub(crate) struct Migrator {
    pub executors: Arc<Executors>,
    pub sessions: Arc<Sessions>,
    pub grace: Arc<GracePeriod>,
    pub chunks: Arc<ChunkFiles>,
    pub drains: Arc<Drains>,
    pub migrations: Arc<Migrations>,
    pub mover: Arc<StripeMover>,
    pub serving: Arc<Serving>,
}

impl Migrations {
    /// Handles migration commands that have passed all checks.
    pub fn answer_migration(&self, op: &MetaOp, reply: &mut MetaReply) -> Result<()> {
        let MetaReply::Migration(moving) = reply else { return Ok(()) };
        let ino = match op {
            MetaOp::Migrate { ino, .. } | MetaOp::MigrationOf { ino } => *ino,
            _ => return Ok(()),
        };
        if let (MetaOp::Migrate { .. }, Some(wanted)) = (op, &moving) {
            self.request(ino, Goal { pool: wanted.pool, scheme: wanted.scheme })?;
        }
        // A recorded migration that this service hasn't started yet is reported as recorded.
        if let Some(status) = self.status(ino) {
            *moving = Some(Box::new(status));
        }
        Ok(())
    }

    /// Remembers why a file can't be migrated: the kernel passes only an error number to the
    /// application.
    pub fn record_refusal(&self, op: &MetaOp, error: &Error) {
        if let MetaOp::Migrate { ino, .. } = op
            && matches!(error.errno, Errno::EINVAL | Errno::ENODEV | Errno::ENOSPC | Errno::EAGAIN)
        {
            let goal = Goal { pool: types::PoolId(0), scheme: types::Scheme::Single };
            self.refuse(*ino, goal, error);
        }
    }
}

impl Migrator {
    /// Migrates files, until the service stops.
    pub async fn migrate_files(self: Arc<Self>) {
        let mut migrator = None;
        let mut partitions = Vec::new();
        loop {
            let _ = rt::timeout(self.migrations.idle_time(), self.migrations.work_available.wait()).await;
            self.migrations.work_available.clear();
            if self.serving.is_stopping() {
                return;
            }
            let executed = self.executors.serving();
            self.migrations.retain_partitions(|partition| executed.contains(&partition));
            if self.grace.is_on() {
                continue;
            }
            if partitions != executed {
                match self.find_migrations(&executed).await {
                    Ok(()) => partitions = executed,
                    Err(error) => tracing::warn!(%error, "recorded migrations can't be read now"),
                }
            }
            while let Some(ino) = self.migrations.next() {
                match self.migrator_session(&mut migrator) {
                    Ok(migrator) => rt::spawn(self.clone().run_migration(migrator, ino)),
                    Err(error) => drop(self.migrations.task_ended(ino, &Err(error))),
                }
            }
        }
    }

    /// The session that migrates files. It is created for the first file, since it shows in lists
    /// of sessions.
    fn migrator_session(&self, known: &mut Option<Arc<Session>>) -> Result<Arc<Session>> {
        if let Some(migrator) = known {
            return Ok(migrator.clone());
        }
        let migrator = self.sessions.register_local(SessionId::from_random(rt::secret_u64()))?;
        Ok(known.insert(migrator).clone())
    }

    async fn find_migrations(&self, partitions: &[PartitionId]) -> Result<()> {
        for &partition in partitions {
            let mut after = InodeId(0);
            loop {
                let read = |view: &View<'_>| namespace::migrating(view, partition, after, BACKGROUND_BATCH);
                let page = self.executors.read(partition, read).await?;
                let Some(&(last, _)) = page.last() else { break };
                after = last;
                page.into_iter().for_each(|(ino, goal)| self.migrations.add_recorded(ino, goal));
            }
        }
        Ok(())
    }

    async fn run_migration(self: Arc<Self>, migrator: Arc<Session>, ino: InodeId) {
        let outcome = self.migrate_file(&migrator, ino).await;
        if let Err(error) = &outcome {
            tracing::debug!(ino = ino.0, %error, "an attempt to migrate a file failed");
        }
        if self.migrations.task_ended(ino, &outcome) == TaskEnd::GivenUp {
            let error = outcome.err().unwrap_or_else(|| Errno::EIO.into());
            tracing::warn!(ino = ino.0, %error, "the migration of a file was given up: it stays in its groups");
            if let Err(error) = self.forget_migration(ino).await {
                tracing::warn!(ino = ino.0, %error, "the record of a migration can't be deleted: the service retries it after its next start");
            }
        }
        self.migrations.work_available.set();
    }

    /// Migrates a file; returns the goal that it has reached.
    async fn migrate_file(&self, migrator: &Arc<Session>, ino: InodeId) -> Result<Goal> {
        self.drains.check_local_mount()?;
        loop {
            let Some((goal, is_noted)) = self.migrations.goal(ino) else {
                return Err(Errno::ECANCELED.into());
            };
            let placed =
                self.executors.read(ino.partition(), |view| namespace::file_placement(view, ino)).await?;
            let Some(file) = placed else {
                self.forget_migration(ino).await?;
                return Ok(goal);
            };
            let map = self.chunks.current_map();
            let remaining = stripes_to_move(&map, &file, goal);
            let (Some(layout), Some(&stripe)) = (&file.layout, remaining.first()) else {
                if self.finish_migration(ino, goal).await? {
                    return Ok(goal);
                }
                continue;
            };
            let sizes = self.sizes(ino, &file, layout, &remaining).await?;
            let kind = (goal.pool, goal.scheme);
            let plan =
                |reserved: &layout::ReservedBytes| layout::plan_placement(&map, kind, &sizes, reserved);
            self.migrations.reserve_space(ino, sizes.iter().sum(), plan)?;
            if !is_noted {
                self.begin_migration(ino, goal).await?;
                self.migrations.goal_recorded(ino, goal);
                continue;
            }
            let (bytes, reserved) = (sizes[0], self.migrations.reserved_by_others(ino));
            let lacks_room = |group: GroupId| layout::available_space(&map, group, &reserved) < bytes;
            let copied = |bytes| self.migrations.copied(ino, bytes);
            let request = MoveRequest { kind, lacks_space: &lacks_room, copied: &copied };
            self.mover.move_stripe(migrator, ino, (layout.clone(), stripe), &request).await?;
            self.migrations.stripe_moved(ino, bytes);
        }
    }

    /// Bytes that the stripes to be moved occupy.
    async fn sizes(
        &self,
        ino: InodeId,
        file: &FilePlacement,
        layout: &Layout,
        remaining: &[usize],
    ) -> Result<Vec<u64>> {
        if file.inline {
            return Ok(vec![0; remaining.len()]);
        }
        let all = self.chunks.allocated(ino, layout).await?;
        Ok(remaining.iter().map(|&stripe| all[stripe]).collect())
    }

    async fn begin_migration(&self, ino: InodeId, goal: Goal) -> Result<()> {
        // If the file is gone or has changed, the caller checks it again.
        self.commit_step(ino, |view| namespace::begin_migration(view, ino, goal)).await.map(drop)
    }

    /// Deletes the record; returns false if a stripe is still elsewhere.
    async fn finish_migration(&self, ino: InodeId, goal: Goal) -> Result<bool> {
        let map = self.chunks.current_map();
        let is_there = |group: GroupId| has_goal(&map, group, goal);
        self.commit_step(ino, |view| namespace::finish_migration(view, (ino, goal), is_there)).await
    }

    async fn forget_migration(&self, ino: InodeId) -> Result<()> {
        self.commit_step(ino, |view| namespace::forget_migration(view, ino).map(MoveStep::Writes))
            .await
            .map(drop)
    }

    async fn commit_step(
        &self,
        ino: InodeId,
        step: impl Fn(&View<'_>) -> Result<MoveStep, ReadError>,
    ) -> Result<bool> {
        let command = |view: &View<'_>| match step(view) {
            Ok(MoveStep::Writes(writes)) => Ok(CommandOutput { answer: true, writes }),
            Ok(_) => Ok(CommandOutput { answer: false, writes: Writes::new() }),
            Err(error) => Err(error.into()),
        };
        self.executors.transact_without_leases(ino.partition(), command).await
    }
}

/// The stripes of a file that aren't in groups of the goal.
fn stripes_to_move(map: &ClusterMap, file: &FilePlacement, goal: Goal) -> Vec<usize> {
    let groups = file.layout.iter().flat_map(|layout| layout.groups.iter().enumerate());
    groups.filter(|(_, group)| !has_goal(map, **group, goal)).map(|(stripe, _)| stripe).collect()
}

fn has_goal(map: &ClusterMap, group: GroupId, goal: Goal) -> bool {
    map.group(group).is_some_and(|group| (group.pool, group.scheme) == (goal.pool, goal.scheme))
}
