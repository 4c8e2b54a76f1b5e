//! Space of a directory's file system.

use std::io;
use std::path::Path;
use std::sync::OnceLock;

/// Space of one local file system, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Capacity for ordinary users: used and free space, without the file system's own reserve.
    pub capacity: u64,
    /// Free space for ordinary users.
    pub free: u64,
    /// Identifies the file system among those of all machines, so that directories on the same one
    /// are not counted twice. Changes with a restart of the machine.
    pub device: u64,
    /// Bytes in the files of the measuring target, where known.
    pub own: Option<u64>,
}

/// A number that is unique to the running kernel, since device numbers are unique on one kernel
/// only. Processes of one machine agree on it, whatever namespaces they are in.
fn kernel_id() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(|| {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        // Without it, processes can't find out that they are on the same machine.
        boot_id.and_then(|id| uuid_prefix(&id)).unwrap_or_else(rt::secret_u64)
    })
}

/// The first half of a UUID.
fn uuid_prefix(id: &str) -> Option<u64> {
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 16)
}

/// Measures the file system that holds `path`.
pub fn space_of(path: &Path) -> io::Result<Space> {
    let vfs = rustix::fs::statvfs(path)?;
    let device = rustix::fs::stat(path)?.st_dev ^ kernel_id();
    let used = vfs.f_blocks.saturating_sub(vfs.f_bfree);
    let bytes = |blocks: u64| blocks.saturating_mul(vfs.f_frsize);
    Ok(Space {
        capacity: bytes(used.saturating_add(vfs.f_bavail)),
        free: bytes(vfs.f_bavail),
        device,
        own: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_on_one_file_system_are_on_one_device() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("below");
        std::fs::create_dir(&below).unwrap();
        let [here, there, proc] =
            [dir.path(), &below, Path::new("/proc")].map(|path| space_of(path).unwrap().device);
        assert_eq!(here, there);
        assert_ne!(here, proc);
        assert_eq!(uuid_prefix("0123abcd-4567-89ef-0000-000000000000\n"), Some(0x0123_abcd_4567_89ef));
        assert_eq!(uuid_prefix("none"), None);
    }
}
