//! A C program that is built with `make`.

use crate::named;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Output};

/// Number of source files in the example.
pub const FILES: u64 = 50;

const MAKEFILE: &str = "OBJECTS = $(patsubst %.c,%.o,$(wildcard *.c))
program: $(OBJECTS)
\t$(CC) -o $@ $^
%.o: %.c all.h
\t$(CC) -O1 -c -o $@ $<
";

/// Writes a C project into a folder, builds it with make, and checks the output of its program.
///
/// Errors: `NotFound` if the machine has no `make`.
pub fn build_example(folder: &Path) -> io::Result<()> {
    write_sources(folder).map_err(|e| named(folder, &e))?;
    let make = Command::new("make").arg("-j2").arg("-C").arg(folder).output()?;
    require_success("make", &make)?;
    let program = folder.join("program");
    let ran = Command::new(&program).output().map_err(|e| named(&program, &e))?;
    require_success("the example", &ran)?;
    let expected = (0..FILES).fold(1, |x, number| (x * 3 + number) % 1_000_003).to_string();
    let printed = String::from_utf8_lossy(&ran.stdout).trim().to_string();
    if printed == expected {
        return Ok(());
    }
    let message = format!("{} printed {printed}, expected {expected}", program.display());
    Err(io::Error::new(io::ErrorKind::InvalidData, message))
}

fn require_success(what: &str, output: &Output) -> io::Result<()> {
    if output.status.success() {
        return Ok(());
    }
    let log = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{what} failed ({}): {}", output.status, log.trim())))
}

fn write_sources(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut calls = String::new();
    let mut header = String::from("#pragma once\n");
    for number in 0..FILES {
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
    fs::write(folder.join("Makefile"), MAKEFILE)
}
