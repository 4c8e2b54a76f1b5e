//! A short demonstration on a file system: copies a source tree in, or generates one, builds a
//! program there with `make`, reads everything back, and compares.
//!
//! It shows that a file system works, and isn't a benchmark: the kernel may answer reads from its
//! page cache. The crate knows nothing of weft, and writes only below the given folder.

mod example;
mod tree;

pub use example::{FILES as EXAMPLE_FILES, build_example};

use std::io;
use std::path::Path;
use std::time::Instant;
use tree::Tree;

/// Maximum bytes of a copied tree.
const MAX_TREE_BYTES: u64 = 400 << 20;

/// Runs the demonstration in an empty folder. `source`: the tree to copy; without one, files are
/// generated. `print` gets a line for each step.
///
/// Errors: those of the files, with their names; `InvalidData` if a file differs from what was
/// written.
pub fn run(place: &Path, source: Option<&Path>, print: &mut dyn FnMut(&str)) -> io::Result<()> {
    let begin = Instant::now();
    let files = place.join("files");
    let tree = match source {
        Some(source) => Tree::copy(source, &files, MAX_TREE_BYTES)?,
        None => Tree::generate(&files)?,
    };
    let verb = if source.is_some() { "copied" } else { "wrote" };
    print(&rate_line(verb, &tree, begin));
    build(&place.join("example"), print)?;
    let begin = Instant::now();
    tree.compare(&files)?;
    print(&rate_line("read back", &tree, begin));
    Ok(())
}

fn build(folder: &Path, print: &mut dyn FnMut(&str)) -> io::Result<()> {
    let begin = Instant::now();
    match build_example(folder) {
        Ok(()) => {
            let seconds = begin.elapsed().as_secs_f64();
            print(&format!("built and ran a C program of {EXAMPLE_FILES} files in {seconds:.1} s"));
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            print("no program was built, since this machine has no make");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn rate_line(what: &str, tree: &Tree, begin: Instant) -> String {
    let seconds = begin.elapsed().as_secs_f64().max(0.001);
    let (files, megabytes) = (tree.len(), tree.bytes() as f64 / 1e6);
    format!(
        "{what} {files} files, {megabytes:.0} MB in {seconds:.1} s: {:.0} files/s, {:.0} MB/s",
        files as f64 / seconds,
        megabytes / seconds
    )
}

/// Names the object of an error.
fn named(path: &Path, error: &io::Error) -> io::Error {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    io::Error::new(error.kind(), format!("{}: {text}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_prints_a_line() {
        let (source, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(source.path().join("a"), "content").unwrap();
        let mut lines = Vec::new();
        run(place.path(), Some(source.path()), &mut |line| lines.push(line.to_string())).unwrap();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].starts_with("copied 1 files"), "{lines:?}");
        assert!(place.path().join("files/a").exists());
    }
}
