//! References of documents to the source text: modules, items and source files that a document
//! names have to exist.

use std::collections::{BTreeMap, BTreeSet};

/// What starts the declaration of an item.
const DECLARATIONS: &[&str] =
    &["const", "enum", "fn", "macro_rules!", "mod", "static", "struct", "trait", "type", "union"];

/// Names that the crates of the workspace declare, and their source files.
#[derive(Default)]
pub struct SourceNames {
    /// By crate: its modules, its items, and the variants of its enums.
    names: BTreeMap<String, BTreeSet<String>>,
    /// Paths of source files, relative to the root folder.
    files: BTreeSet<String>,
}

impl SourceNames {
    /// Adds a file of the workspace; only Rust source counts.
    pub fn add(&mut self, path: &str, text: &str) {
        if !path.ends_with(".rs") {
            return;
        }
        self.files.insert(path.to_string());
        let mut parts = path.split('/');
        let (Some("crates"), Some(name)) = (parts.next(), parts.next()) else { return };
        let names = self.names.entry(name.to_string()).or_default();
        names.extend(parts.map(|part| part.trim_end_matches(".rs").to_string()));
        names.extend(text.lines().filter_map(declared));
    }

    /// Returns the references in a document that lead nowhere, each with its line (from 0).
    pub fn dead<'a>(&self, text: &'a str) -> Vec<(usize, &'a str)> {
        let mut found = Vec::new();
        for (number, line) in text.lines().enumerate() {
            // Every second part is quoted.
            let quoted = line.split('`').skip(1).step_by(2);
            found.extend(quoted.filter(|quoted| self.is_dead(quoted)).map(|quoted| (number, quoted)));
        }
        found
    }

    fn is_dead(&self, quoted: &str) -> bool {
        if quoted.ends_with(".rs") && quoted.contains('/') && !quoted.contains(['*', ' ', '{']) {
            return !self.files.contains(quoted) && !self.files.contains(&format!("crates/{quoted}"));
        }
        let mut parts = quoted.trim_end_matches("()").split("::");
        let Some(names) = parts.next().and_then(|name| self.names.get(name)) else { return false };
        let is_name = |part: &str| !part.is_empty() && part.chars().all(is_of_name);
        parts.any(|part| is_name(part) && !names.contains(part))
    }
}

fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// Returns the name that a line declares: that of an item or, in rustfmt's layout, of a variant.
fn declared(line: &str) -> Option<String> {
    if line.trim_start().starts_with("//") {
        return None;
    }
    let mut words = line.split_whitespace();
    let is_item = words.any(|word| DECLARATIONS.contains(&word));
    // As after `const fn`.
    let text = if is_item { words.find(|word| !DECLARATIONS.contains(word))? } else { line.trim_start() };
    let name: String = text.chars().take_while(|letter| is_of_name(*letter)).collect();
    let is_variant = name.starts_with(|letter: char| letter.is_ascii_uppercase());
    (is_item || is_variant).then_some(name).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> SourceNames {
        let mut names = SourceNames::default();
        let text = "pub struct Lease;\npub(crate) const fn grant() {}\nenum State {\n    Open(u32),\n}\n";
        names.add("crates/meta/src/lease/table.rs", text);
        names
    }

    #[test]
    fn modules_items_variants_and_files_exist() {
        let text = "`meta::lease`, `meta::table::Lease`, `meta::grant()`, `meta::State::Open`\n\
                    `meta/src/lease/table.rs` `crates/meta/src/lease/table.rs` `std::fs::none` `weft x`";
        assert_eq!(names().dead(text), []);
    }

    #[test]
    fn dead_references_are_found_with_their_line() {
        let text = "`meta::leases`\n`meta::State::Closed` and `meta::lease`\n`lease/table.rs`";
        let expected = [(0, "meta::leases"), (1, "meta::State::Closed"), (2, "lease/table.rs")];
        assert_eq!(names().dead(text), expected);
    }
}
