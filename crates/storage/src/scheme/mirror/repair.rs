//! Repairs what is damaged, missing or different on a member, from an intact replica.
//!
//! The primary repairs as a change of its own, with the file locked against other changes. A crash
//! in the middle leaves unrepaired parts as they were, or refused ([`StorageOp::Rewrite`]). A
//! member that can't be repaired is ejected.

use super::repair_plan::{BlockRepair, RepairPlan, SurveyedReplica, plan};
use crate::group::change::execute_on;
use crate::group::membership::state_after_miss;
use crate::group::range_locks::{LockMode, WHOLE_FILE};
use crate::group::replica::Replica;
use crate::group::sequences::Ticket;
use crate::group::{GroupService, detached, version_fence};
use crate::service::execute;
use chunkstore::IoPath;
use rt::IoBuf;
use std::cell::RefCell;
use std::sync::Arc;
use types::{
    BLOCK_SIZE, ByteRange, ChunkFileId, Errno, Error, Group, MemberState, Refusal, Result, SessionId,
    TargetId, Timestamp,
};
use wire::{
    DataPath, GroupContext, GroupRole, RepairResult, ReplicaState, StorageOp, StorageReply, StorageRequest,
};

/// Bytes that are surveyed and repaired at a time. The file is locked against changes that long.
const PIECE_BYTES: u64 = 1 << 20;

/// The longest chunk file that is rewritten while clients wait, bytes: some ten seconds. A member
/// that lacks a longer one is rebuilt as a whole.
const MAX_RESTORED_BYTES: u64 = 2 << 30;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Beyond every chunk file.
pub(super) const MAX_END: u64 = i64::MAX as u64;

/// The file while the primary repairs it.
struct FileRepair<'a> {
    groups: &'a Arc<GroupService>,
    replica: &'a Replica,
    ino: ChunkFileId,
    group: Group,
    /// One for each change, all held until the end: before that, no client reads there, and all
    /// members retain their dirty regions.
    tickets: RefCell<Vec<Ticket<'a>>>,
}

/// Repairs a range of a file of whose group this is the primary. Runs to its end, whether or not
/// the caller waits for it.
pub(super) async fn repair(
    groups: &Arc<GroupService>,
    replica: Arc<Replica>,
    ino: ChunkFileId,
    range: ByteRange,
) -> Result<RepairResult> {
    let groups = groups.clone();
    detached::run(async move {
        let (mut result, mut at) = (RepairResult::default(), range.start / PIECE_BYTES * PIECE_BYTES);
        let range = ByteRange::new(at, range.end.min(MAX_END).next_multiple_of(BLOCK));
        loop {
            let piece = ByteRange::at(at, PIECE_BYTES).intersect(range);
            let (found, end) = repair_piece(&groups, &replica, ino, piece).await?;
            result += found;
            at = piece.end;
            if at >= range.end.min(end) {
                return Ok(result);
            }
        }
    })
    .await
}

/// Repairs one piece; also returns where the file ends.
async fn repair_piece(
    groups: &Arc<GroupService>,
    replica: &Replica,
    ino: ChunkFileId,
    piece: ByteRange,
) -> Result<(RepairResult, u64)> {
    if replica.is_unclean() {
        groups.eject_others(replica).await?;
    }
    let _entered = replica.role_lock.read().await;
    let _held = replica.ranges.acquire(ino, WHOLE_FILE, LockMode::Exclusive).await;
    groups.wait_for_lease(replica.target).await?;
    let group = groups.primary_view(replica)?.group()?.clone();
    let _entry_hold = replica.store.hold_entries();
    let ticket = replica.sequences.begin(group.since);
    if replica.is_stepping_down(group.since) || groups.since(replica.group) != group.since {
        return Err(version_fence::version_mismatch(replica.group));
    }
    let _version_guard = replica.version_fence.enter(replica.group, group.since, true).await?;
    let file_repair = FileRepair { groups, replica, ino, group, tickets: RefCell::new(vec![ticket]) };
    let replicas = file_repair.survey(piece).await?;
    let end = replicas.iter().map(|copy| copy.survey.len.max(copy.survey.sum_end)).max().unwrap_or(0);
    let plan = plan(&replicas, piece);
    if plan.is_empty() {
        return Ok((RepairResult::default(), end));
    }
    Ok((file_repair.execute_plan(&replicas, &plan).await?, end))
}

