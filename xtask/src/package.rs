//! The files of a package, for every packaging format: the binary, its symbols apart, systemd
//! units, man pages, completions of shells, an example of a node's configuration file, and the
//! guide.

use crate::{build, process};
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Deadline of one run of a packaging tool: packing is slow on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(300);

/// Options of `cargo xtask deb` and `cargo xtask rpm`.
#[derive(clap::Args)]
pub struct Options {
    /// Pack this binary instead of building one.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Output folder of the packages [default: deb/ or rpm/ in cargo's target directory]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Compression
    #[arg(long, default_value = "xz", value_parser = ["xz", "gzip", "none"])]
    pub compression: String,
}

impl Options {
    /// Returns the binary to pack: the given one, or the release binary, which it builds.
    pub fn binary(&self) -> Result<PathBuf, String> {
        self.binary.clone().map_or_else(|| build::weft(true), Ok)
    }

    /// Returns the output folder; `name`: that of the default one.
    pub fn out(&self, name: &str) -> PathBuf {
        self.out.clone().unwrap_or_else(|| build::target_dir().join(name))
    }
}

/// Path of the binary in the package.
pub const BINARY: &str = "usr/bin/weft";

/// Files in the package: source and destination.
pub const FILES: &[(&str, &str)] = &[
    ("deploy/weft@.service", "usr/lib/systemd/system/weft@.service"),
    ("deploy/weft-numa@.service", "usr/lib/systemd/system/weft-numa@.service"),
    ("deploy/mnt-weft.service", "usr/share/doc/weft/examples/mnt-weft.service"),
    ("deploy/node.toml", "usr/share/doc/weft/examples/node.toml"),
    ("docs/guide/installation.md", "usr/share/doc/weft/installation.md"),
    ("docs/guide/getting-started.md", "usr/share/doc/weft/getting-started.md"),
    ("docs/guide/cluster.md", "usr/share/doc/weft/cluster.md"),
    ("docs/reference/cli.md", "usr/share/doc/weft/cli.md"),
    ("docs/reference/openapi.json", "usr/share/doc/weft/openapi.json"),
    ("README.md", "usr/share/doc/weft/README.md"),
];

/// Directories with state of nodes and credentials of clients: accessible only to root.
pub const PRIVATE: [&str; 2] = ["var/lib/weft", "etc/weft"];

/// Lets mount(8) support the type fuse.weft.
pub const MOUNT_HELPER: &str = "usr/sbin/mount.fuse.weft";

/// Folders of the completions of the shells, which differ between distributions.
pub struct CompletionFolders {
    pub zsh: &'static str,
    pub fish: &'static str,
}

/// Lays out the files of the package below `root`, as they are installed, and the file with the
/// binary's symbols below `symbols`.
pub fn stage(
    root: &Path,
    symbols: &Path,
    binary: &Path,
    completions: &CompletionFolders,
) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot lay out {}: {error}", root.display());
    for folder in [root, symbols] {
        if folder.exists() {
            fs::remove_dir_all(folder).map_err(failed)?;
        }
    }
    install(binary, &root.join(BINARY), 0o755).map_err(failed)?;
    generate(root, binary, completions)?;
    split_symbols(&root.join(BINARY), symbols)?;
    for (from, to) in FILES {
        install(&build::root().join(from), &root.join(to), 0o644).map_err(failed)?;
    }
    let changelog = root.join("usr/share/doc/weft/changelog");
    install(&build::root().join("CHANGELOG.md"), &changelog, 0o644).map_err(failed)?;
    compress(&[changelog])?;
    link_and_private(root).map_err(failed)
}

