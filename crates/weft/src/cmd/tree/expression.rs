//! The expressions of `weft find`: a part of those of find(1), with the same meaning.

use crate::output::os_error;
use rustix::fs::{FileType, Statx};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use tree::{Found, ListOptions};
use types::{Errno, Error, Result};

/// What `weft find` does.
pub struct Expression {
    pub paths: Vec<PathBuf>,
    pub options: ListOptions,
    pub action: Action,
    tests: Vec<Test>,
}

/// What is printed of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Print,
    Print0,
    List,
}

/// A condition on a file.
enum Test {
    Name(Vec<u8>),
    Kinds(Vec<FileType>),
    Size {
        units: u64,
        unit_bytes: u64,
        order: std::cmp::Ordering,
    },
    /// Modified later than this time, in seconds and nanoseconds.
    Newer(i64, i64),
}

impl Expression {
    /// Parses the words of a command line.
    pub fn parse(words: &[OsString]) -> Result<Expression> {
        let is_expression = |word: &OsString| word.as_bytes().starts_with(b"-");
        let number = words.iter().position(is_expression).unwrap_or(words.len());
        let (named, words) = words.split_at(number);
        let mut paths: Vec<PathBuf> = named.iter().map(PathBuf::from).collect();
        if paths.is_empty() {
            paths.push(PathBuf::from("."));
        }
        let mut words = words.iter();
        let options = ListOptions::default();
        let mut expression = Expression { paths, options, action: Action::Print, tests: Vec::new() };
        let mut actions = Vec::new();
        while let Some(word) = words.next() {
            let mut value = || {
                words.next().map(|value| value.clone().into_vec()).ok_or_else(|| {
                    wrong(format!("{} needs a value", word.display()), "weft find --help shows which")
                })
            };
            match word.as_bytes() {
                b"-name" => expression.tests.push(Test::Name(value()?)),
                b"-type" => expression.tests.push(Test::Kinds(kinds(&value()?)?)),
                b"-size" => expression.tests.push(size(&value()?)?),
                b"-newer" => expression.tests.push(newer(value()?)?),
                b"-maxdepth" => expression.options.max_depth = Some(depth(&value()?)?),
                b"-xdev" | b"-mount" => expression.options.one_file_system = true,
                b"-print" => actions.push(Action::Print),
                b"-print0" => actions.push(Action::Print0),
                b"-ls" => actions.push(Action::List),
                _ => {
                    let message = format!("{} is not a word that weft find knows", word.display());
                    return Err(wrong(message, "weft find --help shows them; find(1) has more"));
                }
            }
        }
        match actions[..] {
            [] => (),
            [action] => expression.action = action,
            _ => return Err(wrong("there are two actions".into(), "give one of -print, -print0, -ls")),
        }
        Ok(expression)
    }

