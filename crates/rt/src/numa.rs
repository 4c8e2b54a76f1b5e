//! NUMA zones: CPUs and memory that are near each other, and binding a process to one zone.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::OnceLock;

/// Where the kernel describes its zones.
const ZONES: &str = "/sys/devices/system/node";

/// Highest zone number that the kernel can be configured for (`NODES_SHIFT` is at most 10).
const MAX_ZONE: u32 = 1023;

/// `MPOL_PREFERRED` of the kernel: allocate from the zone while it has memory, then from others.
const MPOL_PREFERRED: libc::c_int = 1;

/// The CPUs for the kernel's worker threads of this process's rings.
static WORKER_CPUS: OnceLock<Vec<usize>> = OnceLock::new();

/// CPUs and memory that are near each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NumaZone {
    zone: u32,
    /// In ascending order.
    cpus: Vec<usize>,
    has_memory: bool,
}

impl NumaZone {
    /// Finds a zone of this machine.
    ///
    /// # Errors
    /// `NotFound` when there is no such zone, `Unsupported` when it has no CPUs.
    pub fn find(zone: u32) -> io::Result<NumaZone> {
        NumaZone::find_in(Path::new(ZONES), zone)
    }

    fn find_in(zones: &Path, zone: u32) -> io::Result<NumaZone> {
        if zone > MAX_ZONE {
            return Err(ErrorKind::NotFound.into());
        }
        let cpus = parse_list(&fs::read_to_string(zones.join(format!("node{zone}/cpulist")))?)?;
        if cpus.is_empty() {
            return Err(ErrorKind::Unsupported.into());
        }
        // A zone may have CPUs and no memory of its own.
        let with_memory = fs::read_to_string(zones.join("has_memory")).and_then(|list| parse_list(&list));
        let has_memory = with_memory.map_or(true, |zones| zones.contains(&(zone as usize)));
        Ok(NumaZone { zone, cpus, has_memory })
    }

    /// The numbers of all zones of this machine that have CPUs.
    pub fn all() -> Vec<u32> {
        let list = fs::read_to_string(Path::new(ZONES).join("has_cpu")).and_then(|list| parse_list(&list));
        list.unwrap_or_default().into_iter().map(|zone| zone as u32).collect()
    }

    /// The zone's number.
    pub fn number(&self) -> u32 {
        self.zone
    }

    /// The zone's CPUs, in ascending order.
    pub fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    /// Binds this process to the CPUs of the zone, and prefers memory of the zone. When that is
    /// used up the kernel allocates memory of other zones, which is slower but better than failing.
    /// Must be called before another thread starts: existing threads aren't affected.
    ///
    /// # Errors
    /// The kernel's: `InvalidInput` when this process may use none of the CPUs (`cpuset`).
    pub fn bind_process(&self) -> io::Result<()> {
        self.bind_thread()?;
        // A process isn't bound twice.
        let _ = WORKER_CPUS.set(self.cpus.clone());
        Ok(())
    }

    /// Binds the calling thread, and those that it starts from now on.
    fn bind_thread(&self) -> io::Result<()> {
        crate::thread::bind_to_cpus(&self.cpus)?;
        if self.has_memory { prefer_memory(self.zone) } else { Ok(()) }
    }
}

/// The CPUs for the kernel's worker threads of rings.
pub(crate) fn worker_cpus() -> Option<&'static [usize]> {
    WORKER_CPUS.get().map(Vec::as_slice)
}

fn prefer_memory(zone: u32) -> io::Result<()> {
    const BITS: usize = libc::c_ulong::BITS as usize;
    let mut mask = [0 as libc::c_ulong; MAX_ZONE as usize / BITS + 1];
    mask[zone as usize / BITS] = 1 << (zone as usize % BITS);
    // The kernel reads one bit less than the number given.
    let bits = MAX_ZONE as libc::c_ulong + 2;
    // SAFETY: the mask has at least `bits - 1` bits and lives across the call, which only reads it.
    match unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_PREFERRED, mask.as_ptr(), bits) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Numbers as the kernel lists them: `0-3,8,10-11`.
fn parse_list(text: &str) -> io::Result<Vec<usize>> {
    let number = |text: &str| text.parse::<usize>().map_err(|_| io::Error::from(ErrorKind::InvalidData));
    let mut all = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(number(first)?..=number(last)?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> tempfile::TempDir {
        let base = tempfile::tempdir().unwrap();
        for (zone, cpus) in [(0, "0,2-3\n"), (1, "1\n"), (2, "\n")] {
            let dir = base.path().join(format!("node{zone}"));
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("cpulist"), cpus).unwrap();
        }
        fs::write(base.path().join("has_memory"), "0,2\n").unwrap();
        base
    }

    #[test]
    fn zones_are_read_as_the_kernel_describes_them() {
        let machine = machine();
        let find = |zone| NumaZone::find_in(machine.path(), zone);
        assert_eq!(find(0).unwrap(), NumaZone { zone: 0, cpus: vec![0, 2, 3], has_memory: true });
        assert_eq!(find(1).unwrap(), NumaZone { zone: 1, cpus: vec![1], has_memory: false });
        assert_eq!(find(2).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(find(3).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(find(u32::MAX).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(parse_list("1-x").is_err() && parse_list("").unwrap().is_empty());
    }

    #[test]
    fn a_thread_and_those_that_it_starts_stay_on_the_cpus_of_their_zone() {
        let all = crate::allowed_cpus();
        let last = *all.last().unwrap();
        let zone = NumaZone { zone: 0, cpus: vec![last], has_memory: false };
        let seen = std::thread::spawn(move || {
            zone.bind_thread().unwrap();
            std::thread::spawn(crate::allowed_cpus).join().unwrap()
        });
        assert_eq!(seen.join().unwrap(), [last]);
        assert_eq!(crate::allowed_cpus(), all, "the others stay where they were");
        let nowhere = NumaZone { zone: 0, cpus: vec![libc::CPU_SETSIZE as usize - 1], has_memory: false };
        assert_eq!(nowhere.bind_thread().unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn memory_of_a_zone_is_preferred() {
        let Some(zone) = NumaZone::all().first().map(|zone| NumaZone::find(*zone).unwrap()) else {
            // A kernel without NUMA has no zones, and no memory policies either.
            return;
        };
        let policy = std::thread::spawn(move || {
            zone.bind_thread().unwrap();
            let (mut mode, mut mask) = (-1, [0 as libc::c_ulong; 16]);
            // SAFETY: both live across the call, which writes at most 1,024 bits of the mask.
            let asked = unsafe {
                libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, mask.as_mut_ptr(), 1024, 0usize, 0)
            };
            (asked, mode, mask[0], zone.number())
        });
        let (asked, mode, mask, zone) = policy.join().unwrap();
        assert_eq!((asked, mode, mask), (0, MPOL_PREFERRED, 1 << zone));
    }
}
