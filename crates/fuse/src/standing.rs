//! What the kernel's requests don't say of who asks, from `/proc`: groups and capabilities, and whether a signal waits for it.

use client::Standing;
use std::fs;

/// Capabilities that let a process do to files what its ids don't allow: `CAP_CHOWN`, `CAP_DAC_OVERRIDE`, `CAP_FOWNER`, `CAP_SYS_ADMIN`,
/// `CAP_MKNOD` and `CAP_SETFCAP` (Linux `include/uapi/linux/capability.h`).
const FILE_CAPABILITIES: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 21 | 1 << 27 | 1 << 31;

/// The standing of a process that waits for an answer; `None` when it can't be seen from here.
pub(crate) fn of_process(pid: u32) -> Option<Standing> {
    // 0: it is in another name space of processes.
    let status = (pid != 0).then(|| fs::read_to_string(format!("/proc/{pid}/status")).ok())??;
    parse(&status)
}

fn parse(status: &str) -> Option<Standing> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let groups = field("Groups:")?.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let capabilities = u64::from_str_radix(field("CapEff:")?.trim(), 16).ok()?;
    Some(Standing { groups, privileged: capabilities & FILE_CAPABILITIES != 0 })
}

/// Whether a signal waits for a thread that it doesn't block: then a call that can be interrupted is to end. Of a signal to a process of several threads it can't be
/// told which of them is to take it, unless it ends them all.
pub(crate) fn has_signal(thread: u32) -> bool {
    // 0: it is in another name space of processes.
    let status = if thread == 0 { None } else { fs::read_to_string(format!("/proc/{thread}/status")).ok() };
    status.and_then(|status| signals(&status)).is_some_and(|signals| signals != 0)
}

fn signals(status: &str) -> Option<u64> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let set = |name: &str| u64::from_str_radix(field(name)?, 16).ok();
    let (own, blocked) = (set("SigPnd:")?, set("SigBlk:")?);
    let shared = if field("Threads:")? == "1" { set("ShdPnd:")? } else { 0 };
    Some((own | shared) & !blocked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_wait_for_a_thread() {
        let status = |threads: u32, own: u64, shared: u64, blocked: u64| {
            let sets = format!("SigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n");
            signals(&format!("Name:\tsh\nThreads:\t{threads}\nSigQ:\t0/5\n{sets}SigIgn:\t0\n"))
        };
        assert_eq!(status(1, 0, 0, 0), Some(0));
        assert_eq!(status(1, 0, 0x200, 0), Some(0x200));
        assert_eq!(status(1, 0, 0x200, 0x200), Some(0));
        assert_eq!(status(3, 0, 0x200, 0), Some(0), "it may be another thread's");
        assert_eq!(status(3, 0x100, 0, 0), Some(0x100), "SIGKILL is every thread's");
        assert_eq!(signals("Threads:\t1\n"), None);
        assert!(!has_signal(0) && !has_signal(u32::MAX) && !has_signal(std::process::id()));
    }

    #[test]
    fn groups_and_capabilities_of_a_process() {
        let status = |groups: &str, caps: &str| format!("Name:\tsh\nGroups:\t{groups} \nCapEff:\t{caps}\n");
        let plain = parse(&status("4 24 1000", "0000000000000000"));
        assert_eq!(plain, Some(Standing { groups: vec![4, 24, 1000], privileged: false }));
        let backup = parse(&status("", "0000000000000002"));
        assert_eq!(backup, Some(Standing { groups: vec![], privileged: true }));
        // Binding low ports says nothing of files.
        assert_eq!(parse(&status("", "0000000000000400")).map(|s| s.privileged), Some(false));
        assert_eq!(parse("Name:\tsh\n"), None);
        assert_eq!(parse(&status("x", "0")), None);
    }

    #[test]
    fn this_process_has_a_standing_and_one_that_is_gone_has_none() {
        assert!(of_process(std::process::id()).is_some());
        assert_eq!(of_process(0), None);
        assert_eq!(of_process(u32::MAX), None);
    }
}
