//! The io_uring of one core, in the best form that the kernel offers.
//!
//! | form | needs | what weft loses without it |
//! |---|---|---|
//! | tuned for one thread | Linux 6.1 | some interrupts of the thread that submits |
//! | 128-byte entries | Linux 5.19 | FUSE over io_uring, which needs Linux 6.14 anyway |
//! | plain | Linux 5.11 | |

use io_uring::squeue::{Entry, Entry128};
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, squeue};
use std::io;
use std::time::Duration;

/// Submission entries. A full queue is submitted early, so this bounds a batch, not the operations
/// in flight.
const SUBMISSION_ENTRIES: u32 = 256;
/// Completion entries; the kernel buffers any overflow and delivers it later.
const COMPLETION_ENTRIES: u32 = 4 * SUBMISSION_ENTRIES;

/// Environment variable that limits the rings of this process: `basic` means plain ones.
pub(crate) const LIMIT_VARIABLE: &str = "WEFT_IO_URING";

/// What a ring is set up with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    Tuned,
    LargeEntries,
    Plain,
}

/// A ring whose submission entries have 128 or 64 bytes.
pub(crate) enum CoreRing {
    Large(IoUring<Entry128>),
    Small(IoUring<Entry>),
}

/// Calls the same method on either ring.
macro_rules! either {
    ($ring:expr, $name:ident => $call:expr) => {
        match $ring {
            CoreRing::Large($name) => $call,
            CoreRing::Small($name) => $call,
        }
    };
}

impl CoreRing {
    /// Sets up a ring in the best form. The error is that of the plain form: if the kernel refuses
    /// that one, it has no io_uring for this process.
    pub(crate) fn set_up() -> io::Result<(CoreRing, Form)> {
        let is_limited = std::env::var_os(LIMIT_VARIABLE).is_some_and(|limit| limit == "basic");
        let forms = [Form::Tuned, Form::LargeEntries].iter().filter(|_| !is_limited);
        for form in forms {
            if let Ok(ring) = CoreRing::with(*form) {
                return Ok((ring, *form));
            }
        }
        Ok((CoreRing::with(Form::Plain)?, Form::Plain))
    }

    fn with(form: Form) -> io::Result<CoreRing> {
        match form {
            Form::Tuned => IoUring::builder()
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all()
                .setup_cqsize(COMPLETION_ENTRIES)
                .build(SUBMISSION_ENTRIES)
                .map(CoreRing::Large),
            Form::LargeEntries => IoUring::builder()
                .setup_cqsize(COMPLETION_ENTRIES)
                .build(SUBMISSION_ENTRIES)
                .map(CoreRing::Large),
            Form::Plain => IoUring::builder()
                .setup_cqsize(COMPLETION_ENTRIES)
                .build(SUBMISSION_ENTRIES)
                .map(CoreRing::Small),
        }
    }

    /// Adds an entry to the submission queue, unless the queue is full. A ring of small entries
    /// takes the first half, which is all that operations other than driver commands use.
    ///
    /// # Safety
    /// Everything that `entry` points to lives until the completion.
    pub(crate) unsafe fn push(&mut self, entry: &Entry128) -> Result<(), squeue::PushError> {
        match self {
            // SAFETY: passed on to the caller.
            CoreRing::Large(ring) => unsafe { ring.submission().push(entry) },
            CoreRing::Small(ring) => {
                // SAFETY: Entry128 is repr(C) and begins with an Entry; the rest is passed on to
                // the caller.
                unsafe { ring.submission().push(&*std::ptr::from_ref(entry).cast::<Entry>()) }
            }
        }
    }

    pub(crate) fn is_submission_full(&mut self) -> bool {
        either!(self, ring => ring.submission().is_full())
    }

    /// Whether there are entries to submit, or completions that only a system call posts.
    pub(crate) fn needs_kernel(&mut self) -> bool {
        either!(self, ring => {
            let queue = ring.submission();
            !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
        })
    }

    pub(crate) fn has_completions(&mut self) -> bool {
        either!(self, ring => !ring.completion().is_empty())
    }

    pub(crate) fn next_completion(&mut self) -> Option<cqueue::Entry> {
        either!(self, ring => ring.completion().next())
    }

    pub(crate) fn submit(&self) -> io::Result<usize> {
        either!(self, ring => ring.submit())
    }

    /// Submits, and waits for a completion, at most for `timeout`.
    pub(crate) fn submit_and_wait(&self, timeout: Option<Duration>) -> io::Result<usize> {
        let Some(timeout) = timeout else {
            return either!(self, ring => ring.submit_and_wait(1));
        };
        let timespec = Timespec::from(timeout);
        let args = SubmitArgs::new().timespec(&timespec);
        either!(self, ring => ring.submitter().submit_with_args(1, &args))
    }

    /// Binds the kernel threads that run blocking operations of this ring.
    pub(crate) fn bind_kernel_threads(&self, cpus: &libc::cpu_set_t) -> io::Result<()> {
        either!(self, ring => ring.submitter().register_iowq_aff(cpus))
    }

    pub(crate) fn probe(&self, probe: &mut io_uring::Probe) -> io::Result<()> {
        either!(self, ring => ring.submitter().register_probe(probe))
    }

    /// Whether a wait can have a time-out (Linux 5.11).
    pub(crate) fn can_wait_with_timeout(&self) -> bool {
        either!(self, ring => ring.params().is_feature_ext_arg())
    }
}
