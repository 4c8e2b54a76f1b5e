//! The project's own rules, checked on its source text.
//!
//! rustfmt and clippy check single expressions. These rules check the whole: sizes of files and
//! functions, what a pure crate may use, where `unsafe` may appear, and that nothing unfinished or
//! machine-specific remains in the text.

use crate::build;
use crate::references::SourceNames;
use crate::words;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum number of lines in a file.
const MAX_FILE_LINES: usize = 800;

/// Number of lines beyond which a function gets a warning, not an error.
const MAX_FUNCTION_LINES: usize = 70;

/// Crates that do no I/O, read no clock and start no threads.
const PURE_CRATES: &[&str] = &["types", "wire", "layout", "namespace", "history", "model"];

/// Text that a pure crate must not contain.
const IMPURE: &[&str] =
    &["std::fs", "std::net", "std::thread", "Instant::now", "SystemTime::now", "std::process", "tokio::"];

/// Where `unsafe` may appear: the runtime, the kernel protocol, the ring of the load generator, and
/// this tool's own system calls.
const UNSAFE_HOMES: &[&str] =
    &["crates/rt/", "crates/fuse/", "crates/bench/src/load/ring.rs", "xtask/src/sys/"];

/// Markers of unfinished code. Written in halves so that this file passes its own rules.
const UNFINISHED: &[&str] = &[
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("// TO", "DO"),
    concat!("// FIX", "ME"),
    // With a reason (`= "..."`) it is a helper that another test starts.
    concat!("#[ign", "ore]"),
];

/// Prefixes of paths that exist on one machine only.
const PRIVATE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Macros that panic when standard output or standard error is a closed pipe or a full disk.
const PRINTERS: &[&str] = &["print!(", "println!("];

/// The random number generator whose output is predictable from one number.
const PREDICTABLE_RANDOM: &str = concat!("random", "_u64");

/// Where that generator is forbidden: these crates create keys, tokens and the ids of sessions and
/// members.
const SECRET_HOMES: &[&str] =
    &["crates/identity/src/", "crates/mgmt/src/", "crates/node/src/", "crates/weft/src/"];

/// Functions that create a secret elsewhere in shipped code.
const SECRET_MAKERS: &[&str] = &["SessionId::drawn("];

/// Crates that are test tools: they may end when their output is closed.
const TEST_TOOLS: &[&str] = &["history", "model", "mutate", "sim", "testkit"];

/// A violation of a rule.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    /// `file:line`.
    place: String,
    /// What is wrong, and the fix.
    message: String,
    /// Whether it is an error; a warning is only printed.
    fatal: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.fatal { "error" } else { "warning" };
        write!(f, "{kind}: {}: {}", self.place, self.message)
    }
}

/// Checks every source and document of the workspace.
pub fn run() -> Result<(), String> {
    let root = build::root();
    let mut findings = Vec::new();
    let (mut names, mut documents) = (SourceNames::default(), Vec::new());
    for path in sources(&root)? {
        let text = fs::read_to_string(root.join(&path))
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let path = path.to_string_lossy().into_owned();
        findings.extend(judge(&path, &text));
        names.add(&path, &text);
        // The change log names what existed then.
        if path.ends_with(".md") && path != "CHANGELOG.md" {
            documents.push((path, text));
        }
    }
    for (path, text) in &documents {
        findings.extend(dead_references(path, text, &names));
    }
    for finding in &findings {
        println!("{finding}");
    }
    match findings.iter().filter(|finding| finding.fatal).count() {
        0 => Ok(()),
        count => Err(format!("tidy: {count} rules broken")),
    }
}