    /// Whether a file fulfils all conditions. `attributes` are those of the file, if they have been
    /// read.
    pub fn matches(
        &self,
        found: &Found<'_>,
        attributes: &mut Option<Statx>,
    ) -> std::result::Result<bool, rustix::io::Errno> {
        for test in &self.tests {
            let holds = match test {
                Test::Name(pattern) => matches_pattern(pattern, found.name),
                Test::Kinds(kinds) => kinds.contains(&found.kind),
                Test::Size { .. } | Test::Newer(..) => {
                    let known = match attributes.take() {
                        Some(known) => known,
                        None => found.attributes()?,
                    };
                    test.holds(attributes.insert(known))
                }
            };
            if !holds {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Test {
    fn holds(&self, found: &Statx) -> bool {
        match self {
            Test::Size { units, unit_bytes, order } => {
                found.stx_size.div_ceil(*unit_bytes).cmp(units) == *order
            }
            Test::Newer(seconds, nanoseconds) => {
                (found.stx_mtime.tv_sec, i64::from(found.stx_mtime.tv_nsec)) > (*seconds, *nanoseconds)
            }
            Test::Name(_) | Test::Kinds(_) => true,
        }
    }
}

fn wrong(message: String, hint: &str) -> Error {
    Error::new(Errno::EINVAL, message).hint(hint.to_string())
}

fn kinds(letters: &[u8]) -> Result<Vec<FileType>> {
    let kind = |letter: &[u8]| match letter {
        b"f" => Some(FileType::RegularFile),
        b"d" => Some(FileType::Directory),
        b"l" => Some(FileType::Symlink),
        b"b" => Some(FileType::BlockDevice),
        b"c" => Some(FileType::CharacterDevice),
        b"p" => Some(FileType::Fifo),
        b"s" => Some(FileType::Socket),
        _ => None,
    };
    let all: Option<_> = letters.split(|byte| *byte == b',').map(kind).collect();
    all.ok_or_else(|| {
        let letters = letters.escape_ascii();
        wrong(
            format!("{letters} is not a type of files"),
            "types are f, d, l, b, c, p and s, as in -type f,l",
        )
    })
}

fn size(text: &[u8]) -> Result<Test> {
    let (order, rest) = match text {
        [b'+', rest @ ..] => (std::cmp::Ordering::Greater, rest),
        [b'-', rest @ ..] => (std::cmp::Ordering::Less, rest),
        rest => (std::cmp::Ordering::Equal, rest),
    };
    let (number, unit_bytes) = match rest {
        [number @ .., b'c'] => (number, 1),
        [number @ .., b'w'] => (number, 2),
        [number @ .., b'k'] => (number, 1 << 10),
        [number @ .., b'M'] => (number, 1 << 20),
        [number @ .., b'G'] => (number, 1 << 30),
        [number @ .., b'b'] | number => (number, 512),
    };
    match parse_number(number) {
        Some(units) => Ok(Test::Size { units, unit_bytes, order }),
        None => Err(wrong(
            format!("{} is not a size", text.escape_ascii()),
            "write for example -size +100M: more than 100 MiB; units are c, w, b, k, M and G",
        )),
    }
}

fn depth(text: &[u8]) -> Result<usize> {
    parse_number(text).and_then(|depth| usize::try_from(depth).ok()).ok_or_else(|| {
        wrong(format!("{} is not a number of levels", text.escape_ascii()), "write for example -maxdepth 2")
    })
}

fn parse_number(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

fn newer(path: Vec<u8>) -> Result<Test> {
    let path = PathBuf::from(OsString::from_vec(path));
    let found =
        path.symlink_metadata().map_err(|e| os_error(format_args!("-newer {}", path.display()), &e))?;
    Ok(Test::Newer(found.mtime(), found.mtime_nsec()))
}

/// Matches a name with a pattern as fnmatch(3) does in the C locale: `*`, `?`, `[a-z]`, `[!a-z]`,
/// and a backslash before a character that means itself.
fn matches_pattern(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut pos) = (0, 0);
    // Where to continue if the rest doesn't match: after the last `*`, with one more byte of the
    // name for it.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            retry = Some((at, pos));
            continue;
        }
        let step = match (pattern.get(at), name.get(pos)) {
            (None, None) => return true,
            (Some(_), Some(byte)) => matched_byte(&pattern[at..], *byte),
            _ => None,
        };
        match (step, retry) {
            (Some(length), _) => (at, pos) = (at + length, pos + 1),
            (None, Some((star, begin))) if begin < name.len() => {
                retry = Some((star, begin + 1));
                (at, pos) = (star, begin + 1);
            }
            _ => return false,
        }
    }
}

/// Returns the length of the first part of a pattern, if it matches a byte.
fn matched_byte(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'[', set @ ..] => match matched_set(set, byte) {
            Some((is_in, length)) => is_in.then_some(1 + length),
            // Without its end, the bracket means itself.
            None => (byte == b'[').then_some(1),
        },
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [first, ..] => (*first == byte).then_some(1),
        [] => None,
    }
}

/// Returns whether a byte is in a set, and the length of the set after its bracket.
fn matched_set(set: &[u8], byte: u8) -> Option<(bool, usize)> {
    let is_inverted = matches!(set.first(), Some(b'!' | b'^'));
    let begin = usize::from(is_inverted);
    let (mut at, mut is_in) = (begin, false);
    loop {
        let first = match set.get(at)? {
            b']' if at > begin => return Some((is_in != is_inverted, at + 1)),
            b'\\' => {
                at += 1;
                *set.get(at)?
            }
            first => *first,
        };
        at += 1;
        let last = match (set.get(at), set.get(at + 1)) {
            (Some(b'-'), Some(last)) if *last != b']' => {
                at += 2;
                *last
            }
            _ => first,
        };
        is_in |= (first..=last).contains(&byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_as_in_find() {
        for (pattern, name, does) in [
            ("*.rs", "lib.rs", true),
            ("*.rs", ".rs", true),
            ("*.rs", "lib.rst", false),
            ("a*b*c", "axxbxbxc", true),
            ("a*b*c", "axxbxbx", false),
            ("?", "", false),
            ("[a-c]?[!0-9]", "bxz", true),
            ("[a-c]?[!0-9]", "bx7", false),
            ("[]x]", "]", true),
            ("[", "[", true),
            ("[a", "[a", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("", "", true),
            ("**", "", true),
            ("*a", "ba\na", true),
        ] {
            assert_eq!(matches_pattern(pattern.as_bytes(), name.as_bytes()), does, "{pattern} {name}");
        }
    }

    fn parse(line: &str) -> Result<Expression> {
        Expression::parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn words_are_parsed() {
        let expression = parse("a b -xdev -type f,l -maxdepth 3 -ls").unwrap();
        assert_eq!(expression.paths, [PathBuf::from("a"), PathBuf::from("b")]);
        assert_eq!((expression.action, expression.options.max_depth), (Action::List, Some(3)));
        assert!(expression.options.one_file_system);
        assert_eq!(parse("").unwrap().paths, [PathBuf::from(".")]);
        assert_eq!(parse("").unwrap().action, Action::Print);
    }

    #[test]
    fn wrong_words_are_refused() {
        for (line, object) in [
            ("-delete", "-delete"),
            (". -name", "-name"),
            (". -type x", "x"),
            (". -size big", "big"),
            (". -size +", "+"),
            (". -maxdepth -1", "-1"),
            (". -print -ls", "two actions"),
            (". -newer /nonexistent", "/nonexistent"),
            (". -ls extra", "extra"),
        ] {
            let Err(error) = parse(line) else { panic!("{line}") };
            assert!(error.message.contains(object), "{line}: {error}");
        }
    }
}
