//! Migrations to another scheme or pool that this service knows, with their progress.

use crate::limits::{
    MAX_GIVEN_UP, MAX_MIGRATIONS, MIGRATE_MAX_RETRY, MIGRATE_POLL, MIGRATE_RETRY, MIGRATE_TIMEOUT,
    MIGRATE_TRIES, MIGRATIONS_AT_ONCE,
};
use layout::ReservedBytes;
use namespace::Goal;
use parking_lot::Mutex;
use rt::sync::Event;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{Errno, Error, InodeId, PartitionId, Result};
use wire::Migration;

/// All migrations.
#[derive(Default)]
pub(crate) struct Migrations {
    table: Mutex<Table>,
    /// Set when there may be work to do.
    pub work_available: Event,
}

#[derive(Default)]
struct Table {
    jobs: BTreeMap<InodeId, Job>,
    /// Why migrations failed, with the order in which they did.
    given_up: BTreeMap<InodeId, (u64, Migration)>,
    order: u64,
}

struct Job {
    goal: Goal,
    /// The recorded goal.
    recorded_goal: Option<Goal>,
    is_running: bool,
    /// Bytes of stripes that have moved, bytes copied of the current one, and bytes in total.
    done: u64,
    copied: u64,
    bytes: u64,
    /// Space that the migration reserves at targets.
    reserved: ReservedBytes,
    last_error: Option<Error>,
    /// Failures since the last progress, and when the first of them was.
    failures: u32,
    no_progress_since_ns: u64,
    due_ns: u64,
}

/// Outcome of a migration task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TaskEnd {
    /// Nothing is left to do here.
    Done,
    /// It is tried again.
    Retry,
    /// The file stays where it is. The record has to be deleted.
    GivenUp,
}

impl Job {
    fn new(goal: Goal, recorded_goal: Option<Goal>) -> Job {
        Job {
            goal,
            recorded_goal,
            is_running: false,
            done: 0,
            copied: 0,
            bytes: 0,
            reserved: ReservedBytes::new(),
            last_error: None,
            failures: 0,
            no_progress_since_ns: 0,
            due_ns: 0,
        }
    }

    fn status(&self) -> Migration {
        Migration {
            pool: self.goal.pool,
            scheme: self.goal.scheme,
            bytes: self.bytes,
            bytes_moved: (self.done + self.copied).min(self.bytes),
            error: self.last_error.clone(),
            given_up: false,
        }
    }

    /// Whether further attempts are useless.
    fn is_permanent(&self, errno: Errno, now_ns: u64) -> bool {
        let has_begun = self.recorded_goal == Some(self.goal);
        match errno {
            Errno::EOPNOTSUPP | Errno::EINVAL => true,
            // What is impossible is refused before it begins.
            Errno::ENOSPC | Errno::ENODEV if !has_begun => true,
            Errno::ENOSPC | Errno::ENODEV | Errno::EIO if self.failures >= MIGRATE_TRIES => true,
            _ => now_ns - self.no_progress_since_ns > MIGRATE_TIMEOUT.as_nanos() as u64,
        }
    }
}

impl Migrations {
    /// Requests the migration of a file.
    pub fn request(&self, ino: InodeId, goal: Goal) -> Result<()> {
        let mut table = self.table.lock();
        table.given_up.remove(&ino);
        if table.jobs.len() >= MAX_MIGRATIONS && !table.jobs.contains_key(&ino) {
            let message = format!("{MAX_MIGRATIONS} files are migrating already");
            return Err(Error::new(Errno::EAGAIN, message).hint("try again when some of them have completed"));
        }
        let job = table.jobs.entry(ino).or_insert_with(|| Job::new(goal, None));
        (job.goal, job.failures, job.due_ns, job.last_error) = (goal, 0, 0, None);
        drop(table);
        self.work_available.set();
        Ok(())
    }

    /// Records that a requested migration is impossible.
    pub fn refuse(&self, ino: InodeId, goal: Goal, error: &Error) {
        let mut refused = Job::new(goal, None).status();
        (refused.error, refused.given_up) = (Some(error.clone()), true);
        self.table.lock().give_up(ino, refused);
    }

    /// Adds a migration that was found in the store.
    pub fn add_recorded(&self, ino: InodeId, goal: Goal) {
        self.table.lock().jobs.entry(ino).or_insert_with(|| Job::new(goal, Some(goal)));
    }

