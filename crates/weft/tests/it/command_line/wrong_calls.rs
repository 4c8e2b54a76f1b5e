//! Wrong calls of many kinds: each has its exit status, an error that names the object, and a hint.
//! A command in a hint must be one that weft accepts.

use super::{stderr_text, stdout_text, stopped_node, weft, weft_in};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Calls with their status, a part of the message and a part of the hint. `{node}` is the directory
/// of a stopped node, `{base}` an empty directory beside it.
const CALLS: &[(&str, i32, &str, &str)] = &[
    ("", 64, "weft needs a command", "weft --help"),
    ("frobnicate", 64, "'frobnicate'", "weft --help"),
    ("statsu", 64, "'statsu'", "did you mean status?"),
    ("help frobnicate", 64, "'frobnicate'", "weft --help"),
    ("up", 64, "--mount", "weft up --help"),
    ("up --mount m --targets 0", 64, "'0'", "weft up --help"),
    ("up --mount m --targets 65", 64, "'65'", "weft up --help"),
    ("up --mount m --targets 2 --target-dir /a", 64, "--target-dir", "weft up --help"),
    ("up --mount m --transport pigeon", 64, "'pigeon'", "weft up --help"),
    ("up --mount m --durability relaxd", 64, "'relaxd'", "did you mean relaxed?"),
    ("down --timeout 0", 64, "'0'", "weft down --help"),
    ("down --dir {node}", 1, "is not running", "weft serve --dir {node}"),
    ("serve --dir {base}/absent", 1, "{base}/absent", ""),
    ("serve --numa x", 64, "'x'", "weft serve --help"),
    ("mount", 64, "<MOUNTPOINT>", "weft mount --help"),
    ("mount c m --timeout 0", 64, "'0'", "weft mount --help"),
    ("mount c m --read-onyl", 64, "'--read-onyl'", "did you mean --read-only?"),
    ("mount {base}/absent.toml {base}", 1, "{base}/absent.toml", "weft client add"),
    ("mount-helper {base}/absent.toml {base} -o frobnicate", 1, "frobnicate", "timeout=SECONDS"),
    ("umount", 64, "<MOUNTPOINT>", "weft umount --help"),
    ("umount {base}", 1, "{base}", "findmnt"),
    ("status --dir {base}/absent", 1, "{base}/absent", ""),
    ("status --dir {node}", 1, "the node in {node} is not running", "weft serve --dir {node}"),
    ("status --watch 0", 64, "'0'", "weft status --help"),
    ("status --watch often", 64, "'often'", "weft status --help"),
    ("health --dir {node}", 3, "is not running", "weft serve --dir {node}"),
    ("health --of target:1", 64, "--exposure", "weft health --help"),
    ("health --exposure --of disk:1", 64, "disk:1", "weft health --help"),
    ("health --exposure --watch", 64, "--watch", "weft health --help"),
    ("df extra", 64, "'extra'", "weft df --help"),
    ("df --jsn", 64, "'--jsn'", "did you mean --json?"),
    ("entry info", 64, "<PATH>", "weft entry info --help"),
    ("entry info {base}", 1, "{base} is not on a weft file system", "weft status"),
    ("entry set-pattern d", 64, "required", "weft entry set-pattern --help"),
    ("entry set-pattern d --chunk-size 1X", 64, "1X", "weft entry set-pattern --help"),
    ("entry set-pattern d --stripe-count 0", 64, "'0'", "weft entry set-pattern --help"),
    ("entry set-pattern d --scheme raid", 64, "'raid'", "weft entry set-pattern --help"),
    ("entry migrate f", 64, "--scheme", "weft entry migrate --help"),
    ("entry migrate f --scheme single --set-pattern", 64, "--recursive", "weft entry migrate --help"),
    ("cluster init", 64, "--name", "weft cluster init --help"),
    ("cluster init --name a/b --dir {base}/new", 64, "a/b", ""),
    ("cluster init --name n --rack a/b --dir {base}/new", 64, "a/b", ""),
    ("cluster init --name n --listen nowhere", 64, "'nowhere'", "weft cluster init --help"),
    (
        "cluster init --name n --roles storage --dir {base}/new",
        64,
        "roles mgmt and meta",
        "--roles mgmt,meta",
    ),
    ("cluster token --uses 0", 64, "'0'", "weft cluster token --help"),
    ("cluster token --client --uses 2", 64, "--uses", "weft cluster token --help"),
    ("cluster token --expires 0s", 64, "0s", "weft cluster token --help"),
    ("node join", 64, "<TOKEN_OR_FILE>", "weft node join --help"),
    ("node join T --roles gateway", 64, "'gateway'", "weft node join --help"),
    ("node join weft-join-nonsense --dir {base}/new", 64, "token", ""),
    ("node set 1", 64, "required", "weft node set --help"),
    ("target", 64, "weft target needs a command", "weft target --help"),
    ("target lits", 64, "'lits'", "did you mean list?"),
    ("target show", 64, "<TARGET>", "weft target show --help"),
    ("target show x", 64, "'x'", "weft target show --help"),
    ("target set 3 --drain maybe", 64, "'maybe'", "weft target set --help"),
    ("target add /etc --dir {node}", 1, "/etc can't become a target", "a target is an empty directory"),
    ("target add {base}/t --pool a/b --dir {node}", 64, "a/b", ""),
    ("target remove 1 --list f", 64, "--accept-loss", "weft target remove --help"),
    ("target remove 1 --accept-loss --dry-run", 64, "--dry-run", "weft target remove --help"),
    ("pool set p", 64, "required", "weft pool set --help"),
    ("group resync set", 64, "required", "weft group resync set --help"),
    ("group create", 64, "--scheme", "weft group create --help"),
    ("client add", 64, "<NAME>", "weft client add --help"),
    ("client add a/b", 64, "a/b", "letters, digits"),
    ("client revoke a/b", 64, "a/b", "letters, digits"),
    ("export set nowhere", 64, "nowhere", ""),
    ("export set local --access wr", 64, "'wr'", "weft export set --help"),
    ("session evict x", 64, "'x'", "weft session evict --help"),
    ("scrub set --every 1w", 64, "1w", "weft scrub set --help"),
    ("fsck relative/path", 64, "must begin with /", "leave out the mount point"),
    ("fsck --delete", 64, "--repair", "weft fsck --help"),
    ("fsck --orphans list --repair", 64, "--repair", "weft fsck --help"),
    ("fsck --dir {base}/absent", 8, "{base}/absent", ""),
    ("net show {base}", 1, "{base}", "findmnt"),
    ("bench io", 64, "<DIR>", "weft bench io --help"),
    ("bench io {base} --record 2G --size 4G", 64, "records of 2147483648 bytes", "--record"),
    ("bench io {base} --record 2M --size 1M", 64, "2097152 bytes is more than", "--size"),
    ("bench io {base} --record 5000 --direct", 64, "5000 bytes", "--buffered"),
    ("bench io {base} --client a,b --launch sh", 64, "--launch 'sh'", "put {}"),
    ("bench io {base} --client a;b", 64, "'a;b'", "letters, digits"),
    ("bench meta {base} --client -x", 64, "'-x'", ""),
    ("bench characterize {base} --profile nothing", 64, "nothing", "known profiles"),
    ("bench characterize {base} --scale 1e30", 64, "scale", ""),
    ("bench io {base}/absent", 1, "{base}/absent", "a directory that exists"),
    ("bench compare {base}/absent {base}/absent", 1, "{base}/absent", ""),
    ("plan", 64, "--drives", "weft plan FILE"),
    ("log level loud", 64, "loud", "weft log level --help"),
];

