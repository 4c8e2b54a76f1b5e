//! Shows a plan as a page with tables and figures.

use super::Answer;
use super::rows::{Row, loads, number, rows};
use layout::plan::{Description, Plan, plan};
use report::{Axis, Block, Figure, Page, Point, Scale, Series, Table};
use types::{Errno, Error, Result};

/// Numbers of servers in the figures, as factors of the planned number.
const FACTORS: [f64; 9] = [0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0];

/// Returns the page.
///
/// Errors: a figure without data, or a description that can't be written as TOML.
pub fn page(answer: &Answer) -> Result<String> {
    let mut blocks = Vec::new();
    if !answer.targets.is_empty() {
        let targets: Vec<String> = answer.targets.iter().map(|target| target.to_string()).collect();
        blocks.push(Block::Text(format!("The smallest configuration for {}.", targets.join(", "))));
    }
    if let Some(plan) = &answer.plan {
        blocks.extend(plan.notes.iter().map(|note| Block::Text(format!("Note: {note}."))));
    }
    blocks.push(Block::Table(quantities(answer)));
    if let Some(plan) = &answer.plan {
        blocks.push(Block::Table(limits(plan)));
        blocks.push(Block::Heading("With other numbers of servers".into()));
        blocks.extend(figures(&answer.description).into_iter().map(Block::Figure));
    }
    if let Some(simulated) = &answer.simulated {
        blocks.push(Block::Heading("Simulated".into()));
        blocks.extend(simulated.blocks());
    }
    blocks.push(Block::Heading("Planned from".into()));
    let text = toml::to_string(&answer.description)
        .map_err(|e| Error::new(Errno::EPROTO, format!("the description can't be written as TOML: {e}")))?;
    blocks.push(Block::Verbatim(text));
    let name = &answer.description.name;
    let title = if name.is_empty() { "weft plan".into() } else { format!("weft plan: {name}") };
    Page { title, blocks }.html()
}

fn quantities(answer: &Answer) -> Table {
    let table = Table { caption: "What it gives".into(), ..Table::of(&["quantity", "value", "binds"]) };
    let cells = |row: Row| [row.name.to_string(), format!("{} {}", number(row.value), row.unit), row.binds];
    rows(answer).into_iter().fold(table, |table, row| table.row(cells(row)))
}

/// Returns the table of rates that each resource alone would allow.
fn limits(plan: &Plan) -> Table {
    let caption = "What each resource alone would allow, the limiting one first".to_string();
    let mut table = Table { caption, ..Table::of(&["load", "unit", "binds", "", "next", "", "then", ""]) };
    for (name, rate, scale, unit) in loads(plan) {
        let mut cells = vec![name.to_string(), unit.to_string()];
        for limit in rate.limits.iter().take(3) {
            cells.extend([limit.resource.to_string(), number(limit.per_s / scale)]);
        }
        table.rows.push(cells);
    }
    table
}

/// Returns plans with other numbers of the last kind of server; impossible ones are left out.
fn others(description: &Description) -> Vec<(f64, Plan)> {
    let Some(server) = description.server.last() else { return Vec::new() };
    let mut counts: Vec<u32> =
        FACTORS.iter().map(|factor| (f64::from(server.count) * factor).round().max(1.0) as u32).collect();
    counts.dedup();
    let planned = counts.into_iter().filter_map(|count| {
        let mut other = description.clone();
        other.server.last_mut()?.count = count;
        Some((f64::from(count), plan(&other).ok()?))
    });
    planned.collect()
}

fn figures(description: &Description) -> Vec<Figure> {
    let others = others(description);
    let servers = || Axis { name: "servers".into(), scale: Scale::Log2 };
    let series = |name: &str, of: &dyn Fn(&Plan) -> Option<f64>| {
        let points = others.iter().filter_map(|(x, plan)| Some(Point { x: *x, y: of(plan)?, spread: None }));
        Series { name: name.into(), points: points.collect(), is_limit: false }
    };
    let figure = |title: &str, caption: &str, y: &str, series: Vec<Series>| Figure {
        title: title.into(),
        caption: caption.into(),
        x: servers(),
        y: Axis { name: y.into(), scale: Scale::Log10 },
        // Zero or infinite values (such as data loss without failures) can't be drawn on a log
        // axis.
        series: series.into_iter().filter(|series| !series.points.is_empty()).collect(),
    };
    let possible = |value: f64| (value > 0.0 && value.is_finite()).then_some(value);
    let all = [
        figure(
            "Large transfers",
            "Reading and writing many large files; a bend is where the clients become the limit.",
            "GB/s",
            vec![
                series("read", &|plan| Some(plan.read.per_s / 1e9)),
                series("write", &|plan| Some(plan.write.per_s / 1e9)),
            ],
        ),
        figure(
            "Random requests of 4 KiB",
            "Reads, writes, and 70 % reads.",
            "k IOPS",
            vec![
                series("read", &|plan| Some(plan.random_read.per_s / 1e3)),
                series("write", &|plan| Some(plan.random_write.per_s / 1e3)),
                series("70/30", &|plan| Some(plan.mixed.per_s / 1e3)),
            ],
        ),
        figure(
            "Capacity",
            "Usable and spare capacity.",
            "TB",
            vec![
                series("usable", &|plan| possible(plan.capacity.usable_bytes / 1e12)),
                series("spare", &|plan| possible(plan.capacity.spare_bytes / 1e12)),
            ],
        ),
        figure(
            "Rebuild",
            "From the loss of a target until its content is restored: flat where the rate of one target is the limit, falling where all share the work.",
            "hours",
            vec![series("lost target", &|plan| Some(plan.rebuild.as_ref()?.seconds / 3600.0))],
        ),
        figure(
            "Data loss",
            "More targets fail more often, and are rebuilt faster.",
            "probability in a year",
            vec![series("any data lost", &|plan| possible(plan.reliability.loss_per_year))],
        ),
    ];
    all.into_iter().filter(|figure| !figure.series.is_empty()).collect()
}
