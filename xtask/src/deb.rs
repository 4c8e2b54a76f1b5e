//! Debian packages: `weft`, and `weft-dbgsym` with the symbols of its binary.

use crate::package::{self, DEADLINE, Options, install};
use crate::{build, process};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Revision of the packaging of one version.
const REVISION: u32 = 1;

/// Scripts that dpkg runs.
const SCRIPTS: &[&str] = &["postinst", "prerm", "postrm"];

const COMPLETIONS: package::CompletionFolders = package::CompletionFolders {
    zsh: "usr/share/zsh/vendor-completions",
    fish: "usr/share/fish/vendor_completions.d",
};

/// Packs the given binary, or builds and packs the release binary.
pub fn run(options: &Options) -> Result<(), String> {
    let packages = pack(&options.binary()?, &options.out("deb"), &options.compression, &version())?;
    packages.iter().for_each(|package| println!("{}", package.display()));
    Ok(())
}

fn version() -> String {
    format!("{}-{REVISION}", env!("CARGO_PKG_VERSION"))
}

/// Packs a binary. Returns the paths of the package and of that with the symbols.
fn pack(binary: &Path, out: &Path, compression: &str, version: &str) -> Result<[PathBuf; 2], String> {
    let architecture = process::run_ok(Command::new("dpkg").arg("--print-architecture"), DEADLINE)?;
    let architecture = architecture.stdout.trim();
    let named = |name: &str| out.join(format!("{name}_{version}_{architecture}"));
    let (root, symbols) = (named("weft"), named("weft-dbgsym"));
    let staged = |error: io::Error| format!("cannot lay out {}: {error}", root.display());
    let libraries = libraries(&fs::read(binary).map_err(staged)?)
        .ok_or_else(|| format!("{} is not a Linux program of this machine", binary.display()))?;
    package::stage(&root, &symbols, binary, &COMPLETIONS)?;
    stage_debian_files(&root, &symbols, version).map_err(staged)?;
    package::compress(&[root.join(DEBIAN_CHANGELOG)])?;
    let control = Control { name: "weft", version, architecture };
    control.write(&root, &weft_fields(libraries.as_deref())).map_err(staged)?;
    for script in SCRIPTS {
        let from = build::root().join("deploy/debian").join(script);
        install(&from, &root.join("DEBIAN").join(script), 0o755).map_err(staged)?;
    }
    let control = Control { name: "weft-dbgsym", version, architecture };
    control.write(&symbols, &symbols_fields(version)).map_err(staged)?;
    let mut packages = Vec::new();
    for root in [root, symbols] {
        let mut package = root.clone().into_os_string();
        package.push(".deb");
        let mut pack = Command::new("dpkg-deb");
        pack.args(["--build", "--root-owner-group"]).arg(format!("-Z{compression}")).arg(&root).arg(&package);
        process::run_ok(&mut pack, DEADLINE)?;
        fs::remove_dir_all(&root).map_err(|error| format!("{}: {error}", root.display()))?;
        packages.push(PathBuf::from(package));
    }
    packages.try_into().map_err(|_| "two packages".into())
}

const DEBIAN_CHANGELOG: &str = "usr/share/doc/weft/changelog.Debian";

/// Adds the files that only Debian wants.
fn stage_debian_files(root: &Path, symbols: &Path, version: &str) -> io::Result<()> {
    let copyright = build::root().join("deploy/debian/copyright");
    install(&copyright, &root.join("usr/share/doc/weft/copyright"), 0o644)?;
    fs::create_dir_all(symbols.join("usr/share/doc"))?;
    symlink("weft", symbols.join("usr/share/doc/weft-dbgsym"))?;
    let overrides = build::root().join("deploy/debian/lintian-overrides");
    install(&overrides, &root.join("usr/share/lintian/overrides/weft"), 0o644)?;
    fs::write(
        root.join(DEBIAN_CHANGELOG),
        format!(
            "weft ({version}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n \
             -- the authors of weft <weft@weft.invalid>  Thu, 01 Jan 1970 00:00:00 +0000\n"
        ),
    )
}

/// What the control files of both packages begin with.
struct Control<'a> {
    name: &'a str,
    version: &'a str,
    architecture: &'a str,
}

impl Control<'_> {
    /// Writes the control files below `root`; `fields`: the fields of this package.
    fn write(&self, root: &Path, fields: &str) -> io::Result<()> {
        package::open_folders(root)?;
        let folder = root.join("DEBIAN");
        let (sums, bytes) = sums(root)?;
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("md5sums"), sums)?;
        let Control { name, version, architecture } = self;
        fs::write(
            folder.join("control"),
            format!(
                "Package: {name}\nVersion: {version}\nArchitecture: {architecture}\n\
                 Maintainer: the authors of weft <weft@weft.invalid>\nInstalled-Size: {}\nPriority: optional\n{fields}",
                bytes.div_ceil(1024)
            ),
        )
    }
}

fn weft_fields(libraries: Option<&str>) -> String {
    let depends = libraries.map_or(String::new(), |libraries| format!("Depends: {libraries}\n"));
    format!(
        "Section: admin\n{depends}Recommends: chrony | time-daemon\nSuggests: xfsprogs\n\
         Description: parallel file system\n \
         Files striped over the disks of many machines, in one POSIX namespace.\n \
         One binary is server, client and command line.\n"
    )
}

fn symbols_fields(version: &str) -> String {
    format!(
        "Section: debug\nDepends: weft (= {version})\nAuto-Built-Package: debug-symbols\n\
         Description: debug symbols for weft\n \
         Debuggers, and backtraces in the log of weft, then name functions.\n"
    )
}

/// Returns the checksums of all files in the format of md5sum(1), and their total size in bytes.
fn sums(root: &Path) -> io::Result<(String, u64)> {
    let mut bytes = 0;
    let mut command = Command::new("md5sum");
    command.current_dir(root);
    for file in package::files_below(root)? {
        let meta = fs::symlink_metadata(&file)?;
        if meta.is_file() {
            bytes += meta.len();
            command.arg(file.strip_prefix(root).unwrap_or(&file));
        }
    }
    let done = process::run_ok(&mut command, DEADLINE).map_err(io::Error::other)?;
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

#[cfg(test)]
mod tests;
