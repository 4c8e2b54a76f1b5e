//! A Debian package: the binary, the systemd units, an example of a node's configuration file, and
//! the guide.

use crate::{build, process};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Deadline of one run of a packaging tool: packing is slow on a busy machine.
const DEADLINE: Duration = Duration::from_secs(300);

/// Options of `cargo xtask deb`.
#[derive(clap::Args)]
pub struct Options {
    /// Pack this binary instead of building one.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Output folder of the package [default: deb/ in cargo's target directory]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Compression of dpkg-deb
    #[arg(long, default_value = "xz", value_parser = ["xz", "gzip", "none"])]
    compression: String,
}

/// Files in the package: source and destination.
const FILES: &[(&str, &str)] = &[
    ("deploy/weft@.service", "usr/lib/systemd/system/weft@.service"),
    ("deploy/weft-numa@.service", "usr/lib/systemd/system/weft-numa@.service"),
    ("deploy/mnt-weft.service", "usr/share/doc/weft/examples/mnt-weft.service"),
    ("deploy/node.toml", "usr/share/doc/weft/examples/node.toml"),
    ("docs/guide/getting-started.md", "usr/share/doc/weft/getting-started.md"),
    ("docs/guide/cluster.md", "usr/share/doc/weft/cluster.md"),
    ("docs/reference/cli.md", "usr/share/doc/weft/cli.md"),
    ("docs/reference/openapi.json", "usr/share/doc/weft/openapi.json"),
    ("CHANGELOG.md", "usr/share/doc/weft/changelog"),
    ("README.md", "usr/share/doc/weft/README.md"),
    ("LICENSE", "usr/share/doc/weft/LICENSE"),
    ("deploy/debian/copyright", "usr/share/doc/weft/copyright"),
];

/// Scripts that dpkg runs.
const SCRIPTS: &[&str] = &["postinst", "prerm", "postrm"];

/// Packs the given binary, or builds and packs the release binary.
pub fn run(options: &Options) -> Result<(), String> {
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => build::weft(true)?,
    };
    let out = options.out.clone().unwrap_or_else(|| build::target_dir().join("deb"));
    println!("{}", pack(&binary, &out, &options.compression)?.display());
    Ok(())
}

/// Packs a binary. Returns the path of the package.
fn pack(binary: &Path, out: &Path, compression: &str) -> Result<PathBuf, String> {
    let architecture = process::run_ok(Command::new("dpkg").arg("--print-architecture"), DEADLINE)?;
    let architecture = architecture.stdout.trim();
    let version = env!("CARGO_PKG_VERSION");
    let root = out.join(format!("weft_{version}_{architecture}"));
    let package = out.join(format!("weft_{version}_{architecture}.deb"));
    let staged = |error| format!("cannot lay out {}: {error}", root.display());
    stage(&root, binary).map_err(staged)?;
    // Lines and types are for debuggers; function names stay, for backtraces of panics.
    process::run_ok(Command::new("strip").arg("--strip-debug").arg(root.join(BINARY)), DEADLINE)?;
    let libraries = libraries(&fs::read(root.join(BINARY)).map_err(staged)?)
        .ok_or_else(|| format!("{} is not a Linux program of this machine", binary.display()))?;
    control(&root, version, architecture, libraries.as_deref()).map_err(staged)?;
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--build", "--root-owner-group"]).arg(format!("-Z{compression}")).arg(&root).arg(&package);
    process::run_ok(&mut pack, DEADLINE)?;
    fs::remove_dir_all(&root).map_err(staged)?;
    Ok(package)
}

/// Path of the binary in the package.
const BINARY: &str = "usr/bin/weft";

/// Lays out the files as they are installed.
fn stage(root: &Path, binary: &Path) -> std::io::Result<()> {
    if root.exists() {
        fs::remove_dir_all(root)?;
    }
    install(binary, &root.join(BINARY), 0o755)?;
    for (from, to) in FILES {
        install(&build::root().join(from), &root.join(to), 0o644)?;
    }
    // Lets mount(8) support the type fuse.weft.
    let helper = root.join("usr/sbin/mount.fuse.weft");
    fs::create_dir_all(helper.parent().unwrap_or(root))?;
    symlink("/usr/bin/weft", helper)?;
    // State of nodes and credentials of clients: accessible only to root.
    for private in ["var/lib/weft", "etc/weft"] {
        fs::create_dir_all(root.join(private))?;
        fs::set_permissions(root.join(private), fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Writes the package's control files.
fn control(root: &Path, version: &str, architecture: &str, libraries: Option<&str>) -> std::io::Result<()> {
    let folder = root.join("DEBIAN");
    let (sums, bytes) = sums(root)?;
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("md5sums"), sums)?;
    for script in SCRIPTS {
        install(&build::root().join("deploy/debian").join(script), &folder.join(script), 0o755)?;
    }
    let size = bytes.div_ceil(1024);
    let depends = libraries.map_or(String::new(), |libraries| format!("Depends: {libraries}\n"));
    fs::write(
        folder.join("control"),
        format!(
            "Package: weft\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: the authors of weft <weft@localhost>\n\
             Installed-Size: {size}\nSection: admin\nPriority: optional\n{depends}\
             Recommends: chrony | time-daemon\nSuggests: xfsprogs\nDescription: parallel file system\n \
             Files striped over the disks of many machines, in one POSIX namespace.\n \
             One binary is server, client and command line.\n"
        ),
    )
}

/// Returns the checksums of all files in the format of md5sum(1), and their total size in bytes.
fn sums(root: &Path) -> std::io::Result<(String, u64)> {
    let files = FILES.iter().map(|(_, to)| *to).chain([BINARY]);
    let mut bytes = 0;
    let mut command = Command::new("md5sum");
    command.current_dir(root);
    for file in files {
        bytes += fs::metadata(root.join(file))?.len();
        command.arg(file);
    }
    let done = process::run_ok(&mut command, DEADLINE).map_err(std::io::Error::other)?;
    Ok((done.stdout, bytes))
}

/// Returns the packages of the libraries that a program needs; a static one needs none.
fn libraries(program: &[u8]) -> Option<Option<String>> {
    if build::is_static(program)? {
        return Some(None);
    }
    Some(Some(format!("libc6 (>= {}), libgcc-s1", needed_glibc(program)?)))
}

/// Returns the newest version of glibc among the symbols that a program imports.
fn needed_glibc(program: &[u8]) -> Option<String> {
    const MARK: &[u8] = b"GLIBC_2.";
    let version = |at: usize| {
        let digits =
            program[at + MARK.len()..].iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.');
        let text: String = digits.map(|byte| char::from(*byte)).collect();
        // The minor number, and an optional patch number (2.2.5).
        text.split('.').next()?.parse::<u32>().ok()
    };
    let marks = program.windows(MARK.len()).enumerate().filter(|(_, bytes)| *bytes == MARK);
    let newest = marks.filter_map(|(at, _)| version(at)).max()?;
    Some(format!("2.{newest}"))
}

fn install(from: &Path, to: &Path, mode: u32) -> std::io::Result<()> {
    fs::create_dir_all(to.parent().unwrap_or(Path::new("/")))?;
    fs::copy(from, to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests;
