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

/// Files in the package besides the documents: source and destination.
const FILES: &[(&str, &str)] = &[
    ("deploy/weft@.service", "usr/lib/systemd/system/weft@.service"),
    ("deploy/weft-numa@.service", "usr/lib/systemd/system/weft-numa@.service"),
    ("deploy/mnt-weft.service", "usr/share/doc/weft/examples/mnt-weft.service"),
    ("deploy/node.toml", "usr/share/doc/weft/examples/node.toml"),
];

/// Folder of the documents in the package.
pub const DOCUMENTS: &str = "usr/share/doc/weft";

/// Documents outside of `docs/`, to which those inside link.
const TOP_DOCUMENTS: &[&str] =
    &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"];

/// Returns the files in the package that are not generated: source and destination, both relative.
/// The documents are laid out as in the repository, so that links between them work.
pub fn files() -> io::Result<Vec<(PathBuf, PathBuf)>> {
    let mut files: Vec<(PathBuf, PathBuf)> =
        FILES.iter().map(|(from, to)| (from.into(), to.into())).collect();
    let below = files_below(&build::root().join("docs"))?;
    let below = below.iter().filter_map(|file| file.strip_prefix(build::root()).ok());
    let documents = TOP_DOCUMENTS.iter().map(Path::new).chain(below);
    files.extend(documents.map(|document| (document.into(), Path::new(DOCUMENTS).join(document))));
    Ok(files)
}

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
    for (from, to) in files().map_err(failed)? {
        install(&build::root().join(from), &root.join(to), 0o644).map_err(failed)?;
    }
    let changelog = root.join(DOCUMENTS).join("changelog");
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
    Ok(entries_below(folder)?.0)
}

/// Returns the subfolders of a folder, at any depth, sorted; none if it doesn't exist.
pub fn folders_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    if !folder.exists() {
        return Ok(vec![]);
    }
    Ok(entries_below(folder)?.1)
}

/// Returns the files and the folders below a folder.
fn entries_below(folder: &Path) -> io::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let (mut files, mut folders) = (Vec::new(), Vec::new());
    let mut unread = vec![folder.to_path_buf()];
    while let Some(folder) = unread.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let kind = if entry.file_type()?.is_dir() { &mut folders } else { &mut files };
            kind.push(entry.path());
            if entry.file_type()?.is_dir() {
                unread.push(entry.path());
            }
        }
    }
    files.sort();
    folders.sort();
    Ok((files, folders))
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
    use std::collections::BTreeSet;

    /// Returns the files that a document links to, relative to the document.
    fn links(text: &str) -> impl Iterator<Item = &str> {
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let files = targets.filter_map(|target| target.split('#').next());
        files.filter(|file| !file.is_empty() && !file.contains("://"))
    }

    /// Returns a path without `..`, none if it leads out of the package.
    fn resolved(folder: &Path, link: &str) -> Option<PathBuf> {
        let mut path = folder.to_path_buf();
        for part in link.split('/') {
            match part {
                ".." if !path.pop() => return None,
                "." | ".." => {}
                part => path.push(part),
            }
        }
        Some(path)
    }

    #[test]
    fn links_of_packaged_documents_lead_to_packaged_files() {
        let files = files().unwrap();
        let packaged: BTreeSet<&Path> = files.iter().map(|(_, to)| &**to).collect();
        let documents = files.iter().filter(|(from, _)| from.extension().is_some_and(|kind| kind == "md"));
        let (mut count, mut dead) = (0, Vec::new());
        for (from, to) in documents {
            let text = fs::read_to_string(build::root().join(from)).unwrap();
            for link in links(&text) {
                count += 1;
                let target = resolved(to.parent().unwrap(), link);
                if target.is_none_or(|target| !packaged.contains(&*target)) {
                    dead.push(format!("{}: {link}", from.display()));
                }
            }
        }
        assert!(count > 100, "only {count} links");
        assert!(dead.is_empty(), "{dead:#?}");
    }

    #[test]
    fn units_name_documents_in_the_package() {
        let files = files().unwrap();
        for (unit, _) in FILES.iter().filter(|(from, _)| from.ends_with(".service")) {
            let text = fs::read_to_string(build::root().join(unit)).unwrap();
            let named = text.lines().find_map(|line| line.strip_prefix("Documentation=file:///")).unwrap();
            assert!(files.iter().any(|(_, to)| to == Path::new(named)), "{unit}: {named}");
        }
    }

    #[test]
    fn symbols_are_found_by_the_build_id() {
        let notes = "Displaying notes found in: .note.gnu.build-id\n    Build ID: 3209f36a\n";
        assert_eq!(build_id(notes), Some("3209f36a"));
        assert_eq!(build_id("Displaying notes\n"), None);
        assert_eq!(symbols_path("3209f36a"), "usr/lib/debug/.build-id/32/09f36a.debug");
    }
}
