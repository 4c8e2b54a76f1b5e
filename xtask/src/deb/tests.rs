//! Builds the package, inspects it, installs it into a separate directory, and runs the installed
//! program. Checks that systemd and weft accept the units.

use super::*;
use std::ffi::OsStr;

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
    let package = pack(&weft(), base.path(), "none").unwrap();

    let about = output_of("dpkg-deb", &["--info".as_ref(), package.as_ref()]);
    let version = env!("CARGO_PKG_VERSION");
    for part in ["Package: weft".to_string(), format!("Version: {version}"), "Depends: libc6 (>= 2.".into()] {
        assert!(about.contains(&part), "{part}: {about}");
    }
    let contents = output_of("dpkg-deb", &["--contents".as_ref(), package.as_ref()]);
    assert!(contents.lines().all(|line| line.contains("root/root")), "{contents}");

    let root = base.path().join("root");
    output_of("dpkg-deb", &["--extract".as_ref(), package.as_ref(), root.as_ref()]);
    for (_, file) in FILES {
        assert_eq!(fs::metadata(root.join(file)).unwrap().permissions().mode() & 0o777, 0o644, "{file}");
    }
    assert_eq!(fs::read_link(root.join("usr/sbin/mount.fuse.weft")).unwrap(), Path::new("/usr/bin/weft"));
    let installed = root.join(BINARY);
    assert_eq!(output_of(&installed, &["--version".as_ref()]).trim(), format!("weft {version}"));
    let node = root.join("var/lib/weft/main");
    let init = ["cluster", "init", "--name", "packed", "--listen", "127.0.0.1:7500", "--dir"].map(OsStr::new);
    output_of(&installed, &[&init[..], &[node.as_ref()]].concat());
    assert!(node.join("node.toml").is_file() && node.join("client.toml").is_file());
}

/// dpkg installs the package, runs its scripts, and removes it; the state of nodes remains.
#[test]
fn dpkg_installs_and_removes_it() {
    let base = tempfile::tempdir().unwrap();
    let package = pack(Path::new("/bin/true"), base.path(), "none").unwrap();
    let admin = base.path().join("root/var/lib/dpkg");
    fs::create_dir_all(admin.join("info")).unwrap();
    fs::create_dir_all(admin.join("updates")).unwrap();
    fs::write(admin.join("status"), "").unwrap();
    let root = base.path().join("root");
    // The directory has no shell, so the scripts run outside of it. DPKG_ROOT prevents them from
    // changing this machine.
    let dpkg = |words: &[&str]| {
        let mut command = Command::new("dpkg");
        command.arg(format!("--root={}", root.display())).arg("--force-script-chrootless");
        command.args(["--force-depends", "--force-not-root", "--log=/dev/null"]).args(words);
        process::run_ok(&mut command, DEADLINE).unwrap()
    };
    dpkg(&["--install", package.to_str().unwrap()]);
    assert!(root.join("usr/lib/systemd/system/weft@.service").is_file());
    fs::write(root.join("var/lib/weft/data"), "years").unwrap();
    dpkg(&["--purge", "weft"]);
    assert!(!root.join(BINARY).exists());
    assert_eq!(fs::read_to_string(root.join("var/lib/weft/data")).unwrap(), "years");
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

/// Runs systemd's own verification if systemd is installed. Not every test machine has it.
#[test]
fn systemd_finds_nothing_odd_in_the_units() {
    let base = tempfile::tempdir().unwrap();
    for name in UNITS {
        let unit = fs::read_to_string(build::root().join("deploy").join(name)).unwrap();
        // systemd also checks that the program exists, which no test machine has installed.
        let unit = unit.replace("/usr/bin/weft", "/bin/true").replace("Documentation=file:", "# file:");
        let path = base.path().join(name.replace("@.", "@0."));
        fs::write(&path, unit).unwrap();
        let mut command = Command::new("systemd-analyze");
        let Ok(judged) = process::run(command.args(["verify", "--man=no"]).arg(&path), DEADLINE) else {
            println!("systemd-analyze is not installed");
            return;
        };
        assert!(judged.code() == 0 && judged.tail().is_empty(), "{name}: {judged:?}");
    }
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
