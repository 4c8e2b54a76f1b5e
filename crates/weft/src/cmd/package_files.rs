//! `weft package-files`: what a package contains besides the binary, generated from the command
//! line's definition.

use crate::cli::{Cli, PackageFilesArgs};
use crate::output::os_error;
use clap::CommandFactory;
use clap_complete::{Shell, generate_to};
use std::fs;
use std::io;
use std::path::Path;
use types::Result;

/// The shells whose completions are written.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];

/// Writes `man/*.1` and `completions/*` into a directory.
pub fn run(args: &PackageFilesArgs) -> Result<()> {
    write(&args.dir).map_err(|e| os_error(args.dir.display(), &e))
}

fn write(dir: &Path) -> io::Result<()> {
    let (man, completions) = (dir.join("man"), dir.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    // Its own template is for a screen, and leaves the description out.
    clap_mangen::generate_to(Cli::command().help_template("{all-args}"), &man)?;
    for shell in SHELLS {
        generate_to(shell, &mut Cli::command(), "weft", &completions)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_a_page_and_a_completion() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path()).unwrap();
        for page in ["weft.1", "weft-up.1", "weft-group-resync-set.1"] {
            assert!(
                fs::read_to_string(dir.path().join("man").join(page)).unwrap().starts_with(".ie"),
                "{page}"
            );
        }
        assert!(!dir.path().join("man/weft-mount-helper.1").exists());
        for file in ["weft.bash", "weft.fish", "_weft"] {
            let text = fs::read_to_string(dir.path().join("completions").join(file)).unwrap();
            assert!(text.contains("set-pattern") && text.contains("stripe-count"), "{file}");
        }
    }
}