fn link_and_private(root: &Path) -> io::Result<()> {
    let helper = root.join(MOUNT_HELPER);
    fs::create_dir_all(helper.parent().unwrap_or(root))?;
    symlink("../bin/weft", helper)?;
    for private in PRIVATE {
        fs::create_dir_all(root.join(private))?;
        fs::set_permissions(root.join(private), fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Lets the binary write its man pages and completions.
fn generate(root: &Path, binary: &Path, folders: &CompletionFolders) -> Result<(), String> {
    let generated = root.with_extension("generated");
    let mut command = Command::new(binary);
    process::run_ok(command.arg("package-files").arg(&generated), DEADLINE)?;
    let failed = |error: io::Error| format!("what {} writes: {error}", binary.display());
    let mut pages = files_below(&generated.join("man")).map_err(failed)?;
    for page in &mut pages {
        let to = root.join("usr/share/man/man1").join(page.file_name().unwrap_or_default());
        install(page, &to, 0o644).map_err(failed)?;
        *page = to;
    }
    // mount(8) calls it by this name; its options are those of weft mount.
    let helper = root.join("usr/share/man/man8/mount.fuse.weft.8");
    fs::create_dir_all(helper.parent().unwrap_or(root)).map_err(failed)?;
    fs::write(&helper, ".so man1/weft-mount.1\n").map_err(failed)?;
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o644)).map_err(failed)?;
    pages.push(helper);
    compress(&pages)?;
    let completions = [
        ("weft.bash", "usr/share/bash-completion/completions/weft".to_string()),
        ("_weft", format!("{}/_weft", folders.zsh)),
        ("weft.fish", format!("{}/weft.fish", folders.fish)),
    ];
    for (from, to) in completions {
        install(&generated.join("completions").join(from), &root.join(to), 0o644).map_err(failed)?;
    }
    fs::remove_dir_all(&generated).map_err(failed)
}

/// Compresses files, without the time of the build in them.
pub fn compress(files: &[PathBuf]) -> Result<(), String> {
    process::run_ok(Command::new("gzip").args(["-9", "-n", "--force"]).args(files), DEADLINE).map(drop)
}

/// Moves the symbols of a program into a file of its own, where debuggers and the backtraces of
/// panics find it by the program's build id.
fn split_symbols(program: &Path, symbols: &Path) -> Result<(), String> {
    let notes = process::run_ok(Command::new("readelf").arg("--notes").arg(program), DEADLINE)?;
    let id = build_id(&notes.stdout)
        .ok_or_else(|| format!("{} has no build id; hint: link it with -Wl,--build-id", program.display()))?;
    let file = symbols.join(symbols_path(id));
    let failed = |error: io::Error| format!("{}: {error}", file.display());
    fs::create_dir_all(file.parent().unwrap_or(symbols)).map_err(failed)?;
    let mut keep = Command::new("objcopy");
    process::run_ok(
        keep.args(["--only-keep-debug", "--compress-debug-sections"]).arg(program).arg(&file),
        DEADLINE,
    )?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).map_err(failed)?;
    let mut strip = Command::new("strip");
    process::run_ok(strip.args(["--strip-all", "--remove-section=.comment"]).arg(program), DEADLINE)?;
    let mut link = Command::new("objcopy");
    link.arg("--add-gnu-debuglink").arg(&file).arg(program);
    process::run_ok(&mut link, DEADLINE).map(drop)
}

/// Returns where debuggers look for the symbols of a build id.
fn symbols_path(id: &str) -> String {
    let (folder, name) = id.split_at(2);
    format!("usr/lib/debug/.build-id/{folder}/{name}.debug")
}

/// Returns the build id in the output of readelf(1).
fn build_id(notes: &str) -> Option<&str> {
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID:"))?.trim();
    (id.len() > 2 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}

/// Returns the files of a folder and its subfolders, sorted. Links count as files.
pub fn files_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => folders.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Copies a file, with the given mode.
pub fn install(from: &Path, to: &Path, mode: u32) -> io::Result<()> {
    fs::create_dir_all(to.parent().unwrap_or(Path::new("/")))?;
    fs::copy(from, to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))
}

/// Sets the mode of all folders but the private ones, whatever umask the caller has.
pub fn open_folders(root: &Path) -> io::Result<()> {
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let is_private = PRIVATE.iter().any(|private| root.join(private) == folder);
        let mode = if is_private { 0o700 } else { 0o755 };
        fs::set_permissions(&folder, fs::Permissions::from_mode(mode))?;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_found_by_the_build_id() {
        let notes = "Displaying notes found in: .note.gnu.build-id\n    Build ID: 3209f36a\n";
        assert_eq!(build_id(notes), Some("3209f36a"));
        assert_eq!(build_id("Displaying notes\n"), None);
        assert_eq!(symbols_path("3209f36a"), "usr/lib/debug/.build-id/32/09f36a.debug");
    }
}
