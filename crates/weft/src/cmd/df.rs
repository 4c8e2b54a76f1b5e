//! `weft df`: free space.

use crate::cli::QueryArgs;
use crate::control::{Control, DiskFree, Request};
use crate::output::{Align, print, print_json, table};
use crate::size::format_size;
use types::Result;

/// Shows the space of the cluster and of each target.
pub fn run(args: &QueryArgs) -> Result<()> {
    let df: DiskFree = Control::ask(&args.dir, Request::Df)?;
    if args.json {
        return print_json(&df);
    }
    let row = |what: String, capacity, used, free, place: &str| {
        [
            what,
            format_size(capacity),
            format_size(used),
            format_size(free),
            percent(used, free),
            place.to_string(),
        ]
    };
    let targets =
        df.targets.iter().map(|t| row(format!("target {}", t.id), t.capacity, t.used, t.free, &t.path));
    let mut rows = vec![row("cluster".into(), df.capacity, df.used, df.free, &df.mount)];
    rows.extend(targets);
    let heading = [
        ("WHAT", Align::Left),
        ("SIZE", Align::Right),
        ("USED", Align::Right),
        ("FREE", Align::Right),
        ("USE%", Align::Right),
        ("PATH", Align::Left),
    ];
    print(&table(heading, &rows));
    Ok(())
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
    fn shares_are_rounded_up() {
        assert_eq!(percent(0, 0), "-");
        assert_eq!(percent(0, 10), "0%");
        assert_eq!(percent(1, 1000), "1%");
        assert_eq!(percent(1, 1), "50%");
        assert_eq!(percent(u64::MAX, 1), "100%");
    }
}
