//! Memory-mapped databases: their writes invalidate no other pages.

use super::super::outcome::{At, TestResult, ensure, ensure_eq};
use super::super::stage::Stage;
use super::super::{Scope, TestCase, tools};
use super::{Cluster, Part};
use crate::process;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] =
    &[TestCase { name: "sqlite_with_a_mapped_database", scope: Scope::Own, minutes: 4, run: sqlite }];

/// Deadline of one program.
const DEADLINE: Duration = Duration::from_secs(200);
/// Number of rows of some hundred bytes; every second one is deleted in its own transaction.
const ROWS: u64 = 4_000;
/// Bytes that the mount may receive per deletion: some changed pages of 4 KiB. A whole read-ahead
/// window is a thousand pages.
const RECEIVED_BYTES: u64 = 64 << 10;

fn ask(program: &Path, folder: &Path, statements: &str) -> TestResult<String> {
    let script = folder.with_extension("sql");
    fs::write(&script, statements).at(script.display())?;
    let mut command = Command::new(program);
    command.args(["-bail", "-cmd", ".timeout 60000", "base.db"]);
    command.arg(format!(".read {}", script.display())).current_dir(folder);
    Ok(process::run_ok(&mut command, DEADLINE)?.stdout)
}

fn sqlite(stage: &Stage) -> TestResult {
    let program = tools::find("sqlite3")?;
    let cluster = Cluster::start(stage, "mapped", 2, 2)?;
    let folders = cluster.shared_folder("database")?;
    let fill = format!(
        "create table t(id integer primary key, filler); with recursive n(i) as \
         (select 1 union all select i + 1 from n where i < {ROWS}) insert into t select i, hex(randomblob(200)) from n;"
    );
    ask(&program, &folders[0], &fill)?;
    let mut delete = "pragma mmap_size=268435456; pragma synchronous=off;\n".to_string();
    for id in (1..=ROWS).step_by(2) {
        writeln!(delete, "delete from t where id = {id};").expect("a string takes everything");
    }
    let node = cluster.node(Part::Client(0));
    let before = node.traffic()?.received;
    let output = ask(&program, &folders[0], &delete)?;
    ensure_eq!(output.trim(), "268435456", "what sqlite3 says of its mapping");
    let received = (node.traffic()?.received - before) / (ROWS / 2);
    ensure!(received <= RECEIVED_BYTES, "{received} bytes were read for each deleted row");
    // From the other mount, which has also mapped it.
    let look = "pragma mmap_size=268435456; pragma integrity_check; select count(*), sum(id % 2) from t;";
    let found = ask(&program, &folders[1], look)?;
    let expected = format!("268435456\nok\n{}|0", ROWS / 2);
    ensure_eq!(found.trim(), expected, "the database");
    cluster.stop()
}
