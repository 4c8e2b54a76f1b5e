//! A Debian package: the binary, the units and the guide.

use crate::{build, process};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Deadline of one run of dpkg or dpkg-deb.
const DEADLINE: Duration = Duration::from_secs(300);

/// What goes where.
const FILES: &[(&str, &str)] = &[
    ("deploy/weft-serve@.service", "lib/systemd/system/weft-serve@.service"),
    ("deploy/mnt-weft.service", "usr/share/doc/weft/examples/mnt-weft.service"),
    ("docs/guide/getting-started.md", "usr/share/doc/weft/getting-started.md"),
    ("docs/guide/cluster.md", "usr/share/doc/weft/cluster.md"),
    ("README.md", "usr/share/doc/weft/README.md"),
    ("LICENSE", "usr/share/doc/weft/copyright"),
];

/// Builds the release binary and packs it.
pub fn run() -> Result<(), String> {
    let binary = build::weft(true)?;
    let architecture = process::run_ok(Command::new("dpkg").arg("--print-architecture"), DEADLINE)?;
    let architecture = architecture.stdout.trim();
    let version = env!("CARGO_PKG_VERSION");
    let base = build::target_dir().join("deb");
    let root = base.join(format!("weft_{version}_{architecture}"));
    let package = base.join(format!("weft_{version}_{architecture}.deb"));
    stage(&root, &binary, version, architecture)
        .map_err(|error| format!("cannot lay out {}: {error}", root.display()))?;
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--build", "--root-owner-group"]).arg(&root).arg(&package);
    process::run_ok(&mut pack, DEADLINE)?;
    println!("{}", package.display());
    Ok(())
}

/// Lays the package out as it will be installed.
fn stage(root: &Path, binary: &Path, version: &str, architecture: &str) -> std::io::Result<()> {
    if root.exists() {
        fs::remove_dir_all(root)?;
    }
    install(binary, &root.join("usr/bin/weft"), 0o755)?;
    for (from, to) in FILES {
        install(&build::root().join(from), &root.join(to), 0o644)?;
    }
    // So that mount(8) knows the type fuse.weft.
    let helper = root.join("usr/sbin/mount.fuse.weft");
    fs::create_dir_all(helper.parent().unwrap_or(root))?;
    symlink("/usr/bin/weft", helper)?;
    let control = root.join("DEBIAN/control");
    fs::create_dir_all(control.parent().unwrap_or(root))?;
    fs::write(
        control,
        format!(
            "Package: weft\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: weft\nSection: admin\n\
             Priority: optional\nDepends: libc6, libgcc-s1\nRecommends: chrony\n\
             Description: parallel file system\n \
             Files striped over the disks of many machines, in one POSIX namespace. One binary is server, client\n \
             and command line.\n"
        ),
    )
}

fn install(from: &Path, to: &PathBuf, mode: u32) -> std::io::Result<()> {
    fs::create_dir_all(to.parent().unwrap_or(Path::new("/")))?;
    fs::copy(from, to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))
}
