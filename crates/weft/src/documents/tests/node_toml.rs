//! `docs/reference/node-toml.md` has all keys of `node.toml` and of cluster files, and no others.

use super::read;
use super::text::parts;
use crate::node_config::{ClusterFile, NodeConfig, TargetConfig};
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;

const PAGE: &str = "docs/reference/node-toml.md";

/// Returns the keys of a configuration. The message about an unknown key lists them.
fn keys<T: DeserializeOwned>() -> BTreeSet<String> {
    let error = toml::from_str::<T>("unknown-key = 1").err().expect("unknown keys are errors");
    let message = error.message().to_string();
    let listed = message.split_once("expected one of").unwrap_or_else(|| panic!("{message}")).1;
    listed.split('`').skip(1).step_by(2).map(String::from).collect()
}

/// Returns the keys of the table whose first heading is this.
fn documented(page: &str, heading: &str) -> BTreeSet<String> {
    let rows = page.lines().skip_while(|line| !line.starts_with(&format!("| {heading} |"))).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|row| row.split('`').nth(1).expect("a row begins with its key").to_string()).collect()
}

#[test]
fn all_keys_are_in_the_reference() {
    let page = read(PAGE);
    assert_eq!(documented(&page, "key"), keys::<NodeConfig>());
    assert_eq!(documented(&page, "key of `[[target]]`"), keys::<TargetConfig>());
    assert_eq!(documented(&page, "key of a cluster file"), keys::<ClusterFile>());
}

#[test]
fn the_example_of_the_reference_has_all_keys() {
    let (blocks, _) = parts(&read(PAGE));
    let example = blocks.iter().find(|block| block.language == "toml").unwrap().lines.join("\n");
    toml::from_str::<NodeConfig>(&example).unwrap();
    for key in keys::<NodeConfig>() {
        let forms = [format!("{key} = "), format!("[[{key}]]")];
        assert!(example.lines().any(|line| forms.iter().any(|form| line.starts_with(form))), "{key}");
    }
}
