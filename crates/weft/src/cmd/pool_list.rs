//! `weft pool list`.

use crate::cli::QueryArgs;
use crate::control::{PoolStatus, Request};
use crate::output::{Align, print, print_json, table};
use crate::size::format_size;
use types::Result;

/// Shows all pools.
pub fn run(args: &QueryArgs) -> Result<()> {
    let pools: Vec<PoolStatus> = args.dir.find()?.ask(Request::Pools)?;
    if args.json {
        return print_json(&pools);
    }
    let row = |p: &PoolStatus| {
        [
            p.id.to_string(),
            p.name.clone(),
            p.targets.to_string(),
            p.groups.to_string(),
            format_size(p.capacity),
            format_size(p.used),
            format_size(p.free),
            format!("{} %", p.spare),
        ]
    };
    let heading = [
        ("POOL", Align::Right),
        ("NAME", Align::Left),
        ("TARGETS", Align::Right),
        ("GROUPS", Align::Right),
        ("SIZE", Align::Right),
        ("USED", Align::Right),
        ("FREE", Align::Right),
        ("SPARE", Align::Right),
    ];
    print(&table(heading, &pools.iter().map(row).collect::<Vec<_>>()));
    Ok(())
}
