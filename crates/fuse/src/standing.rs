//! What the kernel's requests don't say of who asks: groups and capabilities, from `/proc`.

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

#[cfg(test)]
mod tests {
    use super::*;

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
