//! `weft install-helper`: registers the helper of mount(8).

use crate::cli::InstallHelperArgs;
use crate::output::{os_error, print};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use types::{Errno, Error, Result};

/// Name under which mount(8) looks for the helper of type `fuse.weft`.
pub const HELPER_NAME: &str = "mount.fuse.weft";

/// Links this binary as `PREFIX/sbin/mount.fuse.weft`.
pub fn run(args: &InstallHelperArgs) -> Result<()> {
    let binary = std::env::current_exe().map_err(|e| os_error("can't find this binary", &e))?;
    let link = install(&args.prefix, &binary)?;
    print(&format!("{} -> {}\n", link.display(), binary.display()));
    Ok(())
}

fn install(prefix: &Path, binary: &Path) -> Result<std::path::PathBuf> {
    let folder = prefix.join("sbin");
    let link = folder.join(HELPER_NAME);
    let failed = |e: std::io::Error| {
        os_error(format_args!("can't make {}", link.display()), &e)
            .hint("run as root, or name a directory of yours with --prefix")
    };
    match fs::symlink_metadata(&link) {
        Ok(meta) if meta.is_symlink() => fs::remove_file(&link).map_err(failed)?,
        Ok(_) => {
            let message = format!("{} exists and is not a link", link.display());
            return Err(Error::new(Errno::EEXIST, message).hint("remove it first if it isn't needed"));
        }
        Err(_) => fs::create_dir_all(&folder).map_err(failed)?,
    }
    symlink(binary, &link).map_err(failed)?;
    Ok(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_made_and_made_again() {
        let prefix = tempfile::tempdir().unwrap();
        for binary in ["/opt/weft-1", "/opt/weft-2"] {
            let link = install(prefix.path(), Path::new(binary)).unwrap();
            assert_eq!(fs::read_link(link).unwrap(), Path::new(binary));
        }
    }

    #[test]
    fn a_foreign_file_stays() {
        let prefix = tempfile::tempdir().unwrap();
        fs::create_dir(prefix.path().join("sbin")).unwrap();
        let theirs = prefix.path().join("sbin").join(HELPER_NAME);
        fs::write(&theirs, "theirs").unwrap();
        assert_eq!(install(prefix.path(), Path::new("/opt/weft")).unwrap_err().errno, Errno::EEXIST);
        assert_eq!(fs::read_to_string(theirs).unwrap(), "theirs");
    }
}
