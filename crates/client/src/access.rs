//! The way into a file's content: its gate, with a lease that fits and the content loaded.

use crate::epoch::Under;
use crate::inode::{Content, OpenInode};
use crate::{Client, file_info};
use rt::sync::{ReadGuard, WriteGuard};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;
use types::{Errno, Error, InodeId, Layout, Result, Timestamp};
use wire::{FileInfo, LeaseMode, MetaOp, StorageOp, StorageReply};

/// Rest before something is begun anew whose lease has ended: the session is being registered
/// again.
const LEASE_REST: Duration = Duration::from_millis(20);
/// Rest before asking again for a lease that was not granted, at first; it doubles up to
/// `MAX_PAUSE`.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// The longest rest between two questions for a lease.
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// What an operation needs of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    /// To look at the content as it is now.
    Look,
    /// To hand out content that will be kept.
    Keep,
    /// To change content where it lies.
    Change,
    /// To change the shape of the file, or to know its very end.
    Alone,
}

impl Need {
    fn is_met_by(self, lease: LeaseMode) -> bool {
        match self {
            Need::Look => true,
            Need::Keep => lease != LeaseMode::Shared,
            Need::Change => lease != LeaseMode::Read,
            Need::Alone => lease == LeaseMode::Write,
        }
    }
}

/// What is known of the chunk files of one file.
pub(crate) struct Measured {
    /// The end of the file, as far as chunks reach.
    pub(crate) end: u64,
    /// Allocated 512-byte units.
    pub(crate) blocks: u64,
    /// The last change of any.
    pub(crate) mtime: Timestamp,
}

