//! Lines of `weft find -ls`, as `find -ls` prints them.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use rustix::fs::{FileType, Statx};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use types::HashMap;

/// Age in seconds from which on a line has the year of a file instead of the time of day.
const OLD_S: i64 = 6 * 30 * 24 * 60 * 60;
/// Seconds after which a time counts as being in the future, which shows the year, too.
const FUTURE_S: i64 = 60 * 60;

/// Formats lines.
pub struct Lines {
    now_s: i64,
    zone: TimeZone,
    users: Names,
    groups: Names,
}

impl Lines {
    pub fn new() -> Lines {
        Lines {
            now_s: Timestamp::now().as_second(),
            zone: TimeZone::system(),
            users: Names::new("passwd"),
            groups: Names::new("group"),
        }
    }

    /// Formats the line of a file. `target`: that of a symlink.
    pub fn format(&self, path: &Path, found: &Statx, target: Option<&[u8]>) -> String {
        let kind = FileType::from_raw_mode(found.stx_mode.into());
        let size = match kind.is_block_device() || kind.is_char_device() {
            true => format!("{:3}, {:3}", found.stx_rdev_major, found.stx_rdev_minor),
            false => format!("{:8}", found.stx_size),
        };
        let target = target.map(|target| format!(" -> {}", quoted(target))).unwrap_or_default();
        format!(
            "{:9} {:6} {} {:3} {:8} {:8} {size} {} {}{target}",
            found.stx_ino,
            found.stx_blocks.div_ceil(2),
            mode_letters(found.stx_mode.into()),
            found.stx_nlink,
            self.users.of(found.stx_uid),
            self.groups.of(found.stx_gid),
            self.time(found.stx_mtime.tv_sec),
            quoted(path.as_os_str().as_bytes()),
        )
    }

    fn time(&self, seconds: i64) -> String {
        let is_recent = (self.now_s - OLD_S..=self.now_s + FUTURE_S).contains(&seconds);
        let format = if is_recent { "%b %e %H:%M" } else { "%b %e  %Y" };
        match Timestamp::from_second(seconds) {
            Ok(time) => time.to_zoned(self.zone.clone()).strftime(format).to_string(),
            // Years that no calendar has.
            Err(_) => seconds.to_string(),
        }
    }
}

/// Names of users or groups: those of the machine's file, others as `getent` finds them.
struct Names {
    database: &'static str,
    known: Mutex<HashMap<u32, String>>,
}

impl Names {
    fn new(database: &'static str) -> Names {
        let text = fs::read(Path::new("/etc").join(database)).unwrap_or_default();
        let known = String::from_utf8_lossy(&text).lines().rev().filter_map(entry).collect();
        Names { database, known: Mutex::new(known) }
    }

    fn of(&self, id: u32) -> String {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let name = known.entry(id).or_insert_with(|| self.ask(id).unwrap_or_else(|| id.to_string()));
        name.clone()
    }

    /// A static binary has no access to directory services like LDAP; this program has.
    fn ask(&self, id: u32) -> Option<String> {
        let mut command = Command::new("getent");
        command.arg(self.database).arg(id.to_string()).stdin(Stdio::null()).stderr(Stdio::null());
        let out = command.output().ok()?;
        let (_, name) = entry(String::from_utf8_lossy(&out.stdout).lines().next()?)?;
        Some(name)
    }
}

/// Parses a line of passwd(5) or group(5).
fn entry(line: &str) -> Option<(u32, String)> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| !name.is_empty())?;
    Some((fields.nth(1)?.parse().ok()?, name.to_string()))
}

/// Formats a mode as `ls -l` does: `drwxr-sr-t`.
fn mode_letters(mode: u32) -> String {
    let kind = match FileType::from_raw_mode(mode) {
        FileType::RegularFile => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::BlockDevice => 'b',
        FileType::CharacterDevice => 'c',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        _ => '?',
    };
    let mut letters = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        letters.push(if bits & 4 != 0 { 'r' } else { '-' });
        letters.push(if bits & 2 != 0 { 'w' } else { '-' });
        letters.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    letters
}

/// Escapes a name as `find -ls` does: one line, and printable characters only.
fn quoted(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'\n' => text.push_str("\\n"),
            b'\x08' => text.push_str("\\b"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            b'\x0c' => text.push_str("\\f"),
            b' ' | b'"' | b'\\' => text.extend(['\\', char::from(*byte)]),
            b'!'..=b'~' => text.push(char::from(*byte)),
            _ => text.push_str(&format!("\\{byte:03o}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_of_ls() {
        for (mode, letters) in [
            (0o100644, "-rw-r--r--"),
            (0o041777, "drwxrwxrwt"),
            (0o106750, "-rwsr-s---"),
            (0o107000, "---S--S--T"),
            (0o120777, "lrwxrwxrwx"),
            (0o010000, "p---------"),
        ] {
            assert_eq!(mode_letters(mode), letters);
        }
    }

    #[test]
    fn names_are_escaped_as_in_find() {
        assert_eq!(quoted(b"a b\n\"\\\xff\x01-"), "a\\ b\\n\\\"\\\\\\377\\001-");
    }

    #[test]
    fn lines_of_passwd_and_group_have_names() {
        assert_eq!(entry("root:x:0:0:root:/root:/bin/sh"), Some((0, "root".into())));
        assert_eq!(entry("adm:x:4:syslog"), Some((4, "adm".into())));
        assert_eq!(entry("+::::::"), None);
    }
}
