//! `weft session show`: the session of a mount, and the sessions that it replaced.

use super::net::of_mount;
use crate::cli::SessionShowArgs;
use crate::control::{MountSession, Request};
use crate::output::show;
use types::Result;

/// Queries the mount at a path.
pub fn run(args: &SessionShowArgs) -> Result<()> {
    let info: MountSession = of_mount(&args.mountpoint, Request::Session)?;
    show(args.json, &info, || screen_of(&info))
}

/// Formats the answer as sentences.
pub fn screen_of(info: &MountSession) -> String {
    let now_s = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    screen_at(info, now_s.map_or(0, |now| now.as_secs() as i64))
}

fn screen_at(info: &MountSession, now_s: i64) -> String {
    let mut text = match &info.missing {
        Some(why) => format!("no session: {why}\n"),
        None => format!("session {}\n", info.session),
    };
    if let Some(rack) = &info.rack {
        text += &format!("in rack {rack}: reads prefer replicas there\n");
    }
    if let Some(last) = &info.replaced {
        let times = match info.replacements {
            1 => String::new(),
            times => format!(" (the last of {times} replacements)"),
        };
        text += &format!(
            "it replaced session {}{times} {} s ago: {}\n{} files were open then; applications still have {} lost files open\n",
            last.session,
            (now_s - last.at_s).max(0),
            last.cause,
            last.files,
            info.files_of_before,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ReplacedSessionInfo;

    #[test]
    fn replaced_sessions_are_shown() {
        let first = MountSession {
            session: 7,
            missing: None,
            rack: None,
            replacements: 0,
            replaced: None,
            files_of_before: 0,
        };
        assert_eq!(screen_at(&first, 100), "session 7\n");
        let in_rack = MountSession { rack: Some("r1".into()), ..first.clone() };
        assert_eq!(screen_at(&in_rack, 100), "session 7\nin rack r1: reads prefer replicas there\n");
        let replaced =
            ReplacedSessionInfo { session: 7, at_s: 60, cause: "it was unreachable".into(), files: 3 };
        let second = MountSession {
            session: 9,
            replacements: 1,
            replaced: Some(replaced),
            files_of_before: 2,
            ..first.clone()
        };
        let text = screen_at(&second, 100);
        for part in
            ["session 9\n", "replaced session 7 40 s ago: it was unreachable", "3 files", "still have 2"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        let missing = MountSession { missing: Some("refused".into()), ..second };
        assert!(screen_at(&missing, 100).starts_with("no session: refused\n"));
    }
}