impl Client {
    /// Shared use of a file's content. `need` is asked with what is known, when there is something.
    pub(crate) async fn enter<'a>(&self, inode: &'a OpenInode, need: Need) -> Result<ReadGuard<'a>> {
        for turn in 0.. {
            self.while_silent(inode.ino).await?;
            let guard = self.share(inode).await?;
            let (is_ready, is_spent) = {
                let content = inode.content.lock();
                (content.is_ready(|_| need), content.is_spent())
            };
            // What is rare is kept out of the future of every request.
            if is_ready && (!is_spent || Box::pin(self.has_left_spent_epoch(inode)).await?) {
                return Ok(guard);
            }
            drop(guard);
            Box::pin(self.acquire(inode, need, turn)).await?;
        }
        unreachable!("the loop ends by returning")
    }

    /// The same, alone.
    pub(crate) async fn enter_alone<'a>(
        &self,
        inode: &'a OpenInode,
        need: impl Fn(&Content) -> Need,
    ) -> Result<WriteGuard<'a>> {
        for turn in 0.. {
            match self.look_alone(inode, &need).await? {
                Ok(guard) => return Ok(guard),
                Err(needed) => Box::pin(self.acquire(inode, needed, turn)).await?,
            }
        }
        unreachable!("the loop ends by returning")
    }

    /// The same, to write back what the kernel has of mapped pages. Where a recall is under way
    /// this doesn't wait for its end: the recall waits until the kernel has forgotten the pages,
    /// and the kernel until they are written.
    pub(crate) async fn enter_to_write_back<'a>(
        &self,
        inode: &'a OpenInode,
        need: impl Fn(&Content) -> Need,
    ) -> Result<WriteGuard<'a>> {
        let until_ns = rt::monotonic_ns().saturating_add(self.patience.get().as_nanos() as u64);
        for turn in 0.. {
            let needed = match self.look_alone(inode, &need).await? {
                Ok(guard) => return Ok(guard),
                Err(needed) => needed,
            };
            match self.unless_closing(inode.ino, Box::pin(self.acquire(inode, needed, turn))).await {
                Some(acquired) => acquired?,
                None if Box::pin(self.load_while_closing(inode)).await? => {}
                // The recall has unloaded already, or is yet to begin and will wait for this page:
                // then its end must not be waited for.
                None if rt::monotonic_ns() < until_ns => rt::sleep(MIN_PAUSE).await,
                None => Box::pin(self.acquire(inode, needed, turn)).await?,
            }
        }
        unreachable!("the loop ends by returning")
    }

    /// The gate alone if what is known does, else what is needed.
    async fn look_alone<'a>(
        &self,
        inode: &'a OpenInode,
        need: &impl Fn(&Content) -> Need,
    ) -> Result<std::result::Result<WriteGuard<'a>, Need>> {
        self.while_silent(inode.ino).await?;
        let guard = self.alone(inode).await?;
        let (is_ready, is_spent) = {
            let content = inode.content.lock();
            (content.is_ready(need), content.is_spent())
        };
        if is_ready && (!is_spent || Box::pin(self.has_left_spent_epoch(inode)).await?) {
            return Ok(Ok(guard));
        }
        let content = inode.content.lock();
        Ok(Err(if content.loaded { need(&content) } else { need(&Content::default()) }))
    }

    /// What `work` comes to, or nothing when a recall of the inode is under way before.
    async fn unless_closing<T>(&self, ino: InodeId, work: impl Future<Output = T>) -> Option<T> {
        let (mut work, mut closing) = (pin!(work), pin!(self.leases.wait_until_closing(ino)));
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => closing.as_mut().poll(context).map(|()| None),
        })
        .await
    }

    /// Has what the service says of a file stand for what is known of it, or what is known for more
    /// than it was, until a recall that is under way unloads it: so that pages can be written back
    /// for which it waits. False where that isn't possible, or is so already.
    ///
    /// Chunks are written as if the file were shared: the service notes that this session changes
    /// them, recalls what others may have by now, and moves no chunk file away before it is told of
    /// the end. Inline content it changes itself.
    async fn load_while_closing(&self, inode: &OpenInode) -> Result<bool> {
        let is_known = inode.content.lock().is_known();
        let info = if is_known { None } else { Some(self.look_once(inode.ino).await?) };
        let mut content = inode.content.lock();
        // Looked at under this lock, under which the recall unloads. What it has unloaded already
        // stays so.
        if inode.yielding.load(Ordering::Relaxed) == 0 {
            return Ok(false);
        }
        match info {
            Some(info) if !content.is_known() => {
                content.take(info);
                if content.layout.is_some() {
                    content.unsynced.doubt();
                }
            }
            None if content.is_known() && content.lease == LeaseMode::Read => {}
            _ => return Ok(false),
        }
        content.lease = if content.inline.is_some() { LeaseMode::Write } else { LeaseMode::Shared };
        Ok(true)
    }

    /// Does something, and begins anew when the lease for it had ended meanwhile with the service
    /// that granted it.
    pub(crate) async fn while_lease_lasts<T>(
        &self,
        mut attempt: impl AsyncFnMut() -> Result<T>,
    ) -> Result<T> {
        let until_ns = rt::monotonic_ns().saturating_add(self.patience.get().as_nanos() as u64);
        loop {
            match attempt().await {
                Err(error) if error.errno == Errno::EKEYEXPIRED && rt::monotonic_ns() < until_ns => {
                    rt::sleep(LEASE_REST).await;
                }
                // Nothing that a program knows.
                Err(error) if error.errno == Errno::EKEYEXPIRED => {
                    let message = "its lease has been ending with the service that granted it";
                    return Err(Error::new(Errno::ETIMEDOUT, message).hint("repeat the operation"));
                }
                done => return done,
            }
        }
    }

    /// Makes sure that the service knows that the inode is used here: by a lease.
    pub(crate) async fn hold(&self, inode: &OpenInode, need: Need) -> Result<()> {
        for turn in 0.. {
            let asked = self.leases.asking();
            if self.leases.vouches(asked, inode.ino).is_some_and(|mode| need.is_met_by(mode)) {
                return Ok(());
            }
            Box::pin(self.acquire(inode, need, turn)).await?;
        }
        unreachable!("the loop ends by returning")
    }

    /// Asks once for a lease and for the content under it. No gate may be held: the answer may have
    /// to wait for a recall of this very session.
    async fn acquire(&self, inode: &OpenInode, need: Need, turn: u32) -> Result<()> {
        self.patiently((inode.ino, "to give its lease up"), self.leases.wait_while_closing(inode.ino))
            .await?;
        let wish = if self.leases.is_alone() { None } else { Some(self.wish(inode, need)) };
        let era = inode.content.lock().era;
        let answer = self.ask(MetaOp::Open { ino: inode.ino, wish }).await?;
        let info = file_info(answer.reply)?;
        inode.note_changes(&info.attr);
        inode.quiet_until_ns.store(0, Ordering::Relaxed);
        self.note_flags(answer.asked, &info.attr);
        let granted = {
            // The lease is looked at under this lock, under which a recall unloads what is loaded.
            let mut content = inode.content.lock();
            // Where no lease tells that an answer is of before, the era does.
            let is_current = !self.leases.is_alone() || content.era == era;
            let lease = self.leases.vouches(answer.asked, inode.ino).filter(|_| is_current);
            lease.inspect(|&mode| content.load(info, mode)).is_some()
        };
        // Who is granted less than he needs asks for more at once: if he rested, others would take
        // from him what he has, and he'd never get it.
        if !granted {
            self.leases.mark(inode.ino);
            rt::sleep(MIN_PAUSE.saturating_mul(1 << turn.min(10)).min(MAX_PAUSE)).await;
        }
        Ok(())
    }

    fn wish(&self, inode: &OpenInode, need: Need) -> LeaseMode {
        let shared = {
            let content = inode.content.lock();
            content.loaded && content.lease == LeaseMode::Shared
        };
        let contended = inode.is_contended();
        let writers = inode.writers.load(Ordering::Relaxed) > 0;
        match need {
            Need::Change | Need::Alone => LeaseMode::Write,
            // To who shares the file already, a wish to write gives all of it.
            Need::Keep if writers || shared => LeaseMode::Write,
            Need::Keep => LeaseMode::Read,
            Need::Look if writers => LeaseMode::Write,
            Need::Look if contended => LeaseMode::Shared,
            Need::Look => LeaseMode::Read,
        }
    }

    /// What the service says of a file at this moment, to be used once.
    pub(crate) async fn look_once(&self, ino: InodeId) -> Result<FileInfo> {
        let mut info = file_info(self.ask(MetaOp::Open { ino, wish: None }).await?.reply)?;
        // Without a lease the file may be cut before its chunk files are asked: what is missing
        // there then is no damage.
        info.known.clear();
        self.leases.mark(ino);
        if self.inodes.open(ino).is_none() {
            self.inodes.let_go(ino);
        }
        Ok(info)
    }

    /// Asks the chunk files of a file, except for those that are lost.
    pub(crate) async fn measure(&self, under: Under, layout: &Layout) -> Result<Measured> {
        let replies = self.on_stripes_there_are(under, layout, |_| StorageOp::Stat).await?;
        let mut measured = Measured { end: 0, blocks: 0, mtime: Timestamp::default() };
        let mut lens = vec![0; layout.groups.len()];
        for (stripe, reply) in replies {
            let StorageReply::Stat { len, blocks, mtime, .. } = reply else { continue };
            lens[stripe] = len;
            measured.blocks += blocks;
            measured.mtime = measured.mtime.max(mtime);
        }
        measured.end = layout::file_end(layout, &lens);
        Ok(measured)
    }

    /// Learns the end of a file that others write, too, if what is known of it doesn't reach to
    /// `end`. The gate is held. Gives the era for which it is known.
    ///
    /// # Errors
    /// `EKEYEXPIRED`: what was known has been forgotten, and an end without the rest would make the
    /// file one of zeros.
    pub(crate) async fn learn_end(&self, inode: &OpenInode, end: u64) -> Result<u64> {
        let (layout, under) = {
            let content = inode.content.lock();
            content.still(inode.ino, content.era)?;
            let may_be_longer =
                content.lease == LeaseMode::Shared && content.inline.is_none() && end > content.size;
            (content.layout.clone().filter(|_| may_be_longer), content.under(inode.ino))
        };
        if let Some(layout) = layout {
            let measured = Box::pin(self.measure(under, &layout)).await?;
            let mut content = inode.content.lock();
            content.still(inode.ino, under.era)?;
            content.size = content.size.max(measured.end);
        }
        Ok(under.era)
    }
}

