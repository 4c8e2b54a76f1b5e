//! RPM packages: `weft`, and `weft-debuginfo` with the symbols of its binary. rpmbuild(8) packs
//! files that are laid out already.

use crate::package::{self, DEADLINE, DOCUMENTS, Options, PRIVATE};
use crate::process;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const COMPLETIONS: package::CompletionFolders = package::CompletionFolders {
    zsh: "usr/share/zsh/site-functions",
    fish: "usr/share/fish/vendor_completions.d",
};

/// Release of the packaging of one version.
const RELEASE: u32 = 1;

/// Packs the given binary, or builds and packs the release binary.
pub fn run(options: &Options) -> Result<(), String> {
    let version = env!("CARGO_PKG_VERSION");
    let packages = pack(&options.binary()?, &options.out("rpm"), &options.compression, version)?;
    packages.iter().for_each(|package| println!("{}", package.display()));
    Ok(())
}

/// Packs a binary. Returns the paths of the package and of that with the symbols.
fn pack(binary: &Path, out: &Path, compression: &str, version: &str) -> Result<[PathBuf; 2], String> {
    fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    let out = out.canonicalize().map_err(|error| format!("{}: {error}", out.display()))?;
    let (root, symbols, spec) = (out.join("files"), out.join("symbols"), out.join("weft.spec"));
    package::stage(&root, &symbols, binary, &COMPLETIONS)?;
    let failed = |error: io::Error| format!("cannot lay out {}: {error}", root.display());
    let text = specification(&root, &symbols, version).map_err(failed)?;
    fs::write(&spec, text).map_err(failed)?;
    let mut build = Command::new("rpmbuild");
    build.arg("-bb").arg("--quiet").args(["--define", &format!("_topdir {}", out.join("build").display())]);
    build.args(["--define", &format!("_rpmdir {}", out.display())]);
    // Not in a folder for each architecture.
    build.args(["--define", "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm"]);
    build.args(["--define", &format!("_binary_payload {}", payload(compression))]).arg(&spec);
    process::run_ok(&mut build, DEADLINE)
        .map_err(|error| format!("{error}; hint: apt-get install rpm, or dnf install rpm-build"))?;
    for folder in [&root, &symbols, &out.join("build")] {
        fs::remove_dir_all(folder).map_err(failed)?;
    }
    fs::remove_file(&spec).map_err(failed)?;
    let architecture = std::env::consts::ARCH;
    let named = |name: &str| out.join(format!("{name}-{version}-{RELEASE}.{architecture}.rpm"));
    Ok([named("weft"), named("weft-debuginfo")])
}

/// Returns rpm's name of a compression.
fn payload(compression: &str) -> &'static str {
    match compression {
        "gzip" => "w9.gzdio",
        "none" => "w.ufdio",
        _ => "w6.xzdio",
    }
}

/// Returns the lines for the files below a folder.
fn listed_files(root: &Path) -> io::Result<String> {
    let line = |file: PathBuf| {
        let path = file.strip_prefix(root).unwrap_or(&file);
        let mark = if path.starts_with("usr/share/doc") { "%doc " } else { "" };
        format!("{mark}/{}\n", path.display())
    };
    Ok(package::files_below(root)?.into_iter().map(line).collect())
}

/// Returns the lines for the folders of documents.
fn listed_folders(root: &Path) -> io::Result<String> {
    let mut folders = vec![root.join(DOCUMENTS)];
    folders.extend(package::folders_below(&root.join(DOCUMENTS))?);
    let line = |dir: PathBuf| {
        format!("%dir %attr(0755, root, root) /{}\n", dir.strip_prefix(root).unwrap_or(&dir).display())
    };
    Ok(folders.into_iter().map(line).collect())
}