/// Returns the text files of the project, relative to its root folder, in order.
fn sources(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(folder) = open.pop() {
        let list =
            fs::read_dir(root.join(&folder)).map_err(|error| format!("{}: {error}", folder.display()))?;
        for entry in list.flatten() {
            let name = entry.file_name();
            let text = name.to_string_lossy();
            let path = folder.join(&name);
            // Not checked: build output, state of a running file system, and git's own files.
            let skipped = ["target", "weft-data", "mnt", ".git"].contains(&text.as_ref());
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && !skipped => open.push(path),
                Ok(kind) if kind.is_file() && is_text(&text) => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Returns whether rules apply to a file of this name.
fn is_text(name: &str) -> bool {
    [".rs", ".md", ".toml", ".yml", ".fio"].iter().any(|end| name.ends_with(end))
        || ["Makefile", "run"].contains(&name)
}

/// Returns all violations in one file.
fn judge(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = private_paths(path, text);
    findings.extend(rejected_words(path, text));
    if !path.ends_with(".rs") {
        return findings;
    }
    let lines: Vec<&str> = text.lines().collect();
    let code_end = if is_test_file(path) { 0 } else { test_start(&lines) };
    let code = &lines[..code_end];
    if lines.len() >= MAX_FILE_LINES {
        let message = format!("{} lines; split it below {MAX_FILE_LINES}", lines.len());
        findings.push(Finding { place: path.to_string(), message, fatal: true });
    }
    findings.extend(unfinished(path, &lines, code_end));
    findings.extend(long_functions(path, code));
    findings.extend(impurities(path, code));
    findings.extend(stray_unsafe(path, &lines));
    findings.extend(panicking_output(path, code));
    findings.extend(predictable_secrets(path, code));
    findings
}

fn finding(path: &str, line: usize, message: String) -> Finding {
    Finding { place: format!("{path}:{}", line + 1), message, fatal: true }
}

/// Returns whether a whole file is test code.
fn is_test_file(path: &str) -> bool {
    // testkit is part of the tests of several crates.
    let is_testkit = path.starts_with("crates/testkit/");
    is_testkit || path.ends_with("/tests.rs") || path.contains("/tests/") || path.ends_with("_tests.rs")
}

/// Returns the line at which a file's own test module starts.
fn test_start(lines: &[&str]) -> usize {
    let attribute = lines
        .windows(2)
        .position(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{'));
    attribute.unwrap_or(lines.len())
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

fn private_paths(path: &str, text: &str) -> Vec<Finding> {
    let named = |line: &str| PRIVATE_PATHS.iter().find(|private| line.contains(**private)).copied();
    text.lines()
        .enumerate()
        .filter_map(|(number, line)| Some((number, named(line)?)))
        .map(|(number, private)| finding(path, number, format!("names a path below {private}")))
        .collect()
}

/// Returns the uses of words for which the glossary has a term.
fn rejected_words(path: &str, text: &str) -> Vec<Finding> {
    let rejected = words::rejected(path, text).into_iter();
    rejected
        .map(|(line, word, instead)| {
            finding(path, line, format!("{word:?} isn't used: write {instead}, as docs/glossary.md says"))
        })
        .collect()
}

/// Returns the references of a document to modules, items and files that don't exist.
fn dead_references(path: &str, text: &str, names: &SourceNames) -> Vec<Finding> {
    let dead = names.dead(text).into_iter();
    dead.map(|(line, name)| finding(path, line, format!("{name} doesn't exist: was it renamed?"))).collect()
}

fn unfinished(path: &str, lines: &[&str], code_end: usize) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        if let Some(mark) = UNFINISHED.iter().find(|mark| line.contains(**mark)) {
            findings.push(finding(path, number, format!("unfinished: {mark}")));
        }
        if number < code_end && !is_comment(line) && line.contains(concat!(".unwr", "ap()")) {
            let message = "panics without a reason; use expect(\"why it can't fail\") or return the error";
            findings.push(finding(path, number, message.to_string()));
        }
    }
    findings
}

/// Finds long functions in rustfmt's layout: from the line with `fn` to the closing brace with the
/// same indentation.
fn long_functions(path: &str, code: &[&str]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (start, line) in code.iter().enumerate().filter(|(_, line)| starts_function(line)) {
        let indent = line.len() - line.trim_start().len();
        let closing = format!("{}}}", " ".repeat(indent));
        let Some(length) = code[start..].iter().position(|line| *line == closing) else { continue };
        // Without this, a declaration without a body would extend to the end of its trait.
        let declared = code[start..start + length].iter().find(|line| line.ends_with(['{', ';']));
        if length >= MAX_FUNCTION_LINES && declared.is_some_and(|line| line.ends_with('{')) {
            let message = format!("function of {} lines; consider splitting it", length + 1);
            findings.push(Finding { fatal: false, ..finding(path, start, message) });
        }
    }
    findings
}

fn starts_function(line: &str) -> bool {
    let mut rest = line.trim_start();
    for word in ["pub(crate) ", "pub(super) ", "pub ", "const ", "async ", "unsafe ", "extern \"C\" "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    rest.starts_with("fn ")
}

fn impurities(path: &str, code: &[&str]) -> Vec<Finding> {
    let pure = PURE_CRATES.iter().any(|name| path.starts_with(&format!("crates/{name}/src/")));
    let named = |line: &str| IMPURE.iter().find(|word| line.contains(**word)).copied();
    let lines = code.iter().enumerate().filter(|(_, line)| pure && !is_comment(line));
    lines
        .filter_map(|(number, line)| Some((number, named(line)?)))
        .map(|(number, word)| {
            finding(path, number, format!("a pure crate uses {word}; let the caller pass it in"))
        })
        .collect()
}

/// Returns whether a file is part of the binary.
fn is_shipped(path: &str) -> bool {
    let is_tool = TEST_TOOLS.iter().any(|name| path.starts_with(&format!("crates/{name}/")));
    path.starts_with("crates/") && !is_tool
}

/// Secrets must come from the kernel's random number generator.
fn predictable_secrets(path: &str, code: &[&str]) -> Vec<Finding> {
    let is_home = SECRET_HOMES.iter().any(|home| path.starts_with(home));
    let makes = |line: &str| is_home || SECRET_MAKERS.iter().any(|maker| line.contains(maker));
    let message = format!("{PREDICTABLE_RANDOM} is predictable; take rt::secret_u64 or rt::secret_bytes");
    let lines = code.iter().enumerate().filter(|(_, line)| {
        is_shipped(path) && !is_comment(line) && line.contains(PREDICTABLE_RANDOM) && makes(line)
    });
    lines.map(|(number, _)| finding(path, number, message.clone())).collect()
}

/// Log output must not end a service, and a closed pipe must not make a command panic.
fn panicking_output(path: &str, code: &[&str]) -> Vec<Finding> {
    let prints = |line: &str| !is_comment(line) && PRINTERS.iter().any(|word| line.contains(word));
    let message =
        "panics when standard output or standard error fails; use tracing, or `output` of the weft crate";
    let lines = code.iter().enumerate().filter(|(_, line)| is_shipped(path) && prints(line));
    lines.map(|(number, _)| finding(path, number, message.to_string())).collect()
}

fn stray_unsafe(path: &str, lines: &[&str]) -> Vec<Finding> {
    let keyword = concat!("uns", "afe ");
    let at_home = UNSAFE_HOMES.iter().any(|home| path.starts_with(home));
    let used = |line: &str| {
        let text = line.trim_start();
        !is_comment(line) && (text.starts_with(keyword) || text.contains(&format!(" {keyword}")[..]))
    };
    let quoted = |line: &str| line.contains('"') && !line.contains(&format!("{keyword}{{")[..]);
    lines
        .iter()
        .enumerate()
        .filter(|(_, line)| !at_home && used(line) && !quoted(line))
        .map(|(number, _)| finding(path, number, format!("{keyword}code belongs in rt or fuse")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        judge(path, text).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn clean_code_passes() {
        let text = "//! Fine.\n\n/// Adds.\npub fn add(a: u64) -> u64 {\n    a + 1\n}\n";
        assert_eq!(messages("crates/wire/src/add.rs", text), Vec::<String>::new());
    }

    #[test]
    fn panics_are_allowed_in_tests_only() {
        let text = "fn f() {\n    g().unwrap();\n}\n\n#[cfg(test)]\nmod tests {\n    fn t() {\n        g().unwrap();\n    }\n}\n";
        let found = messages("crates/meta/src/a.rs", text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("a.rs:2"), "{found:?}");
        assert!(messages("crates/meta/src/a/tests.rs", text).is_empty());
        assert!(messages("crates/testkit/src/a.rs", text).is_empty());
    }

    #[test]
    fn unfinished_code_is_found_everywhere() {
        let text = format!("fn f() {{\n    {})\n}}\n", concat!("todo", "!("));
        assert_eq!(messages("crates/meta/tests/a.rs", &text).len(), 1);
    }

    #[test]
    fn a_long_file_fails_and_a_long_function_warns() {
        let file = "// line\n".repeat(MAX_FILE_LINES);
        assert!(messages("a.rs", &file)[0].starts_with("error"));
        let function = format!("pub fn long() {{\n{}}}\n", "    step();\n".repeat(MAX_FUNCTION_LINES));
        assert!(messages("a.rs", &function)[0].starts_with("warning: a.rs:1"));
    }

    #[test]
    fn pure_crates_touch_nothing() {
        let text = "use std::fs;\n";
        assert_eq!(messages("crates/layout/src/a.rs", text).len(), 1);
        assert!(messages("crates/chunkstore/src/a.rs", text).is_empty());
    }

    #[test]
    fn raw_code_has_two_homes() {
        let text = format!("fn f() {{\n    let x = {} {{ g() }};\n}}\n", concat!("uns", "afe"));
        assert_eq!(messages("crates/meta/src/a.rs", &text).len(), 1);
        assert!(messages("crates/rt/src/a.rs", &text).is_empty());
    }

    #[test]
    fn shipped_code_prints_without_panics() {
        let text = "fn f() {\n    eprintln!(\"x\");\n}\n";
        assert_eq!(messages("crates/weft/src/a.rs", text).len(), 1);
        assert!(messages("crates/weft/src/a/tests.rs", text).is_empty());
        assert!(messages("crates/sim/src/a.rs", text).is_empty());
        assert!(messages("xtask/src/a.rs", text).is_empty());
    }

    #[test]
    fn secrets_are_not_predictable() {
        let id = format!("fn f() {{\n    rt::{PREDICTABLE_RANDOM}()\n}}\n");
        assert_eq!(messages("crates/mgmt/src/a.rs", &id).len(), 1);
        assert_eq!(messages("crates/identity/src/a.rs", &id).len(), 1);
        assert!(messages("crates/mgmt/tests/a.rs", &id).is_empty());
        assert!(messages("crates/net/src/a.rs", &id).is_empty());
        let session = id.replace("rt::", "SessionId::drawn(rt::");
        assert_eq!(messages("crates/meta/src/a.rs", &session).len(), 1);
        assert!(messages("crates/sim/src/a.rs", &session).is_empty());
    }

    #[test]
    fn private_paths_are_found_in_documents_too() {
        assert_eq!(messages("docs/a.md", &format!("see {}x\n", concat!("/wo", "rk/"))).len(), 1);
    }
}
