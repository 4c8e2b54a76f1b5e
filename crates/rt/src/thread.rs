//! Threads that are cores.

use crate::context;
use crate::executor::block_on;
use parking_lot::Mutex;
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::thread::{Builder, JoinHandle};

/// Configuration of a core's thread.
#[derive(Clone, Debug, Default)]
pub struct CoreConfig {
    /// The thread's name; the kernel shows its first 15 bytes.
    pub name: String,
    /// The CPU that the thread is pinned to.
    pub cpu: Option<usize>,
    /// Schedule as a batch thread: it doesn't preempt the application that it serves, which saves
    /// context switches.
    pub batch: bool,
}

/// Starts a thread with its own runtime that ends when `main`'s future ends.
///
/// Fails if the thread can't be started. A refused CPU or scheduling class isn't an error: both
/// only improve performance.
pub fn start_core<F: Future<Output = ()> + 'static>(
    config: CoreConfig,
    main: impl FnOnce() -> F + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    Builder::new().name(config.name).spawn(move || {
        if let Some(cpu) = config.cpu {
            pin_to(cpu);
            PINNED.set(Some(cpu));
        }
        if config.batch {
            schedule_as_batch();
        }
        block_on(async move { main().await })
            .expect("the kernel offers io_uring, as block_on's caller has checked");
    })
}

/// A group of cores. On a simulated host, which has one core, they are tasks of it.
#[derive(Default, Debug)]
pub struct CoreGroup {
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl CoreGroup {
    /// Starts a core, as [`start_core`] does.
    pub fn start<F: Future<Output = ()> + 'static>(
        &self,
        config: CoreConfig,
        main: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<()> {
        if context::with_sim(|_| ()).is_some() {
            crate::spawn(async move { main().await });
            return Ok(());
        }
        let thread = start_core(config, main)?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Blocks until all cores have ended; returns how many of them panicked. Doesn't wait for
    /// simulated ones, which end with their host.
    pub fn join(&self) -> usize {
        let threads = std::mem::take(&mut *self.threads.lock());
        threads.into_iter().filter_map(|thread| thread.join().err()).count()
    }
}

thread_local! {
    static PINNED: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The CPU that this core was configured to be pinned to.
pub fn pinned_cpu() -> Option<usize> {
    PINNED.get()
}

fn pin_to(cpu: usize) {
    // Only improves performance: a refusal is harmless.
    let _ = bind_to_cpus(&[cpu]);
}

/// Restricts the calling thread, and those that it will start, to these CPUs.
pub(crate) fn bind_to_cpus(cpus: &[usize]) -> io::Result<()> {
    let set = cpu_set(cpus);
    // SAFETY: the pointer is to a valid set of the size given; 0 names the calling thread.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// CPUs in the kernel's format; CPU numbers beyond its size are left out.
pub(crate) fn cpu_set(cpus: &[usize]) -> libc::cpu_set_t {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: the index is below the size of the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    set
}

/// The CPUs that the calling thread may run on, in ascending order.
pub fn allowed_cpus() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the size that is given; 0 names the calling thread.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        return Vec::new();
    }
    // SAFETY: every index is below the size of the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

fn schedule_as_batch() {
    // The kernel's sched_param: that of a C library may be larger. A system call, because the
    // function of musl refuses every class.
    let priority: libc::c_int = 0;
    // SAFETY: the pointer is to valid parameters; 0 names the calling thread.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_BATCH, &raw const priority) };
}
