//! `newest-version.toml`: the newest version of weft that has opened a state directory.
//!
//! Formats keep their numbers when a version adds fields to records of the metadata. A version
//! that doesn't know such a field loses it when it changes the record. So a version that is older
//! by more than one minor version is refused, as it is at the connections of a cluster. The
//! version before the newest one is admitted, since the nodes of a cluster are upgraded one after
//! the other.

use crate::checked_file;
use crate::error::{Error, Result};
use crate::map_changes::version_numbers;
use crate::state_dir::StatePaths;
use std::path::Path;

/// The format this version writes, and the newest that it reads.
const FORMAT_VERSION: u64 = 1;

/// First line of every file.
const MAGIC: &str = "weft newest version";

/// Refuses a directory that a version has opened to which `ours` is too old.
///
/// # Errors
/// [`Error::NewerVersion`]; a file that can't be read.
pub fn require_not_too_old(paths: &StatePaths, ours: &str) -> Result<()> {
    let Some(newest) = read(&paths.newest_version())? else { return Ok(()) };
    match is_too_old(ours, &newest) {
        true => Err(Error::NewerVersion { path: paths.root().to_path_buf(), newest, ours: ours.to_string() }),
        false => Ok(()),
    }
}

/// Records that `ours` has opened the directory. A full disk doesn't prevent that, so a failure is
/// only logged.
pub fn record(paths: &StatePaths, ours: &str) {
    let path = paths.newest_version();
    let known = read(&path).ok().flatten();
    if known.is_some_and(|known| version_numbers(&known) >= version_numbers(ours)) {
        return;
    }
    if let Err(error) = checked_file::write(&path, &render(ours)) {
        tracing::warn!(%error, "{} could not be written", path.display());
    }
}

/// Returns whether a version loses what the newer one may have added.
fn is_too_old(ours: &str, newest: &str) -> bool {
    match (version_numbers(ours), version_numbers(newest)) {
        (Some((major, minor)), Some((newest_major, newest_minor))) => {
            newest_major > major || newest_major == major && newest_minor > minor.saturating_add(1)
        }
        _ => false,
    }
}

/// Reads a file; `None` if it doesn't exist, or is damaged: it protects only from a mistake, and
/// must not take a directory out of service.
fn read(path: &Path) -> Result<Option<String>> {
    let Some(content) = checked_file::read(path).map_err(|e| Error::io("read", path, e))? else {
        return Ok(None);
    };
    let newest = parse(&content);
    if newest.is_none() {
        tracing::warn!("{} is damaged and ignored", path.display());
    }
    Ok(newest)
}

/// Parses a file. A newer format is no reason to refuse: the version in it decides.
pub(crate) fn parse(content: &[u8]) -> Option<String> {
    let table = checked_file::open(content, MAGIC, u64::MAX).ok()?;
    let version = table.get("version")?.as_str()?;
    version_numbers(version).map(|_| version.to_string())
}

/// The file's text without the checksum.
pub(crate) fn render(version: &str) -> String {
    format!(
        "# The newest version of weft that has opened this directory.\n\
         magic = \"{MAGIC}\"\n\
         format = {FORMAT_VERSION}\n\
         version = {}\n",
        toml::Value::String(version.to_string())
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_dir::StateDir;

    fn after(newest: &str, ours: &str) -> Result<()> {
        let base = tempfile::tempdir().unwrap();
        let paths = StatePaths::new(base.path());
        record(&paths, newest);
        require_not_too_old(&paths, ours)
    }

    #[test]
    fn a_version_that_is_too_old_is_refused() {
        for (newest, ours) in [("0.3.0", "0.1.9"), ("1.0.0", "0.9.0"), ("2.0.0-rc1", "1.7.0")] {
            let error = after(newest, ours).unwrap_err();
            assert!(matches!(error, Error::NewerVersion { .. }), "{error}");
            let text = format!("{error}; {}", error.hint());
            assert!(text.contains(newest) && text.contains(ours), "{text}");
        }
        for (newest, ours) in [("0.3.0", "0.3.0"), ("0.3.1", "0.2.0"), ("0.3.0", "0.9.0"), ("0.9.0", "1.0.0")]
        {
            after(newest, ours).unwrap();
        }
    }

    #[test]
    fn a_directory_is_not_opened_by_a_version_that_is_too_old() {
        let base = tempfile::tempdir().unwrap();
        let paths = StateDir::open_or_create(base.path(), "test").unwrap().paths;
        assert!(read(&paths.newest_version()).unwrap().is_some(), "creation records a version");
        record(&paths, "999.0.0");
        for opened in [StateDir::open(base.path()), StateDir::open_or_create(base.path(), "test")] {
            assert!(matches!(opened.unwrap_err(), Error::NewerVersion { .. }));
        }
        std::fs::remove_file(paths.newest_version()).unwrap();
        drop(StateDir::open(base.path()).unwrap());
        assert!(read(&paths.newest_version()).unwrap().is_some(), "and so does opening");
    }

    #[test]
    fn the_newest_version_stays_recorded() {
        let base = tempfile::tempdir().unwrap();
        let paths = StatePaths::new(base.path());
        require_not_too_old(&paths, "0.1.0").unwrap();
        for version in ["0.2.0", "0.4.0", "0.3.5"] {
            record(&paths, version);
        }
        assert_eq!(read(&paths.newest_version()).unwrap().as_deref(), Some("0.4.0"));
        record(&paths, "1.0.0");
        assert_eq!(read(&paths.newest_version()).unwrap().as_deref(), Some("1.0.0"));
    }

    #[test]
    fn a_damaged_record_is_replaced() {
        let base = tempfile::tempdir().unwrap();
        let paths = StatePaths::new(base.path());
        std::fs::write(paths.newest_version(), "half").unwrap();
        require_not_too_old(&paths, "0.1.0").unwrap();
        record(&paths, "0.1.0");
        assert_eq!(read(&paths.newest_version()).unwrap().as_deref(), Some("0.1.0"));
    }

    #[test]
    fn the_text_is_frozen() {
        let text = r#"# The newest version of weft that has opened this directory.
magic = "weft newest version"
format = 1
version = "0.1.0"
"#;
        assert_eq!(render("0.1.0"), text);
    }
}