/// Returns the parts in which the checksums of a file of `len` bytes are sent: as much as one
/// survey covers.
pub(super) fn expected_parts(len: u64) -> impl Iterator<Item = ByteRange> {
    let most = wire::MAX_SURVEYED as u64 * BLOCK;
    (0..len)
        .step_by(most as usize)
        .map(move |start| ByteRange::at(start, most).intersect(ByteRange::new(0, len)))
}

/// Returns the checksums of a part in wire format. After the last one of the survey there are
/// holes.
pub(super) fn expected_sums(survey: &ReplicaState, part: ByteRange) -> Result<IoBuf> {
    if !survey.exists {
        return Err(
            Error::new(Errno::EAGAIN, "the intact replica is missing").hint("weft tries again automatically")
        );
    }
    let blocks = part.len().div_ceil(BLOCK) as usize;
    let sums = survey.sums.iter().copied().chain(std::iter::repeat(0)).take(blocks);
    Ok(IoBuf::from_slice(&sums.flat_map(u32::to_le_bytes).collect::<Vec<u8>>()))
}

/// Converts an error of the source: the member under repair isn't at fault.
fn source_failed(error: Error) -> Error {
    Error::new(Errno::EAGAIN, error.message.to_string()).hint("weft tries again automatically")
}

/// Whether the error doesn't concern the disk under repair.
fn is_caused_elsewhere(error: &Error) -> bool {
    matches!(error.errno, Errno::EAGAIN | Errno::Refusal(Refusal::GroupVersionMismatch))
}

/// Returns the modification time for the repaired replicas: the newest of the replicas that stay
/// unchanged, or of all if each of them changes.
fn time_after(replicas: &[SurveyedReplica], plan: &RepairPlan) -> Option<Timestamp> {
    let newest = |which: &dyn Fn(usize) -> bool| {
        let some = replicas.iter().enumerate().filter(|(at, replica)| replica.survey.exists && which(*at));
        some.map(|(_, replica)| replica.survey.mtime).max()
    };
    newest(&|at| !plan.changes(at)).or_else(|| newest(&|_| true))
}

