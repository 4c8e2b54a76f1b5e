//! Tables in documents.

use std::fs;
use std::path::{Path, PathBuf};

/// A document with marks that enclose the output of a command.
pub(super) struct Document {
    path: PathBuf,
    before: String,
    after: String,
    begin: String,
    end: String,
}

impl Document {
    /// Opens a document. Fails if it can't be read, or has no marks for `command`.
    pub(super) fn open(path: &Path, command: &str) -> Result<Document, String> {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let [begin, end] = ["begin", "end"].map(|side| format!("<!-- {command}: {side} -->"));
        let unmarked = |mark: &str| {
            format!(
                "{}: mark {mark} is missing; hint: add the lines {begin} and {end} where the table belongs",
                path.display()
            )
        };
        let (before, rest) = text.split_once(&begin).ok_or_else(|| unmarked(&begin))?;
        let (_, after) = rest.split_once(&end).ok_or_else(|| unmarked(&end))?;
        let (before, after) = (before.to_string(), after.to_string());
        Ok(Document { path: path.to_path_buf(), before, after, begin, end })
    }

    /// Replaces the text between the marks.
    pub(super) fn put(&self, table: &str) -> Result<(), String> {
        let Document { path, before, after, begin, end } = self;
        let text = format!("{before}{begin}\n{table}{end}{after}");
        fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_comes_between_the_marks_of_a_document_and_nothing_else_changes() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("doc.md");
        fs::write(&path, "no marks\n").unwrap();
        let opened = || Document::open(&path, "make it");
        assert!(opened().err().unwrap().contains("is missing"));
        let document =
            |table: &str| format!("above\n<!-- make it: begin -->\n{table}<!-- make it: end -->\nbelow\n");
        fs::write(&path, document("old\n")).unwrap();
        for table in ["| a |\n", "| b |\n"] {
            opened().unwrap().put(table).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), document(table));
        }
    }
}