    /// Drops files of partitions that other services own.
    pub fn retain_partitions(&self, is_here: impl Fn(PartitionId) -> bool) {
        let mut table = self.table.lock();
        table.jobs.retain(|ino, job| job.is_running || is_here(ino.partition()));
        table.given_up.retain(|ino, _| is_here(ino.partition()));
    }

    /// The next file to migrate, if there is one and fewer than [`MIGRATIONS_AT_ONCE`] are running.
    pub fn next(&self) -> Option<InodeId> {
        let now_ns = rt::monotonic_ns();
        let mut table = self.table.lock();
        if table.jobs.values().filter(|job| job.is_running).count() >= MIGRATIONS_AT_ONCE {
            return None;
        }
        let (ino, job) = table.jobs.iter_mut().find(|(_, job)| !job.is_running && job.due_ns <= now_ns)?;
        job.is_running = true;
        Some(*ino)
    }

    /// How long there is certainly nothing to do, unless a migration is requested.
    pub fn idle_time(&self) -> Duration {
        let table = self.table.lock();
        let waiting = table.jobs.values().filter(|job| !job.is_running);
        match waiting.map(|job| job.due_ns).min() {
            Some(due_ns) => Duration::from_nanos(due_ns.saturating_sub(rt::monotonic_ns()))
                .clamp(MIGRATE_RETRY, MIGRATE_POLL),
            None => MIGRATE_POLL,
        }
    }

    /// The goal of a file, and whether it is recorded.
    pub fn goal(&self, ino: InodeId) -> Option<(Goal, bool)> {
        self.table.lock().jobs.get(&ino).map(|job| (job.goal, job.recorded_goal == Some(job.goal)))
    }

    /// Notes that the goal of a file is recorded.
    pub fn goal_recorded(&self, ino: InodeId, goal: Goal) {
        self.on(ino, |job| job.recorded_goal = Some(goal));
    }

    /// Progress of a file; `None` if it doesn't migrate.
    pub fn status(&self, ino: InodeId) -> Option<Migration> {
        let table = self.table.lock();
        let given_up = || table.given_up.get(&ino).map(|(_, migration)| migration.clone());
        table.jobs.get(&ino).map(Job::status).or_else(given_up)
    }

    /// Checks that there is space for the rest of a file, and reserves it. `plan`: returns what
    /// targets would get, in addition to other reservations.
    pub fn reserve_space(
        &self,
        ino: InodeId,
        bytes: u64,
        plan: impl FnOnce(&ReservedBytes) -> Result<ReservedBytes>,
    ) -> Result<()> {
        let mut table = self.table.lock();
        let others = table.reserved_except(ino);
        let fits = plan(&others)?;
        if let Some(job) = table.jobs.get_mut(&ino) {
            job.reserved = fits;
            job.bytes = job.done + bytes;
        }
        Ok(())
    }

    /// What other files have reserved.
    pub fn reserved_by_others(&self, ino: InodeId) -> ReservedBytes {
        self.table.lock().reserved_except(ino)
    }

    pub fn copied(&self, ino: InodeId, bytes: u64) {
        self.on(ino, |job| job.copied += bytes);
    }

    /// Notes that a stripe has moved.
    pub fn stripe_moved(&self, ino: InodeId, bytes: u64) {
        self.on(ino, |job| {
            job.done += bytes;
            (job.copied, job.failures, job.last_error) = (0, 0, None);
        });
    }

    fn on(&self, ino: InodeId, change: impl FnOnce(&mut Job)) {
        if let Some(job) = self.table.lock().jobs.get_mut(&ino) {
            change(job);
        }
    }

    /// Notes the end of a migration task. `outcome`: the goal that was reached, or the error.
    pub fn task_ended(&self, ino: InodeId, outcome: &Result<Goal>) -> TaskEnd {
        let now_ns = rt::monotonic_ns();
        let mut table = self.table.lock();
        let Some(job) = table.jobs.get_mut(&ino) else { return TaskEnd::Done };
        job.is_running = false;
        job.copied = 0;
        job.reserved.clear();
        let error = match outcome {
            // A client may have requested another goal meanwhile.
            Ok(goal) if *goal != job.goal => return TaskEnd::Retry,
            Ok(_) => {
                table.jobs.remove(&ino);
                return TaskEnd::Done;
            }
            Err(error) => error,
        };
        if job.failures == 0 {
            job.no_progress_since_ns = now_ns;
        }
        job.failures += 1;
        job.last_error = Some(error.clone());
        if !job.is_permanent(error.errno, now_ns) {
            let doubled = MIGRATE_RETRY * 2u32.saturating_pow(job.failures.min(16) - 1);
            job.due_ns = now_ns + doubled.min(MIGRATE_MAX_RETRY).as_nanos() as u64;
            return TaskEnd::Retry;
        }
        let given_up = Migration { given_up: true, ..job.status() };
        table.jobs.remove(&ino);
        table.give_up(ino, given_up);
        TaskEnd::GivenUp
    }
}