pub(crate) fn ended_lease(ino: InodeId) -> Error {
    Error::new(Errno::EKEYEXPIRED, format!("the lease on inode {ino} ended with the service that granted it"))
        .hint("repeat the operation")
}

impl Content {
    /// True when the content is there, under a lease that fits.
    fn is_ready(&self, need: impl Fn(&Content) -> Need) -> bool {
        self.is_known() && need(self).is_met_by(self.lease)
    }

    /// Takes over what the service says, under a lease that has just been looked at. What is loaded
    /// already was so all the time, and is newer; only what others wrote to a shared file is news.
    fn load(&mut self, info: FileInfo, lease: LeaseMode) {
        if self.is_known() {
            if self.lease == LeaseMode::Shared && lease != LeaseMode::Shared {
                self.size = self.size.max(info.attr.size);
            }
            self.epoch = self.epoch.max(info.epoch);
        } else {
            self.take(info);
            // An earlier use of the file, or an earlier client, may have left chunks that aren't on
            // disk.
            if self.layout.is_some() {
                self.unsynced.doubt();
            }
        }
        self.lease = lease;
    }

    /// That it hasn't been forgotten since, whose era it was then.
    ///
    /// # Errors
    /// `EKEYEXPIRED`: what was begun under the lease of then has to begin anew.
    pub(crate) fn still(&self, ino: InodeId, era: u64) -> Result<()> {
        match self.loaded && self.era == era {
            true => Ok(()),
            false => Err(ended_lease(ino)),
        }
    }

    /// Forgets what is true only under a lease.
    pub(crate) fn unload(&mut self) {
        let (unsynced, unsynced_names, era) = (self.unsynced, self.unsynced_names, self.era + 1);
        let last_size = self.last_size;
        let unsynced_in = std::mem::take(&mut self.unsynced_in);
        let mut failures = std::mem::take(&mut self.failures);
        if self.kept.is_some() {
            failures.note_dropped();
        }
        *self =
            Content { unsynced, unsynced_in, unsynced_names, failures, last_size, era, ..Content::default() };
    }
}