#[test]
fn each_wrong_call_has_its_status_and_its_hint() {
    let base = tempfile::tempdir().unwrap();
    let node = stopped_node(base.path());
    let empty = base.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let place = |text: &str| text.replace("{node}", &node).replace("{base}", empty.to_str().unwrap());
    let (mut faults, mut helps) = (String::new(), Helps::default());
    for (line, status, message, hint) in CALLS {
        let line = place(line);
        let done = weft_in(&empty, &line.split_whitespace().collect::<Vec<_>>());
        let text = stderr_text(&done);
        let (said, advice) = text.split_once("\nhint: ").unwrap_or((&text, ""));
        let is_right = done.status.code() == Some(*status)
            && said.starts_with("error: ")
            && said.contains(&place(message))
            && !advice.is_empty()
            && advice.contains(&place(hint))
            && done.stdout.is_empty();
        if !is_right {
            writeln!(faults, "weft {line}: {:?}, not {status}: {text}", done.status.code()).unwrap();
        }
        if let Err(fault) = helps.check(advice) {
            writeln!(faults, "weft {line}: {fault}, in the hint {advice}").unwrap();
        }
    }
    assert!(faults.is_empty(), "{faults}");
    assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0, "a wrong call makes nothing");
}

/// The help texts of commands; `None` for words that are no command.
#[derive(Default)]
struct Helps(BTreeMap<String, Option<String>>);

impl Helps {
    fn of(&mut self, path: &str) -> Option<String> {
        let text = || {
            let words: Vec<&str> = ["help"].into_iter().chain(path.split(' ')).collect();
            let done = weft(&words);
            done.status.success().then(|| stdout_text(&done))
        };
        self.0.entry(path.to_string()).or_insert_with(text).clone()
    }

    /// Checks the commands in a hint: their words are a command, and it has their options.
    fn check(&mut self, hint: &str) -> Result<(), String> {
        for text in hint.split("weft ").skip(1) {
            let end = text.find([';', ',', '(', ')', '?']).unwrap_or(text.len());
            let words: Vec<&str> = text[..end].split_whitespace().collect();
            let (mut path, mut help) = (String::new(), None);
            for word in &words {
                let longer = format!("{path} {word}").trim_start().to_string();
                let is_word = word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
                let Some(text) = (is_word && !word.starts_with('-')).then(|| self.of(&longer)).flatten()
                else {
                    break;
                };
                (path, help) = (longer, Some(text));
            }
            let Some(help) = help else {
                // `weft --help`, or the name of the program in a sentence.
                continue;
            };
            let mut options = words.iter().filter(|word| word.starts_with("--"));
            if let Some(unknown) = options.find(|option| !help.contains(**option)) {
                return Err(format!("weft {path} has no option {unknown}"));
            }
        }
        Ok(())
    }
}
