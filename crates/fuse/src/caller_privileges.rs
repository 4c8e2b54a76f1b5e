//! Attributes of the calling thread that FUSE requests lack, read from `/proc`: groups,
//! capabilities and pending signals.

use client::UserPrivileges;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use types::Credentials;

/// Returns groups and capabilities of a waiting thread. `None` when the thread isn't visible from
/// here, or acts for another user (as a kernel thread does, or one that accesses the mount through
/// overlayfs).
pub(crate) fn of_caller(who: Credentials) -> Option<UserPrivileges> {
    // Held open: all reads below refer to one thread, even if another thread reuses its number.
    let thread = File::open(format!("/proc/{}", who.pid)).ok()?;
    let proc_dir = format!("/proc/self/fd/{}", thread.as_raw_fd());
    let status = fs::read_to_string(format!("{proc_dir}/status")).ok()?;
    let privileges = parse(&status, who)?;
    // In a user namespace that it has created, any user has all capabilities.
    let is_valid_here = privileges.capabilities != 0 && shares_user_namespace(&proc_dir);
    Some(UserPrivileges {
        capabilities: if is_valid_here { privileges.capabilities } else { 0 },
        ..privileges
    })
}

/// Returns whether a thread's capabilities are valid for the mount, which this process made.
fn shares_user_namespace(proc_dir: &str) -> bool {
    let namespace = |proc_dir: &str| {
        let file = fs::metadata(format!("{proc_dir}/ns/user")).ok()?;
        Some((file.dev(), file.ino()))
    };
    namespace(proc_dir).is_some_and(|of_thread| namespace("/proc/self") == Some(of_thread))
}

fn parse(status: &str, who: Credentials) -> Option<UserPrivileges> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    // The last of the four is the file system id (`credentials(7)`), which the request contains.
    let id = |name: &str| field(name)?.split_whitespace().nth(3)?.parse().ok();
    if (id("Uid:"), id("Gid:")) != (Some(who.uid), Some(who.gid)) {
        return None;
    }
    let groups = field("Groups:")?.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let capabilities = u64::from_str_radix(field("CapEff:")?.trim(), 16).ok()?;
    Some(UserPrivileges { groups, capabilities })
}

/// Returns whether a signal is pending for a thread that doesn't block it: then an interruptible
/// call must end. For a signal to a process with several threads, `/proc` doesn't show which thread
/// takes it, unless it ends all of them.
pub(crate) fn has_pending_signal(thread: u32) -> bool {
    // 0: the thread is in another PID namespace.
    let status = if thread == 0 { None } else { fs::read_to_string(format!("/proc/{thread}/status")).ok() };
    status.and_then(|status| pending_signals(&status)).is_some_and(|signals| signals != 0)
}

fn pending_signals(status: &str) -> Option<u64> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let set = |name: &str| u64::from_str_radix(field(name)?, 16).ok();
    let (own, blocked) = (set("SigPnd:")?, set("SigBlk:")?);
    let shared = if field("Threads:")? == "1" { set("ShdPnd:")? } else { 0 };
    Some((own | shared) & !blocked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn signals_that_wait_for_a_thread() {
        let status = |threads: u32, own: u64, shared: u64, blocked: u64| {
            let sets = format!("SigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n");
            pending_signals(&format!("Name:\tsh\nThreads:\t{threads}\nSigQ:\t0/5\n{sets}SigIgn:\t0\n"))
        };
        assert_eq!(status(1, 0, 0, 0), Some(0));
        assert_eq!(status(1, 0, 0x200, 0), Some(0x200));
        assert_eq!(status(1, 0, 0x200, 0x200), Some(0));
        assert_eq!(status(3, 0, 0x200, 0), Some(0), "it may be another thread's");
        assert_eq!(status(3, 0x100, 0, 0), Some(0x100), "SIGKILL is every thread's");
        assert_eq!(pending_signals("Threads:\t1\n"), None);
        assert!(
            !has_pending_signal(0)
                && !has_pending_signal(u32::MAX)
                && !has_pending_signal(std::process::id())
        );
    }

    const WHO: Credentials = Credentials { uid: 1000, gid: 100, pid: 7 };

    #[test]
    fn groups_and_capabilities_of_a_thread() {
        let status = |groups: &str, caps: &str| {
            let ids = "Uid:\t0\t0\t0\t1000\nGid:\t0\t0\t0\t100\n";
            format!("Name:\tsh\n{ids}Groups:\t{groups} \nCapEff:\t{caps}\n")
        };
        let plain = parse(&status("4 24 1000", "0000000000000000"), WHO);
        assert_eq!(plain, Some(UserPrivileges { groups: vec![4, 24, 1000], capabilities: 0 }));
        let backup = parse(&status("", "0000000000000002"), WHO);
        assert_eq!(backup, Some(UserPrivileges { groups: vec![], capabilities: 2 }));
        assert_eq!(parse("Name:\tsh\n", WHO), None);
        assert_eq!(parse(&status("x", "0"), WHO), None);
        for another in [Credentials { uid: 0, ..WHO }, Credentials { gid: 0, ..WHO }] {
            assert_eq!(parse(&status("", "0"), another), None, "it acts for another user");
        }
    }

    /// Returns the user of a process, as the kernel puts it into a request.
    fn of_process(pid: u32) -> Credentials {
        let own = fs::metadata(format!("/proc/{pid}")).unwrap();
        Credentials { uid: own.uid(), gid: own.gid(), pid }
    }

    #[test]
    fn privileges_exist_only_for_live_processes() {
        let own = of_process(std::process::id());
        assert!(of_caller(own).is_some());
        assert_eq!(of_caller(Credentials { uid: own.uid + 1, ..own }), None);
        for pid in [0, u32::MAX] {
            assert_eq!(of_caller(Credentials { pid, ..own }), None);
        }
    }

    #[test]
    fn capabilities_in_another_user_namespace_are_ignored() {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "sh", "-c", "echo; read line"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.is_empty() {
            println!("skipped: no user namespace can be made");
        } else {
            let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
            let who = of_process(child.id());
            assert_ne!(parse(&status, who).unwrap().capabilities, 0, "it has all in its own namespace");
            assert_eq!(of_caller(who).unwrap().capabilities, 0);
        }
        drop(child.stdin.take());
        child.wait().unwrap();
        let own = std::process::id();
        assert!(shares_user_namespace(&format!("/proc/{own}")));
    }
}
