//! Resources of a test run on this machine, and their guaranteed release.
//!
//! Everything that would outlive the run (a process, a mount, a loop device) is registered here as
//! long as it exists. Its owner releases it when dropped; an interrupt or a hung test releases
//! everything at once.

use super::{mounts, netns};
use crate::{interrupt, process, sys};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Deadline of one program that releases a resource.
const DEADLINE: Duration = Duration::from_secs(60);

/// A resource that would outlive the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    /// A child process by id; registered only while its handle is unreaped, so that the id can't be
    /// reused.
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

static RESOURCES: Mutex<Vec<Resource>> = Mutex::new(Vec::new());

fn held() -> MutexGuard<'static, Vec<Resource>> {
    // A list of plain values stays consistent even if a holder of the lock panicked.
    RESOURCES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a resource.
pub fn register(resource: Resource) {
    held().push(resource);
}

/// Removes a released resource from the register.
pub fn unregister(resource: &Resource) {
    held().retain(|other| other != resource);
}

/// Unblocks all processes that wait for a weft mount: kills the services and aborts the kernel's
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

/// Releases everything in reverse order of registration.
pub fn release_all() {
    abort_mounts();
    let list = std::mem::take(&mut *held());
    for resource in list.iter().rev() {
        match resource {
            Resource::Process(_) => {}
            Resource::Mount(path) | Resource::Disk(path) => mounts::force_unmount(path),
            Resource::Loop(device) => detach_loop(device),
            Resource::Namespace(name) => netns::remove(name),
            // It doesn't exist any more if its owner was dropped. A folder that contains a mount
            // must not be emptied.
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

/// Installs the interrupt handling: an interrupt releases everything and ends the program.
pub fn on_interrupt() -> Result<(), String> {
    interrupt::watch(release_all)
}
