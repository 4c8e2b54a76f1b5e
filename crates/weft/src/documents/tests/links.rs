//! Links between documents lead to existing files and headings.

use super::{all, root};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Returns the targets of the links of a text, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line)) {
        let ends = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        found.extend(ends.map(|(target, _)| (number, target.to_string())));
    }
    found
}

/// Returns the anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let is_kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    let anchor = |line: &str| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        heading.chars().filter(is_kept).collect::<String>().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

/// Returns the path of a link's target, relative to the root folder.
fn resolve(document: &str, target: &str) -> PathBuf {
    let mut path = PathBuf::from(document);
    path.pop();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => _ = path.pop(),
            part => path.push(part),
        }
    }
    path
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut dead = Vec::new();
    for (document, text) in all() {
        for (line, target) in links(&text).into_iter().filter(|(_, target)| !target.contains("://")) {
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = if file.is_empty() { PathBuf::from(&document) } else { resolve(&document, file) };
            let path = root().join(path);
            let leads_somewhere = match anchor {
                "" => path.exists(),
                anchor => fs::read_to_string(&path)
                    .is_ok_and(|text| anchors(&text).iter().any(|known| known == anchor)),
            };
            if !leads_somewhere {
                dead.push(format!("{document}:{line}: {target}"));
            }
        }
    }
    assert!(dead.is_empty(), "links lead nowhere:\n{}", dead.join("\n"));
}

#[test]
fn links_and_headings_are_found() {
    let text = "# What a `client` may\nsee [a](b.md#c-d) and\n| [e](../f/g.md) |\n";
    assert_eq!(links(text), [(2, "b.md#c-d".to_string()), (3, "../f/g.md".to_string())]);
    assert_eq!(anchors(text), ["what-a-client-may"]);
    assert_eq!(resolve("docs/guide/a.md", "../f/g.md"), Path::new("docs/f/g.md"));
}