/// Returns the specification file, which lists every file.
fn specification(root: &Path, symbols: &Path, version: &str) -> io::Result<String> {
    let private: String =
        PRIVATE.iter().map(|dir| format!("%dir %attr(0700, root, root) /{dir}\n")).collect();
    let folders = listed_folders(root)?;
    let (files, symbol_files) = (listed_files(root)?, listed_files(symbols)?);
    let (root, symbols) = (root.display(), symbols.display());
    Ok(format!(
        "# The binary is stripped already, and its symbols are in a package of their own.
%global debug_package %{{nil}}
%global __os_install_post %{{nil}}
%global _build_id_links none
Name: weft
Version: {version}
Release: {RELEASE}
Summary: Parallel file system
License: Apache-2.0
Group: System Environment/Base
Packager: the authors of weft
AutoReqProv: no
Recommends: chrony

%description
Files striped over the disks of many machines, in one POSIX namespace.
One binary is server, client and command line.

%package debuginfo
Summary: Debug symbols of weft
Group: Development/Debug
Requires: weft = {version}-{RELEASE}
AutoReqProv: no

%description debuginfo
Debuggers, and backtraces in the log of weft, then name functions.

%install
cp -a {root}/. {symbols}/. %{{buildroot}}/

%files
%defattr(-, root, root, -)
{folders}{private}{files}
%files debuginfo
%defattr(-, root, root, -)
{symbol_files}
%post
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi

%preun
# Nothing is served by a program that is gone. An upgrade lets everything go on.
if [ \"$1\" = 0 ] && [ -d /run/systemd/system ]; then
    systemctl stop 'weft@*.service' 'weft-numa@*.service'
fi

%postun
# Links of enabled units would lead nowhere.
if [ \"$1\" = 0 ]; then
    rm -f /etc/systemd/system/*.wants/weft@*.service /etc/systemd/system/*.wants/weft-numa@*.service
    # Folders of control sockets; a mount that continues still has its own there.
    for folder in /run/weft /run/weft-public; do
        if [ -d \"$folder\" ]; then rmdir --ignore-fail-on-non-empty \"$folder\"; fi
    done
fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi

%changelog
* Sat Jan 01 2000 the authors of weft <weft@weft.invalid> - {version}-{RELEASE}
- See /usr/share/doc/weft/CHANGELOG.md.
"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn rpm(arguments: &[&str]) -> String {
        process::run_ok(Command::new("rpm").args(arguments), DEADLINE).unwrap().stdout
    }

    fn is_installed(program: &str) -> bool {
        process::run(Command::new(program).arg("--version"), DEADLINE).is_ok()
    }

    /// rpmlint is the check of packages of the distributions with RPM. Not every test machine has
    /// it.
    fn require_no_lint(packages: &[&str]) {
        let mut command = Command::new("rpmlint");
        command.arg("--config").arg(crate::build::root().join("deploy/rpm/rpmlint.toml")).args(packages);
        let Ok(judged) = process::run(&mut command, DEADLINE) else {
            println!("skipped: rpmlint is not installed");
            return;
        };
        let errors: Vec<&str> = judged.stdout.lines().filter(|line| line.contains(": E: ")).collect();
        assert!(judged.stdout.contains("packages and"), "{judged:?}");
        assert!(errors.is_empty(), "{errors:#?}");
    }

    #[test]
    fn rpm_installs_upgrades_and_removes_it() {
        if !is_installed("rpmbuild") {
            println!("skipped: rpmbuild is not installed");
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let weft = crate::build::weft(false).unwrap();
        let [old, _] = pack(&weft, &base.path().join("old"), "none", "0.0.1").unwrap();
        let [new, symbols] = pack(&weft, &base.path().join("new"), "none", "0.0.2").unwrap();
        let (old, new) = (old.to_str().unwrap(), new.to_str().unwrap());
        let listed = rpm(&["-qpl", new]);
        for file in
            ["/usr/bin/weft", "/usr/share/man/man1/weft-up.1.gz", "/usr/share/zsh/site-functions/_weft"]
        {
            assert!(listed.lines().any(|line| line == file), "{file}: {listed}");
        }
        assert!(rpm(&["-qpl", symbols.to_str().unwrap()]).contains("/usr/lib/debug/.build-id/"));
        let needed = rpm(&["-qpR", new]);
        assert!(!needed.lines().any(|line| line.starts_with("lib")), "a static binary needs none: {needed}");

        require_no_lint(&[new, symbols.to_str().unwrap()]);

        // The directory has no shell for scripts.
        let root = base.path().join("root");
        let at = format!("--root={}", root.display());
        rpm(&[&at, "--noscripts", "--nodeps", "-i", old]);
        let node = root.join("var/lib/weft/data");
        fs::write(&node, "years").unwrap();
        assert_eq!(fs::metadata(root.join("var/lib/weft")).unwrap().permissions().mode() & 0o777, 0o700);
        rpm(&[&at, "--noscripts", "--nodeps", "-U", new]);
        assert_eq!(
            rpm(&[&at, "-q", "weft"]).trim(),
            format!("weft-0.0.2-{RELEASE}.{}", std::env::consts::ARCH)
        );
        rpm(&[&at, "--noscripts", "-e", "weft"]);
        assert_eq!(fs::read_to_string(&node).unwrap(), "years");
        // Of rpm itself is only its database, which Debian has elsewhere.
        let databases = ["var/lib/rpm", "usr/lib/sysimage/rpm", "root/.rpmdb"].map(|dir| root.join(dir));
        let is_left = |file: &PathBuf| *file != node && !databases.iter().any(|dir| file.starts_with(dir));
        let left: Vec<PathBuf> = package::files_below(&root).unwrap().into_iter().filter(is_left).collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn scripts_are_valid_shell() {
        let base = tempfile::tempdir().unwrap();
        let text = specification(base.path(), base.path(), "0.0.1").unwrap();
        for name in ["%post\n", "%preun\n", "%postun\n"] {
            let script = text.split(name).nth(1).unwrap().split("\n%").next().unwrap();
            let mut shell = Command::new("sh");
            process::run_ok(shell.args(["-n", "-c", script]), DEADLINE).unwrap();
        }
    }
}
