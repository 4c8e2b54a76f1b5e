//! A short demonstration on a mount: copy a real source tree in, build in it, read everything back,
//! compare.

use crate::e2e::Rng;
use crate::{build, process};
use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Deadline of the example's build.
const BUILD_DEADLINE: Duration = Duration::from_secs(300);

/// Maximum bytes of sources: this is a demonstration, not a benchmark.
const MAX_TREE_BYTES: u64 = 400 << 20;

/// Number of files in a generated tree, used if the machine has no sources to copy.
const GENERATED_FILES: u64 = 5000;

/// Options of `cargo xtask demo`.
#[derive(clap::Args)]
pub struct Options {
    /// The mount.
    #[arg(default_value = "mnt")]
    mount: PathBuf,
}

/// Files of a tree: relative path and size.
type Tree = BTreeMap<PathBuf, u64>;

/// Runs the demonstration and prints its steps.
pub fn run(options: &Options) -> Result<(), String> {
    let mount = build::root().join(&options.mount);
    if !crate::e2e::is_mounted(&mount) {
        return Err(format!("{} is not mounted; hint: run `make up` first", mount.display()));
    }
    let place = mount.join("demo");
    drop(fs::remove_dir_all(&place));
    demonstrate(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    println!("all files in {} are identical to their sources", options.mount.join("demo").display());
    Ok(())
}

fn demonstrate(place: &Path) -> io::Result<()> {
    let generated = tempfile::tempdir()?;
    let sources = sources(generated.path())?;
    let mut copied = Vec::new();
    for (name, source) in &sources {
        let tree = list(source, MAX_TREE_BYTES / sources.len() as u64)?;
        let target = place.join(name);
        let watch = Instant::now();
        copy(source, &target, &tree)?;
        report(&format!("copied {name} in"), &tree, watch);
        copied.push((source, target, tree));
    }
    let watch = Instant::now();
    build_example(&place.join("example"))?;
    println!("built and ran a C program of {EXAMPLE_FILES} files in {:.1} s", watch.elapsed().as_secs_f64());
    for (source, target, tree) in &copied {
        let watch = Instant::now();
        let sums = checksums(target, tree)?;
        report("read it back", tree, watch);
        if sums != checksums(source, tree)? {
            return Err(io::Error::other(format!("{} differs from {}", target.display(), source.display())));
        }
    }
    Ok(())
}

/// Returns the trees to copy: weft's source, and cargo's downloaded sources or a generated tree.
fn sources(generated: &Path) -> io::Result<Vec<(&'static str, PathBuf)>> {
    let own = ("weft", build::root());
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let registry = home.map(|home| home.join("registry/src"));
    match registry.filter(|path| path.is_dir()) {
        Some(path) => Ok(vec![own, ("crates", path)]),
        None => {
            generate(generated)?;
            Ok(vec![own, ("generated", generated.to_path_buf())])
        }
    }
}

fn generate(folder: &Path) -> io::Result<()> {
    let mut rng = Rng::new(1);
    for number in 0..GENERATED_FILES {
        let folder = folder.join(format!("{}", number % 100));
        fs::create_dir_all(&folder)?;
        let length = rng.below(30_000) as usize;
        fs::write(folder.join(number.to_string()), rng.bytes(length))?;
    }
    Ok(())
}

/// Lists the regular files of a tree without build output, up to a total size.
fn list(top: &Path, max_bytes: u64) -> io::Result<Tree> {
    let mut tree = Tree::new();
    let mut bytes = 0;
    let mut open = vec![PathBuf::new()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(top.join(&folder))? {
            let entry = entry?;
            let (kind, name) = (entry.file_type()?, entry.file_name());
            let excluded = ["target", ".git", "mnt", "weft-data"].iter().any(|other| name == *other);
            if kind.is_dir() && !excluded {
                open.push(folder.join(name));
            } else if kind.is_file() && bytes < max_bytes {
                let size = entry.metadata()?.len();
                bytes += size;
                tree.insert(folder.join(name), size);
            }
        }
    }
    Ok(tree)
}

fn copy(source: &Path, target: &Path, tree: &Tree) -> io::Result<()> {
    for path in tree.keys() {
        let to = target.join(path);
        fs::create_dir_all(to.parent().expect("a file lies in a folder"))?;
        fs::copy(source.join(path), to)?;
    }
    Ok(())
}

fn checksums(top: &Path, tree: &Tree) -> io::Result<Vec<u64>> {
    let mut buffer = vec![0; 1 << 20];
    let mut sum = |path: &Path| {
        let mut file = fs::File::open(top.join(path))?;
        let mut hasher = DefaultHasher::new();
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(hasher.finish()),
                length => hasher.write(&buffer[..length]),
            }
        }
    };
    tree.keys().map(|path| sum(path)).collect()
}

fn report(what: &str, tree: &Tree, watch: Instant) {
    let seconds = watch.elapsed().as_secs_f64();
    let megabytes = tree.values().sum::<u64>() as f64 / 1e6;
    let files = tree.len();
    println!(
        "{what}: {files} files, {megabytes:.0} MB in {seconds:.1} s: {:.0} files/s, {:.0} MB/s",
        files as f64 / seconds,
        megabytes / seconds
    );
}

/// Number of source files in the example.
pub const EXAMPLE_FILES: u64 = 50;

/// Writes a C project into a folder, builds it with make, and checks the output of its program.
pub fn build_example(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut calls = String::new();
    let mut header = String::from("#pragma once\n");
    for number in 0..EXAMPLE_FILES {
        let source =
            format!("#include \"all.h\"\nlong part{number}(long x) {{ return x * 3 + {number}; }}\n");
        fs::write(folder.join(format!("part{number}.c")), source)?;
        header += &format!("long part{number}(long x);\n");
        calls += &format!("  x = part{number}(x) % 1000003;\n");
    }
    fs::write(folder.join("all.h"), header)?;
    let main = format!(
        "#include <stdio.h>\n#include \"all.h\"\nint main(void) {{\n  long x = 1;\n{calls}  printf(\"%ld\\n\", x);\n}}\n"
    );
    fs::write(folder.join("main.c"), main)?;
    let mut makefile = fs::File::create(folder.join("Makefile"))?;
    writeln!(
        makefile,
        "OBJECTS = $(patsubst %.c,%.o,$(wildcard *.c))\nprogram: $(OBJECTS)\n\t$(CC) -o $@ $^\n%.o: %.c all.h\n\t$(CC) -O1 -c -o $@ $<"
    )?;
    drop(makefile);
    let expected = (0..EXAMPLE_FILES).fold(1, |x, number| (x * 3 + number) % 1_000_003);
    let make = process::run_ok(Command::new("make").arg("-j2").arg("-C").arg(folder), BUILD_DEADLINE);
    make.map_err(io::Error::other)?;
    let done = process::run_ok(&mut Command::new(folder.join("program")), BUILD_DEADLINE)
        .map_err(io::Error::other)?;
    match done.stdout.trim() == expected.to_string() {
        true => Ok(()),
        false => {
            Err(io::Error::other(format!("the program printed {}, expected {expected}", done.stdout.trim())))
        }
    }
}