impl FileRepair<'_> {
    /// Surveys a piece on all in-sync members. Fails if one of them doesn't answer.
    async fn survey(&self, piece: ByteRange) -> Result<Vec<SurveyedReplica>> {
        let good = self.group.members_with_states().filter(|(_, state)| *state == MemberState::InSync);
        let survey_member = |(target, _): (TargetId, MemberState)| async move {
            let survey = self.survey_one(target, piece, true).await;
            survey.map(|survey| SurveyedReplica { target, survey })
        };
        let surveys = rt::join_all(good.map(survey_member).collect()).await;
        surveys.into_iter().collect()
    }

    async fn survey_one(&self, target: TargetId, piece: ByteRange, read: bool) -> Result<ReplicaState> {
        let op = StorageOp::Survey { range: piece, unit: BLOCK, read };
        let reply = match target == self.replica.target {
            true => {
                let outcome = execute(&self.replica.store, self.ino, op, None).await;
                outcome.map_err(|error| self.replica.failed(&error))?
            }
            false => {
                let in_group = self.group_context(GroupRole::Member { sequence: 0, committed: 0 });
                self.groups.call_member(target, (self.ino, op), in_group, None).await?
            }
        };
        match reply {
            StorageReply::Survey(survey) => Ok(survey),
            other => {
                Err(Error::new(Errno::EPROTO, format!("unexpected reply type from a member: {other:?}"))
                    .hint("install the same version of weft on all machines"))
            }
        }
    }

    fn group_context(&self, part: GroupRole) -> GroupContext {
        GroupContext { group: self.group.id, version: self.group.since, role: part }
    }

    async fn execute_plan(&self, replicas: &[SurveyedReplica], plan: &RepairPlan) -> Result<RepairResult> {
        let (group, ino) = (self.group.id, self.ino);
        let found = (plan.missing.len() + plan.fixes.len() + plan.resized.len()) as u64;
        let mut result = RepairResult {
            damaged: found + (plan.lost.len() + plan.unclear.len()) as u64,
            repaired: 0,
            unclear: plan.unclear.len() as u64,
        };
        for range in &plan.lost {
            tracing::error!(
                %group, inode = %ino, %range,
                "no intact replica is left of this range; hint: weft fsck names the file; restore it from a backup"
            );
        }
        for range in &plan.unclear {
            tracing::error!(
                %group, inode = %ino, %range,
                "replicas differ, each matches its checksums, and it is unclear which is right; hint: weft fsck names the file: compare it with a backup"
            );
        }
        let differs = !plan.resized.is_empty() || plan.fixes.iter().any(|fix| fix.differs);
        // A member that is being resynced may have received the wrong content.
        let is_copied = |(_, state): (TargetId, MemberState)| {
            matches!(state, MemberState::Resyncing | MemberState::Rebuilding)
        };
        if differs && self.group.members_with_states().any(is_copied) {
            return Ok(result);
        }
        for &member in &plan.missing {
            result.repaired += u64::from(self.restore(replicas, member).await?);
        }
        for fix in &plan.fixes {
            let target = replicas[fix.member].target;
            let done = self.fix(replicas, fix, plan.len).await;
            result.repaired +=
                u64::from(self.finish_repair(target, (fix.range, "a damaged range"), done).await?);
        }
        let len = plan.len.unwrap_or(0);
        for &member in &plan.resized {
            let target = replicas[member].target;
            let done = self.resize(replicas, member, len).await;
            let what = (ByteRange::new(replicas[member].survey.len.min(len), len), "a wrong length");
            result.repaired += u64::from(self.finish_repair(target, what, done).await?);
        }
        self.set_times(replicas, plan).await?;
        Ok(result)
    }

    /// Gives the repaired replicas the modification time of their source: no application has
    /// changed the file.
    async fn set_times(&self, replicas: &[SurveyedReplica], plan: &RepairPlan) -> Result<()> {
        let Some(time) = time_after(replicas, plan) else { return Ok(()) };
        for member in (0..replicas.len()).filter(|at| plan.changes(*at)) {
            let target = replicas[member].target;
            let done = self.change(target, StorageOp::SetTime { time }, None).await;
            if done.is_err() {
                self.finish_repair(target, (WHOLE_FILE, "the modification time of a repaired replica"), done)
                    .await?;
            }
        }
        Ok(())
    }

    /// Logs a repair; ejects a member that couldn't be repaired.
    async fn finish_repair(
        &self,
        target: TargetId,
        (range, what): (ByteRange, &str),
        done: Result<()>,
    ) -> Result<bool> {
        let (group, ino) = (self.group.id, self.ino);
        let error = match done {
            Ok(()) => {
                tracing::warn!(%group, target_id = %target, inode = %ino, %range, "{what} was repaired from another replica");
                return Ok(true);
            }
            // The source, or another version of the group: the member under repair isn't at fault,
            // and what isn't repaired is refused.
            Err(error) if is_caused_elsewhere(&error) => return Err(error),
            Err(error) => error,
        };
        let message = format!("{what} of inode {ino} can't be repaired: {}", error.message);
        tracing::error!(%group, target_id = %target, inode = %ino, %range, "target {target}: {message}; hint: check its disk");
        if target == self.replica.target {
            // A repair may be half done here: no reads any more.
            self.replica.announce_step_down(self.group.since);
        }
        let state = match error.errno {
            Errno::EIO => MemberState::NeedsRebuild,
            _ => state_after_miss(MemberState::InSync),
        };
        self.groups.eject(self.replica, target, state, &message).await;
        Err(version_fence::version_mismatch(group))
    }

    /// Rewrites the blocks of a range from a replica in which they are intact.
    async fn fix(&self, replicas: &[SurveyedReplica], fix: &BlockRepair, len: Option<u64>) -> Result<()> {
        let target = replicas[fix.member].target;
        let source = &replicas[fix.from];
        let end = len.unwrap_or(source.survey.len);
        let data = fix.range.intersect(ByteRange::new(0, end));
        let buf = self.read(source.target, data).await?;
        self.write(target, fix.range, buf, None).await
    }

    /// Reads a range of a replica that was just found intact.
    async fn read(&self, source: TargetId, range: ByteRange) -> Result<IoBuf> {
        let buf = IoBuf::alloc(range.len() as usize);
        if range.is_empty() {
            return Ok(buf);
        }
        if source == self.replica.target {
            let read = self.replica.store.read(self.ino, range.start, &buf, IoPath::Direct).await;
            read.map_err(|error| source_failed(self.replica.failed(&error)))?;
        } else {
            let op = StorageOp::Read { offset: range.start, path: DataPath::Direct };
            let in_group = self.group_context(GroupRole::Member { sequence: 0, committed: 0 });
            let asked = self.groups.call_member(source, (self.ino, op), in_group, Some(buf.clone())).await;
            asked.map_err(source_failed)?;
        }
        Ok(buf)
    }

    /// Replaces blocks, whatever their content.
    async fn write(&self, target: TargetId, blocks: ByteRange, data: IoBuf, len: Option<u64>) -> Result<()> {
        let is_hole = data.as_slice().iter().all(|byte| *byte == 0);
        self.change(target, StorageOp::Rewrite { range: blocks, len }, (!is_hole).then_some(data)).await
    }

    /// Sets the length of a member's replica. Rewrites its last block, which the wrong length may
    /// have damaged.
    async fn resize(&self, replicas: &[SurveyedReplica], member: usize, len: u64) -> Result<()> {
        let target = replicas[member].target;
        let matching = replicas.iter().find(|replica| replica.survey.exists && replica.survey.len == len);
        let (Some(source), true) = (matching, len > 0) else {
            return self.change(target, StorageOp::Truncate { len }, None).await;
        };
        let last = ByteRange::at((len - 1) / BLOCK * BLOCK, BLOCK);
        let buf = self.read(source.target, last.intersect(ByteRange::new(0, len))).await?;
        self.write(target, last, buf, Some(len)).await
    }

    /// Writes a whole file to a member that lacks it.
    async fn restore(&self, replicas: &[SurveyedReplica], member: usize) -> Result<bool> {
        let target = replicas[member].target;
        let sources: Vec<&SurveyedReplica> =
            replicas.iter().filter(|replica| replica.survey.exists).collect();
        let len = sources.iter().map(|replica| replica.survey.len).max().unwrap_or(0);
        let what = (ByteRange::new(0, len), "a missing chunk file");
        if len > MAX_RESTORED_BYTES {
            let message = format!("{} bytes are missing of one chunk file", len);
            return self.finish_repair(target, what, Err(Error::new(Errno::EIO, message))).await;
        }
        let done = self.restore_from(&sources, target, len).await;
        let done = done.map_err(|error| match is_caused_elsewhere(&error) {
            true => error,
            false => Error::new(Errno::EIO, error.message.to_string()),
        });
        self.finish_repair(target, what, done).await
    }

    async fn restore_from(&self, sources: &[&SurveyedReplica], target: TargetId, len: u64) -> Result<()> {
        self.send_expected_sums(sources, target, len).await?;
        for start in (0..len).step_by(PIECE_BYTES as usize) {
            let piece = ByteRange::at(start, PIECE_BYTES).intersect(ByteRange::new(0, len));
            let mut read = Err(Error::new(Errno::EAGAIN, "no member has the chunk file"));
            for source in sources {
                read = self.read(source.target, piece).await;
                if read.is_ok() {
                    break;
                }
            }
            let data = read?;
            if data.as_slice().iter().any(|byte| *byte != 0) {
                self.write(target, piece, data, None).await?;
            }
        }
        Ok(())
    }

    /// Sends a member the checksums of its future file, from the longest replica: from then on,
    /// blocks that aren't there yet are refused.
    async fn send_expected_sums(
        &self,
        sources: &[&SurveyedReplica],
        target: TargetId,
        len: u64,
    ) -> Result<()> {
        let longest = sources.iter().find(|source| source.survey.len == len);
        let Some(longest) = longest else {
            return Err(Error::new(Errno::EAGAIN, "no member has the chunk file"));
        };
        for part in expected_parts(len) {
            let survey = self.survey_one(longest.target, part, false).await.map_err(source_failed)?;
            let op = StorageOp::ExpectChecksums { first: part.start / BLOCK, len };
            self.change(target, op, Some(expected_sums(&survey, part)?)).await?;
        }
        Ok(())
    }

    /// Executes one change on one member.
    async fn change(&self, target: TargetId, op: StorageOp, payload: Option<IoBuf>) -> Result<()> {
        let ticket = self.replica.sequences.begin(self.group.since);
        let sequence = ticket.sequence;
        self.tickets.borrow_mut().push(ticket);
        let settled = self.replica.sequences.settled(self.group.since);
        let request = StorageRequest {
            group: Some(self.group_context(GroupRole::Member { sequence, committed: settled })),
            ..StorageRequest::new(SessionId(0), target, self.ino, op)
        };
        if target != self.replica.target {
            return self.groups.send(request, payload).await.map(drop);
        }
        execute_on(self.replica, &request, &payload, None).await.map_err(|error| self.replica.failed(&error))
    }
}
