//! What a test run holds of the machine, and how it is given back whatever happens.
//!
//! Everything that would outlive us (a process, a mount, a loop device) is noted here as long as it
//! exists. Its owner gives it back when dropped; an interrupt or a test that hangs gives back
//! everything at once.

use super::{mounts, netns};
use crate::{interrupt, process, sys};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Deadline of one program that gives something back.
const DEADLINE: Duration = Duration::from_secs(60);

/// Something that would outlive us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    /// A process of ours, by id; noted only while its handle is unreaped, so that the id can't have
    /// been reused.
    Process(i32),
    /// A mount of weft.
    Mount(PathBuf),
    /// An ordinary mount.
    Disk(PathBuf),
    /// A loop device.
    Loop(PathBuf),
    /// A network namespace, by name.
    Namespace(String),
    /// A temporary folder.
    Folder(PathBuf),
}

static HELD: Mutex<Vec<Resource>> = Mutex::new(Vec::new());

fn held() -> MutexGuard<'static, Vec<Resource>> {
    // A list of plain values is whole even when a holder of the lock panicked.
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that something now exists.
pub fn hold(resource: Resource) {
    held().push(resource);
}

/// Notes that it has been given back.
pub fn released(resource: &Resource) {
    held().retain(|other| other != resource);
}

/// Frees everybody who waits for a weft mount: kills the processes and aborts the kernel's
/// connections.
pub fn abort_mounts() {
    let list = held().clone();
    for resource in &list {
        if let Resource::Process(pid) = resource {
            drop(sys::kill(*pid, libc::SIGKILL));
        }
    }
    for resource in &list {
        if let Resource::Mount(path) = resource {
            mounts::abort(path);
        }
    }
}

/// Gives everything back, the last first.
pub fn release_all() {
    abort_mounts();
    let list = std::mem::take(&mut *held());
    for resource in list.iter().rev() {
        match resource {
            Resource::Process(_) => {}
            Resource::Mount(path) | Resource::Disk(path) => mounts::force_unmount(path),
            Resource::Loop(device) => detach_loop(device),
            Resource::Namespace(name) => netns::remove(name),
            // Gone already where its owner was dropped; what is mounted below it must not be
            // emptied.
            Resource::Folder(path) if !mounts::any_below(path) => drop(std::fs::remove_dir_all(path)),
            Resource::Folder(_) => {}
        }
    }
}

/// Frees a loop device.
pub fn detach_loop(device: &std::path::Path) {
    if let Err(error) = process::run_ok(Command::new("losetup").arg("-d").arg(device), DEADLINE) {
        eprintln!("warning: {error}");
    }
}

/// From now on an interrupt gives everything back and ends the program.
pub fn on_interrupt() -> Result<(), String> {
    interrupt::watch(release_all)
}
