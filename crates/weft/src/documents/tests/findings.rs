//! `docs/reference/findings.md` has all findings and errors.

use super::read;
use crate::catalogue;
use std::collections::BTreeSet;
use types::Refusal;
use wire::mgmt::ScrubProgress;

const PAGE: &str = "docs/reference/findings.md";

/// Sources that make findings of health.
const HEALTH: &[&str] = &[
    "crates/mgmt/src/health.rs",
    "crates/mgmt/src/health/certificates.rs",
    "crates/mgmt/src/health/groups.rs",
    "crates/mgmt/src/health/scrubs.rs",
    "crates/mgmt/src/reachability.rs",
];

/// Shortest text that identifies a finding, in characters: shorter ones are joints of sentences.
const MIN_TEXT: usize = 9;

/// Returns a text with each series of white space as one space, so that line breaks don't matter.
fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the string literals of a source text before its tests, as they are printed. Comments
/// have none.
fn literals(source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let mut found = Vec::new();
    for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
        let mut literal: Option<String> = None;
        let mut letters = line.chars();
        while let Some(letter) = letters.next() {
            match (letter, &mut literal) {
                ('"', Some(_)) => found.extend(literal.take()),
                ('"', None) => literal = Some(String::new()),
                ('\\', Some(text)) => text.extend(letters.next()),
                (other, Some(text)) => text.push(other),
                (_, None) => {}
            }
        }
        assert!(literal.is_none(), "a literal of two lines: {line}");
    }
    found
}

/// Returns the constant parts of a text with values in braces.
fn constant_parts(literal: &str) -> Vec<String> {
    let parts = literal.split('{').enumerate();
    let after_value = |(index, part): (usize, &str)| match index {
        0 => part.to_string(),
        _ => part.split_once('}').map_or(part, |(_, rest)| rest).to_string(),
    };
    parts.map(after_value).map(|part| part.trim().to_string()).filter(|part| part.len() >= MIN_TEXT).collect()
}

#[test]
fn all_findings_of_health_are_in_the_reference() {
    let page = on_one_line(&read(PAGE));
    let texts: Vec<String> = HEALTH.iter().flat_map(|path| literals(&read(path))).collect();
    assert!(texts.len() > 60, "the literals are not found any more: {texts:?}");
    let parts: BTreeSet<String> = texts.iter().flat_map(|text| constant_parts(text)).collect();
    let missing: Vec<&String> = parts.iter().filter(|part| !page.contains(&on_one_line(part))).collect();
    assert!(missing.is_empty(), "{PAGE} lacks: {missing:#?}");
}

#[test]
fn a_text_without_its_values_is_compared() {
    let source = "// \"no literal\"\nlet a = format!(\"node {} ({id}) is \\\"gone\\\" for good\");\n#[cfg(test)]\n\"x\"";
    assert_eq!(literals(source), ["node {} ({id}) is \"gone\" for good"]);
    assert_eq!(constant_parts("node {} ({id}) is gone for good: {cause:?}"), [") is gone for good:"]);
}

/// The name of a variant in JSON.
fn kebab_case(variant: &str) -> String {
    let mut name = String::new();
    for letter in variant.chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

/// Returns the variants of an enum without fields in a source text.
fn variants(source: &str, name: &str) -> Vec<String> {
    let start = format!("enum {name} {{\n");
    let body = source.split_once(&start).and_then(|(_, rest)| rest.split_once("\n}")).unwrap().0;
    let is_variant = |line: &&str| line.trim().starts_with(|c: char| c.is_ascii_uppercase());
    body.lines().filter(is_variant).map(|line| line.trim().trim_end_matches(',').to_string()).collect()
}

#[test]
fn all_outcomes_of_fsck_are_in_the_reference() {
    let (page, source) = (read(PAGE), read("crates/fsck/src/finding.rs"));
    for outcome in variants(&source, "CheckOutcome") {
        assert!(page.contains(&format!("`{}`", kebab_case(&outcome))), "{outcome}");
    }
}

/// Returns the headings of the fourth level with the text below each, on one line.
fn sections(page: &str) -> Vec<(&str, String)> {
    let parts = page.split("\n#### ").skip(1).filter_map(|part| part.split_once('\n'));
    parts.map(|(heading, text)| (heading, on_one_line(text.split("\n##").next().unwrap_or(text)))).collect()
}

#[test]
fn each_code_has_its_section_with_meaning_and_remedy() {
    let page = read(PAGE);
    let sections = sections(&page);
    let codes: Vec<&str> = catalogue::entries().map(|entry| entry.name).collect();
    let headings: Vec<&str> =
        sections.iter().map(|(heading, _)| *heading).filter(|heading| !heading.contains(' ')).collect();
    assert_eq!(headings, codes, "headings of {PAGE}, beside the codes in the program");
    for entry in catalogue::entries() {
        let (_, text) = sections.iter().find(|(heading, _)| *heading == entry.name).unwrap();
        let expected = format!("{} What to do: {}", entry.meaning, entry.remedy);
        assert!(text.starts_with(&expected), "{PAGE}, {}: {text}\nis not: {expected}", entry.name);
    }
    for code in doctor::Code::ALL {
        assert!(page.contains(&format!("\n### Check `{}`\n", code.check())), "{code:?}");
    }
}

#[test]
fn all_fields_of_scrubs_are_in_the_reference() {
    let progress = ScrubProgress { hindrance: Some(String::new()), ..ScrubProgress::default() };
    let fields = serde_json::to_value(progress).unwrap();
    let page = read(PAGE);
    for field in fields.as_object().unwrap().keys() {
        assert!(page.contains(&format!("`{field}`")), "{PAGE} lacks the field {field}");
    }
}

#[test]
fn all_errors_are_in_the_reference() {
    let (page, source) = (on_one_line(&read(PAGE)), read("crates/types/src/error.rs"));
    let list = source.split_once("errnos! {\n").and_then(|(_, rest)| rest.split_once("\n}")).unwrap().0;
    let errors: Vec<(&str, &str)> =
        list.split(',').filter_map(|item| item.trim().split_once(" = ")).collect();
    assert!(errors.len() > 30, "{errors:?}");
    for (name, number) in errors {
        let is_named = [format!("`{name}` ({number})"), format!("`{name}` | {number} |")];
        assert!(is_named.iter().any(|form| page.contains(form)), "{PAGE} lacks {name} ({number})");
    }
    for refusal in Refusal::ALL {
        let row = format!("| {} | {} |", refusal.text(), wire::error_number(refusal.into()));
        assert!(page.contains(&row), "{PAGE} lacks the row {row}");
    }
}
