//! Builds the package, inspects it, installs it into a separate directory, and runs the installed
//! program. Checks that systemd and weft accept the units.

use super::*;
use crate::package::BINARY;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;

/// Returns the binary of the development profile, which exists when all tests run.
fn weft() -> PathBuf {
    build::weft(false).unwrap()
}

/// All units.
const UNITS: [&str; 3] = ["weft@.service", "weft-numa@.service", "mnt-weft.service"];

fn output_of(program: impl AsRef<OsStr>, arguments: &[&OsStr]) -> String {
    process::run_ok(Command::new(program).args(arguments), DEADLINE).unwrap().stdout
}

#[test]
fn a_package_is_built_and_what_it_installs_runs() {
    let base = tempfile::tempdir().unwrap();
    let [package, symbols] = pack(&weft(), base.path(), "none", "1.2.3-4").unwrap();

    let about = output_of("dpkg-deb", &["--info".as_ref(), package.as_ref()]);
    for part in ["Package: weft", "Version: 1.2.3-4", "Depends: libc6 (>= 2."] {
        assert!(about.contains(part), "{part}: {about}");
    }
    let contents = output_of("dpkg-deb", &["--contents".as_ref(), package.as_ref()]);
    assert!(contents.lines().all(|line| line.contains("root/root")), "{contents}");

    let root = base.path().join("root");
    output_of("dpkg-deb", &["--extract".as_ref(), package.as_ref(), root.as_ref()]);
    let generated = ["usr/share/man/man1/weft-target-add.1.gz", "usr/share/bash-completion/completions/weft"];
    let files = package::files().unwrap().into_iter().map(|(_, to)| to);
    for file in files.chain(generated.map(PathBuf::from)) {
        let mode = fs::metadata(root.join(&file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644, "{}", file.display());
    }
    let installed = root.join(BINARY);
    let version = format!("weft {}", env!("CARGO_PKG_VERSION"));
    assert_eq!(output_of(&installed, &["--version".as_ref()]).trim(), version);
    let node = root.join("var/lib/weft/main");
    let init = ["cluster", "init", "--name", "packed", "--listen", "127.0.0.1:7500", "--dir"].map(OsStr::new);
    output_of(&installed, &[&init[..], &[node.as_ref()]].concat());
    assert!(node.join("node.toml").is_file() && node.join("client.toml").is_file());

    // The binary has lost its symbols, and names the file in the other package that has them.
    let sections = output_of("readelf", &["--sections".as_ref(), "--wide".as_ref(), installed.as_ref()]);
    assert!(!sections.contains(".symtab") && sections.contains(".gnu_debuglink"), "{sections}");
    output_of("dpkg-deb", &["--extract".as_ref(), symbols.as_ref(), root.as_ref()]);
    let link = output_of("readelf", &["--string-dump=.gnu_debuglink".as_ref(), installed.as_ref()]);
    let found = package::files_below(&root.join("usr/lib/debug/.build-id")).unwrap();
    assert!(link.contains(found[0].file_name().unwrap().to_str().unwrap()), "{link}");
}

/// A folder that is dpkg's root. It has no shell, so the scripts run outside of it; DPKG_ROOT
/// prevents them from changing this machine.
struct DpkgRoot(PathBuf);

impl DpkgRoot {
    fn new(root: PathBuf) -> DpkgRoot {
        let admin = root.join("var/lib/dpkg");
        fs::create_dir_all(admin.join("info")).unwrap();
        fs::create_dir_all(admin.join("updates")).unwrap();
        fs::write(admin.join("status"), "").unwrap();
        DpkgRoot(root)
    }

    fn run(&self, words: &[&str]) {
        let mut command = Command::new("dpkg");
        command.arg(format!("--root={}", self.0.display())).arg("--force-script-chrootless");
        command.args(["--force-depends", "--force-not-root", "--log=/dev/null"]).args(words);
        process::run_ok(&mut command, DEADLINE).unwrap();
    }

    /// Returns the files that are not dpkg's own.
    fn files(&self) -> Vec<PathBuf> {
        let mut files = package::files_below(&self.0).unwrap();
        files.retain(|file| !file.starts_with(self.0.join("var/lib/dpkg")));
        files
    }
}

/// dpkg installs the package, upgrades it, and removes it; the state of nodes remains, and nothing
/// else.
#[test]
fn dpkg_installs_upgrades_and_removes_it() {
    let base = tempfile::tempdir().unwrap();
    let [old, _] = pack(&weft(), base.path(), "none", "0.0.1-1").unwrap();
    let [new, symbols] = pack(&weft(), base.path(), "none", "0.0.2-1").unwrap();
    let dpkg = DpkgRoot::new(base.path().join("root"));
    let root = &dpkg.0;
    dpkg.run(&["--install", old.to_str().unwrap()]);
    assert!(root.join("usr/lib/systemd/system/weft@.service").is_file());
    // What an administrator and the services make.
    let wants = root.join("etc/systemd/system/multi-user.target.wants");
    let (enabled, foreign) = (wants.join("weft@main.service"), wants.join("other@main.service"));
    fs::create_dir_all(&wants).unwrap();
    std::os::unix::fs::symlink("/usr/lib/systemd/system/weft@.service", &enabled).unwrap();
    fs::write(&foreign, "").unwrap();
    let (data, log) = (root.join("var/lib/weft/data"), root.join("var/log/weft/main.log"));
    fs::write(&data, "years").unwrap();
    fs::create_dir_all(log.parent().unwrap()).unwrap();
    fs::write(&log, "lines").unwrap();
    let sockets = ["run/weft", "run/weft-public"].map(|folder| root.join(folder));
    sockets.iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
    fs::write(sockets[1].join("mnt.sock"), "").unwrap();

    dpkg.run(&["--install", new.to_str().unwrap(), symbols.to_str().unwrap()]);
    assert!(enabled.is_symlink() && data.is_file() && log.is_file(), "an upgrade retains everything");
    for file in dpkg.files().iter().filter(|file| file.is_symlink() && **file != enabled) {
        assert!(file.exists(), "{} leads nowhere", file.display());
    }
    dpkg.run(&["--remove", "weft-dbgsym", "weft"]);
    assert!(!enabled.is_symlink() && foreign.is_file() && log.is_file());
    assert_eq!(sockets.each_ref().map(|folder| folder.exists()), [false, true], "one is in use");
    fs::remove_file(sockets[1].join("mnt.sock")).unwrap();
    dpkg.run(&["--purge", "weft"]);
    assert!(!sockets[1].exists());
    assert_eq!(dpkg.files(), [foreign, data]);
}

/// Lintian is Debian's check of packages. Not every test machine has it.
#[test]
fn lintian_finds_no_errors() {
    let base = tempfile::tempdir().unwrap();
    // Without compression, lintian finds that to be an error.
    let packages = pack(&weft(), base.path(), "gzip", "0.0.1-1").unwrap();
    let mut command = Command::new("lintian");
    command.args(["--allow-root", "--fail-on=error"]).args(&packages);
    match process::run(&mut command, DEADLINE) {
        Ok(judged) => assert!(judged.status.success(), "{judged:?}"),
        Err(_) => println!("skipped: lintian is not installed"),
    }
}

#[test]
fn the_newest_glibc_counts() {
    let program = b"..GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0GLIBC_PRIVATE\0";
    assert_eq!(needed_glibc(program).as_deref(), Some("2.34"));
    assert_eq!(needed_glibc(b"nothing"), None);
}

/// Returns the value of each line of a unit with this key.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

/// Returns whether weft accepts a command line: it reports unknown arguments before it handles
/// `--help`.
fn understood(weft: &Path, line: &str) -> bool {
    let mut words = line.split(' ');
    let mut command = Command::new(weft);
    words.next() == Some("/usr/bin/weft")
        && process::run(command.args(words).arg("--help"), DEADLINE).unwrap().code() == 0
}

#[test]
fn units_start_what_weft_understands() {
    let weft = weft();
    assert!(!understood(&weft, "/usr/bin/weft serve --dir d --mood good"));
    assert!(!understood(&weft, "/usr/bin/weft serve --numa left"));
    for name in UNITS {
        let unit = fs::read_to_string(build::root().join("deploy").join(name)).unwrap().replace("%i", "0");
        let lines = [values(&unit, "ExecStart"), values(&unit, "ExecStop")].concat();
        assert!(!values(&unit, "ExecStart").is_empty() && !values(&unit, "WantedBy").is_empty(), "{name}");
        for line in lines {
            assert!(understood(&weft, line), "{name}: {line}");
        }
    }
}

/// Writes a unit with a name that systemd-analyze accepts, and runs a check of it. `None`: systemd
/// is not installed, as on many test machines.
fn analyze(name: &str, check: &[&str]) -> Option<process::Finished> {
    let base = tempfile::tempdir().unwrap();
    let unit = fs::read_to_string(build::root().join("deploy").join(name)).unwrap();
    // systemd also checks that the program exists, which no test machine has installed.
    let unit = unit.replace("/usr/bin/weft", "/bin/true").replace("Documentation=file:", "# file:");
    let path = base.path().join(name.replace("@.", "@0."));
    fs::write(&path, unit).unwrap();
    let checked = process::run(Command::new("systemd-analyze").args(check).arg(&path), DEADLINE);
    if checked.is_err() {
        println!("skipped: systemd-analyze is not installed");
    }
    checked.ok()
}

#[test]
fn systemd_finds_nothing_odd_in_the_units() {
    for name in UNITS {
        let Some(judged) = analyze(name, &["verify", "--man=no"]) else { return };
        assert!(judged.code() == 0 && judged.tail().is_empty(), "{name}: {judged:?}");
    }
}

/// systemd rates how much of the machine a service could harm, from 0 to 10.
#[test]
fn units_are_hardened() {
    // Most of what a mount is left with is its lack of a mount namespace, in which applications
    // couldn't see the mount.
    let limits = [("weft@.service", "40"), ("weft-numa@.service", "40"), ("mnt-weft.service", "45")];
    for (name, limit) in limits {
        let threshold = format!("--threshold={limit}");
        let Some(judged) = analyze(name, &["security", "--offline=true", "--no-pager", &threshold]) else {
            return;
        };
        assert!(judged.code() == 0, "{name}: {}", judged.tail());
    }
}

/// A mount namespace of the service would hide its mount, and a device policy without /dev/fuse
/// would prevent it.
#[test]
fn the_unit_of_a_mount_has_no_mount_namespace() {
    let unit = fs::read_to_string(build::root().join("deploy/mnt-weft.service")).unwrap();
    let of_namespace =
        ["ProtectSystem", "ProtectHome", "ProtectKernel", "ProtectControl", "ProtectProc", "Private"];
    let isolating: Vec<&str> = unit
        .lines()
        .filter(|line| of_namespace.iter().any(|key| line.starts_with(key)) || line.contains("Paths="))
        .collect();
    assert!(isolating.is_empty(), "{isolating:?}");
    assert_eq!(values(&unit, "DeviceAllow"), ["/dev/fuse rw"]);
}

/// A program with a header table of one entry, of the given kind.
fn elf(kind: u8, tail: &[u8]) -> Vec<u8> {
    let mut program = b"\x7fELF\x02\x01".to_vec();
    program.resize(64, 0);
    (program[32], program[54], program[56]) = (64, 56, 1);
    program.push(kind);
    program.resize(120, 0);
    program.extend_from_slice(tail);
    program
}

#[test]
fn a_static_binary_depends_on_no_library() {
    // Kinds of program headers: PT_LOAD, PT_INTERP.
    let (load, interpreter) = (1, 3);
    assert_eq!(libraries(&elf(load, b"GLIBC_2.34\0")), Some(None));
    assert_eq!(
        libraries(&elf(interpreter, b"GLIBC_2.34\0")),
        Some(Some("libc6 (>= 2.34), libgcc-s1".into()))
    );
    assert_eq!(libraries(b"#!/bin/sh"), None);
}
