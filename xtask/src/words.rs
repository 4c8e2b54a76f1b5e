//! Words that the project doesn't use: the field has a term for what they stand for.
//!
//! `docs/glossary.md` has one name for each concept. The words here are former names that mean
//! nothing else, so each use of one is a mistake, in names as well as in sentences.

/// A rejected word, and what to write instead.
const REJECTED: &[(&str, &str)] = &[
    ("anew", "again"),
    ("asker", "the caller, or the requester"),
    ("badge", "proof of ownership"),
    ("bequeath", "hand over"),
    ("bereft", "orphaned checksums"),
    ("doubtful", "uncertain"),
    ("errand", "cross-partition transaction"),
    ("errands", "cross-partition transactions"),
    ("expel", "eject"),
    ("expelled", "ejected"),
    ("fallen", "demoted"),
    ("farewell", "unmount notice"),
    ("heir", "successor session"),
    ("heirs", "successor sessions"),
    ("hollow", "lost unsynced data"),
    ("lending", "partition lock"),
    ("mends", "repairs"),
    ("neighbour", "peer"),
    ("newborn", "new-file template"),
    ("outcast", "evicted"),
    ("patience", "time-out"),
    ("promising", "asynchronous create"),
    ("reproached", "eviction reason"),
    ("unheard", "unreachable"),
    ("whoever", "the client, or the caller"),
];

/// Phrases that are rejected in the same way.
const REJECTED_PHRASES: &[(&str, &str)] = &[
    ("answered out of turn", "unexpected reply type"),
    ("brought in step", "resynced"),
    ("bring in step", "resync"),
    ("heard of", "reachable"),
    ("is looked whether", "is checked whether"),
    ("a mistake in weft", "a bug in weft"),
];

/// Former names of wire operations and of their messages. Elsewhere these words mean other things.
const REJECTED_IN_WIRE: &[(&str, &str)] = &[
    ("Borrow", "LockPartition"),
    ("Healed", "Repaired"),
    ("Lent", "Locked"),
    ("MakeWay", "RecallConflicting"),
    ("Room", "SpaceNeeded"),
    ("Tidy", "Reconcile"),
    ("TidyGroup", "ReconcileGroup"),
    ("Yield", "AckRecalls"),
];

/// Where they are rejected.
const WIRE: &str = "crates/wire/";

/// Files that name the words in order to reject them.
const EXEMPT: &[&str] = &["docs/glossary.md", "xtask/src/words.rs"];

/// Folders whose files are as released versions have written them.
const FROZEN: &str = "fixtures/";

/// Returns the rejected words of a text, each with its line (from 0) and what to write instead.
pub fn rejected(path: &str, text: &str) -> Vec<(usize, &'static str, &'static str)> {
    if EXEMPT.contains(&path) || path.starts_with(FROZEN) {
        return Vec::new();
    }
    let is_wire = path.starts_with(WIRE);
    let of_line = |(number, line): (usize, &str)| {
        let words: Vec<String> = words_of(line).collect();
        let named = |(word, instead): &(&'static str, &'static str)| {
            words.iter().any(|found| found == word).then_some((number, *word, *instead))
        };
        let lower = line.to_lowercase();
        let said = |(phrase, instead): &(&'static str, &'static str)| {
            lower.contains(phrase).then_some((number, *phrase, *instead))
        };
        let found: Vec<_> =
            REJECTED.iter().filter_map(named).chain(REJECTED_PHRASES.iter().filter_map(said)).collect();
        let former = |(name, instead): &(&'static str, &'static str)| {
            let mut identifiers = line.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            (is_wire && identifiers.any(|found| found == *name)).then_some((number, *name, *instead))
        };
        found.into_iter().chain(REJECTED_IN_WIRE.iter().filter_map(former)).collect::<Vec<_>>()
    };
    text.lines().enumerate().flat_map(of_line).collect()
}

/// Returns the words of a line in lower case, those inside of names as well: `EndOfLine` and
/// `end_of_line` have three.
fn words_of(line: &str) -> impl Iterator<Item = String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for letter in line.chars() {
        let is_letter = letter.is_ascii_alphabetic();
        if !is_letter || (was_lower && letter.is_ascii_uppercase()) {
            words.push(String::new());
        }
        if is_letter {
            words.last_mut().expect("there is always one").push(letter.to_ascii_lowercase());
        }
        was_lower = letter.is_ascii_lowercase();
    }
    words.into_iter().filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_in_sentences_and_in_names() {
        let words: Vec<String> = words_of("the EndOfLine of end_of_line2, HTTPServer").collect();
        assert_eq!(words, ["the", "end", "of", "line", "of", "end", "of", "line", "httpserver"]);
    }

    #[test]
    fn former_names_of_operations_are_rejected_in_wire_only() {
        let text = "enum Request {\n    Tidy { target: u32 },\n    TidyUp,\n}";
        assert_eq!(rejected("crates/wire/src/a.rs", text), [(1, "Tidy", "Reconcile")]);
        assert_eq!(rejected("xtask/src/main.rs", text), []);
    }

    #[test]
    fn rejected_words_are_found_with_their_line() {
        let text = "fn heir() {}\n// It begins\n// Anew: the member is brought in step.\nstruct NewHeirs;";
        let found = rejected("crates/x/src/lib.rs", text);
        let expected = [
            (0, "heir", "successor session"),
            (2, "anew", "again"),
            (2, "brought in step", "resynced"),
            (3, "heirs", "successor sessions"),
        ];
        assert_eq!(found, expected);
        assert_eq!(rejected("crates/x/src/lib.rs", "their heirloom renewed"), []);
        assert_eq!(rejected("docs/glossary.md", text), []);
    }
}
