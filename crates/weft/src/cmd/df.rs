//! `weft df`: free space.

use super::watch::{self, View};
use crate::cli::WatchArgs;
use crate::control::{DiskFree, Request, TargetStatus};
use crate::exit::Exit;
use crate::output::{Align, table};
use crate::size::format_size;
use types::Result;

/// Shows the space of the cluster and of each target: USED is what weft's files take, OTHER what
/// other programs have on the same disks.
pub fn run(args: &WatchArgs) -> Result<Exit> {
    watch::show(args.query.json, args.watch, || {
        let df: DiskFree = args.query.dir.find()?.ask(Request::Df)?;
        View::new(&df, screen(&df))
    })
}

fn screen(df: &DiskFree) -> String {
    let row = |what: String, (capacity, used, other, free): (u64, u64, u64, u64), place: &str| {
        [
            what,
            format_size(capacity),
            format_size(used),
            format_size(other),
            format_size(free),
            percent(used.saturating_add(other), free),
            place.to_string(),
        ]
    };
    let target =
        |t: &TargetStatus| row(format!("target {}", t.id), (t.capacity, t.used, t.other, t.free), &t.path);
    let mut rows = vec![row("cluster".into(), (df.capacity, df.used, df.other, df.free), &df.mount)];
    rows.extend(df.targets.iter().map(target));
    let heading = [
        ("WHAT", Align::Left),
        ("SIZE", Align::Right),
        ("USED", Align::Right),
        ("OTHER", Align::Right),
        ("FREE", Align::Right),
        ("USE%", Align::Right),
        ("PATH", Align::Left),
    ];
    table(heading, &rows)
}

/// Returns the used share of the space that ordinary users can have, rounded up as in df(1).
fn percent(used: u64, free: u64) -> String {
    match used.saturating_add(free) {
        0 => "-".into(),
        all => format!("{}%", (used as u128 * 100).div_ceil(all as u128)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_on_the_disk_have_a_column_of_their_own() {
        let (capacity, used, other, free) = (100 << 30, 1 << 20, 30 << 30, 70 << 30);
        let df = DiskFree { mount: "/m".into(), capacity, used, other, free, targets: vec![] };
        let text = screen(&df);
        let line: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(line, ["cluster", "100", "GiB", "1", "MiB", "30", "GiB", "70", "GiB", "31%", "/m"]);
    }

    #[test]
    fn shares_are_rounded_up() {
        assert_eq!(percent(0, 0), "-");
        assert_eq!(percent(0, 10), "0%");
        assert_eq!(percent(1, 1000), "1%");
        assert_eq!(percent(1, 1), "50%");
        assert_eq!(percent(u64::MAX, 1), "100%");
    }
}