impl Table {
    fn give_up(&mut self, ino: InodeId, migration: Migration) {
        self.order += 1;
        self.given_up.insert(ino, (self.order, migration));
        if self.given_up.len() > MAX_GIVEN_UP {
            let oldest = self.given_up.iter().min_by_key(|(_, (order, _))| *order).map(|(ino, _)| *ino);
            oldest.and_then(|ino| self.given_up.remove(&ino));
        }
    }

    fn reserved_except(&self, ino: InodeId) -> ReservedBytes {
        let mut all = ReservedBytes::new();
        for (_, job) in self.jobs.iter().filter(|(other, _)| **other != ino) {
            for (target, bytes) in &job.reserved {
                *all.entry(*target).or_insert(0) += bytes;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{PoolId, Scheme, TargetId};

    const INO: InodeId = InodeId(9);
    const GOAL: Goal = Goal { pool: PoolId(1), scheme: Scheme::Mirror(2) };

    #[test]
    fn a_file_is_asked_for_gets_on_and_is_there() {
        let migrations = Migrations::default();
        assert!(migrations.next().is_none() && migrations.status(INO).is_none());
        migrations.request(INO, GOAL).unwrap();
        assert_eq!((migrations.next(), migrations.next()), (Some(INO), None));
        migrations.reserve_space(INO, 100, |_| Ok(ReservedBytes::from([(TargetId(1), 100)]))).unwrap();
        assert_eq!(migrations.reserved_by_others(InodeId(1)), [(TargetId(1), 100)].into());
        assert!(migrations.reserved_by_others(INO).is_empty());
        migrations.copied(INO, 60);
        migrations.stripe_moved(INO, 50);
        migrations.copied(INO, 70);
        let status = migrations.status(INO).unwrap();
        assert_eq!((status.bytes, status.bytes_moved, status.given_up), (100, 100, false));
        // A new goal that is requested during the migration isn't lost.
        let other = Goal { scheme: Scheme::Single, ..GOAL };
        migrations.request(INO, other).unwrap();
        assert_eq!(migrations.task_ended(INO, &Ok(GOAL)), TaskEnd::Retry);
        assert_eq!(migrations.next(), Some(INO));
        assert_eq!(migrations.task_ended(INO, &Ok(other)), TaskEnd::Done);
        assert!(migrations.status(INO).is_none() && migrations.next().is_none());
    }

    #[test]
    fn what_can_not_be_is_given_up_and_what_may_pass_is_tried_again() {
        let migrations = Migrations::default();
        migrations.request(INO, GOAL).unwrap();
        assert_eq!(migrations.next(), Some(INO));
        let full = || Err(Error::new(Errno::ENOSPC, "full"));
        assert_eq!(migrations.task_ended(INO, &full()), TaskEnd::GivenUp);
        let status = migrations.status(INO).unwrap();
        assert!(status.given_up && status.error.unwrap().message.contains("full"));
        // A new request starts again, and a migration that has begun isn't given up at once.
        migrations.request(INO, GOAL).unwrap();
        assert!(!migrations.status(INO).unwrap().given_up);
        migrations.goal_recorded(INO, GOAL);
        for _ in 1..MIGRATE_TRIES {
            assert_eq!(migrations.task_ended(INO, &full()), TaskEnd::Retry);
        }
        assert_eq!(migrations.task_ended(INO, &full()), TaskEnd::GivenUp);
        migrations.add_recorded(INO, GOAL);
        for _ in 0..2 * MIGRATE_TRIES {
            assert_eq!(migrations.task_ended(INO, &Err(Errno::EBUSY.into())), TaskEnd::Retry);
        }
        assert!(migrations.status(INO).unwrap().error.is_some());
        assert!(migrations.next().is_none(), "it rests");
        migrations.retain_partitions(|_| false);
        assert!(migrations.status(INO).is_none(), "it is another service's");
    }
}
