//! The report as an HTML page.

use super::commands::command;
use super::csv::median_of;
use super::{Part, Report};
use crate::figure_parts::{self, Unit, display_name, place, serde_name};
use crate::profiles::{Figure, Quantity, XAxis};
use crate::text::{digits, size};
use crate::{Access, Binding, Experiment, Limit, Measured, Operation, Through, binding_of};
use report::{Block, Page, Point, Series, Table};
use types::Result;

/// Hint for ceilings that were not measured.
pub const NOT_MEASURED: &str = "not measured: weft bench storage, weft bench net and weft bench cpu measure the hardware without the file system";

/// Returns the page.
///
/// Errors: a figure with a number that its axis can't show.
pub fn page(report: &Report) -> Result<String> {
    let results = &report.results;
    let began = format!("{}, started {}.", results.system, results.began);
    let mut blocks = vec![Block::Text(began), Block::Text(about(report))];
    blocks.extend(results.notes.iter().map(|note| Block::Text(format!("Note: {note}."))));
    blocks.push(Block::Heading("Machine".into()));
    blocks.push(Block::Table(machine(report)));
    blocks.push(Block::Heading("Ceilings".into()));
    blocks.push(ceilings(report));
    for part in &report.parts {
        blocks.extend(of_part(report, part));
    }
    blocks.push(Block::Heading("Command".into()));
    blocks.push(Block::Verbatim(results.command.join(" ")));
    Page { title: format!("weft bench characterize: {}", report.profile.name), blocks }.html()
}

fn about(report: &Report) -> String {
    let system = match report.profile.system {
        "" => "An overview of all kinds of load; there are no published results to compare with".into(),
        system => format!("The experiments of {system}, at scale {}", report.scale),
    };
    format!(
        "{system}. Each was run {} times: figures and tables show medians, with minimum and maximum as bars. A rate is the work divided by the time from the \
         start of the first thread to the end of the last, including the sync after writes.",
        report.iterations
    )
}

fn machine(report: &Report) -> Table {
    let machine = &report.results.machine;
    let mut table = Table::of(&["what", "value"])
        .row(["processor", machine.cpu.as_str()])
        .row(["cores", &machine.cores.to_string()])
        .row(["memory", &size(machine.memory_bytes)])
        .row(["kernel", machine.kernel.as_str()])
        .row(["clients", &machine.clients.to_string()])
        .row(["place", report.place.as_str()]);
    for (name, value) in &machine.tuning {
        table = table.row([name.as_str(), value.as_str()]);
    }
    table
}

/// Formats a rate in the unit of its limit.
fn limit_rate(limit: Limit, rate: f64) -> String {
    match limit {
        Limit::StorageRandomRead | Limit::StorageRandomWrite | Limit::RoundTrips | Limit::FuseCalls => {
            format!("{} operations/s", digits(rate))
        }
        _ => format!("{} MB/s", digits(rate / 1e6)),
    }
}

fn ceilings(report: &Report) -> Block {
    let all = &report.results.ceilings;
    if all.is_empty() {
        return Block::Text(format!("Ceilings: {NOT_MEASURED}."));
    }
    let table = Table::of(&["limit", "where", "rate", "streams", "measured"]);
    Block::Table(all.iter().fold(table, |table, ceiling| {
        let rate = limit_rate(ceiling.limit, ceiling.rate);
        let (limit, streams) = (serde_name(ceiling.limit), ceiling.streams.to_string());
        table.row([limit.as_str(), &ceiling.place, &rate, &streams, &ceiling.measured])
    }))
}

fn of_part(report: &Report, part: &Part) -> Vec<Block> {
    let figure = &part.figure;
    let unit = Unit::of(figure.quantity == Quantity::Bytes, &part.measured);
    let mut blocks = vec![Block::Heading(figure.title.into())];
    match draw(report, part, unit) {
        Some(drawn) => {
            blocks.push(Block::Figure(drawn));
            blocks.push(Block::Table(table(report, part, unit)));
        }
        None => blocks.push(Block::Text("Nothing was measured here.".into())),
    }
    blocks.extend(binds(report, part).map(Block::Text));
    if !figure.published.is_empty() {
        blocks.push(Block::Text(format!("Published ({}): {}", report.profile.system, figure.published)));
    }
    blocks.extend(generator(&part.measured).map(Block::Text));
    for why in caches(&part.measured) {
        blocks.push(Block::Text(format!("Caches: {why}.")));
    }
    let commands = figure.experiments.iter().map(|e| command(e, &report.place, report.iterations));
    blocks.push(Block::Verbatim(commands.collect::<Vec<_>>().join("\n")));
    blocks
}

/// Describes the generator's own overhead in a figure, from minimum to maximum.
fn generator(measured: &[Measured]) -> Option<String> {
    let own = || measured.iter().filter_map(|of| of.generator_ns);
    let (least, most) = (own().reduce(f64::min)?, own().reduce(f64::max)?);
    Some(format!(
        "The generator's own overhead is {} to {} ns per operation, measured one at a time against a target that does nothing.",
        digits(least),
        digits(most)
    ))
}

/// Returns each reason once, with the operations that it applies to.
fn caches(measured: &[Measured]) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for of in measured {
        let Some(why) = &of.cached else { continue };
        let operation = display_name(of.operation);
        match reasons.iter_mut().find(|(other, _)| other == why) {
            Some((_, operations)) if operations.contains(&operation) => {}
            Some((_, operations)) => operations.push(operation),
            None => reasons.push((why, vec![operation])),
        }
    }
    reasons.into_iter().map(|(why, operations)| format!("{}: {why}", operations.join(", "))).collect()
}

fn draw(report: &Report, part: &Part, unit: Unit) -> Option<report::Figure> {
    let figure = &part.figure;
    let across = figure.x_axis;
    let mut lines = Vec::new();
    for operation in figure.operations() {
        let ours = part.measured.iter().filter(|of| of.operation == operation);
        lines.extend(figure_parts::series(display_name(operation), across, unit, ours));
    }
    let first = figure.experiments.first()?;
    for other in &report.beside {
        let ways = [Through::Mount, Through::Core];
        for (operation, through) in figure.operations().iter().flat_map(|one| ways.map(|way| (*one, way))) {
            let is_alike = |of: &&Measured| {
                let is_depth = across == XAxis::QueueDepth || of.queue_depth == first.queue_depth();
                (of.operation, of.through) == (operation, through)
                    && of.experiment == first.name()
                    && of.record_bytes == first.record_bytes()
                    && is_depth
            };
            let label =
                format!("{}, {}", figure_parts::display_name_with_path(operation, through), other.system);
            lines.extend(figure_parts::series(label, across, unit, other.measured.iter().filter(is_alike)));
        }
    }
    if !lines.is_empty() {
        lines.extend(ceiling_lines(report, part, unit));
    }
    let caption = "Medians of all runs; bars from minimum to maximum; dashed: limits by the ceilings.";
    figure_parts::figure(figure.title, caption, across, unit, lines)
}

/// Returns what binds a measurement, and how much of it was reached.
fn bound(report: &Report, cores: u32, figure: &Figure, measured: &Measured) -> Option<Binding> {
    let access = figure.experiments.first().map_or(Access::Random, Experiment::access);
    binding_of(&report.results.ceilings, cores, measured, access, report.copies)
}

/// Converts a ceiling to the unit of a figure.
fn in_unit(unit: Unit, measured: &Measured, ceiling: f64) -> f64 {
    let is_of_bytes = matches!(measured.operation, Operation::Write | Operation::Read | Operation::Mixed);
    let of_records = if is_of_bytes && !unit.in_bytes { measured.record_bytes.max(1) as f64 } else { 1.0 };
    ceiling / of_records / unit.size
}

/// Returns a dashed line for each operation over the whole width.
fn ceiling_lines(report: &Report, part: &Part, unit: Unit) -> Vec<Series> {
    let across = |of: &Measured| place(part.figure.x_axis, of);
    let line = |operation: Operation| {
        let ours: Vec<&Measured> = part.measured.iter().filter(|of| of.operation == operation).collect();
        let (least, most) =
            (ours.iter().map(|of| across(of)).min()?, ours.iter().map(|of| across(of)).max()?);
        // Only drives and links: processor utilisation differs from point to point.
        let binding = bound(report, 0, &part.figure, ours[0])?;
        // A single point has no width.
        if least == most {
            return None;
        }
        let y = in_unit(unit, ours[0], binding.ceiling);
        let points = [least, most].map(|x| Point { x: f64::from(x), y, spread: None });
        let label = format!("{} at most: {}", display_name(operation), serde_name(binding.limit));
        Some(Series { name: label, points: points.into(), is_limit: true })
    };
    part.figure.operations().into_iter().filter_map(line).collect()
}

fn table(report: &Report, part: &Part, unit: Unit) -> Table {
    let across = if part.figure.x_axis == XAxis::Threads { "threads" } else { "depth" };
    let columns = [
        across,
        "operation",
        unit.name,
        "min",
        "max",
        "runs",
        "p50, us",
        "p99, us",
        "CPU us/operation",
        "% of ceiling",
        "bound by",
    ];
    let mut table = Table { caption: part.figure.title.into(), ..Table::of(&columns) };
    for measured in &part.measured {
        let rates =
            unit.rates(measured).map_or([const { String::new() }; 3], |(a, b, c)| [a, b, c].map(digits));
        let latency = |of: fn(&crate::Latency) -> f64| {
            median_of(measured, |run| run.latency.as_ref().map(of)).map_or(String::new(), digits)
        };
        let each = |run: &crate::Run| Some(run.cpu_s? * 1e6 / run.operations.max(1) as f64);
        let (share, which) = match bound(report, report.results.machine.cores, &part.figure, measured) {
            Some(binding) => (
                format!("{:.0} %", binding.share * 100.0),
                format!("{}: {}", serde_name(binding.limit), binding.place),
            ),
            None => (String::new(), "not measured".into()),
        };
        let [median, least, most] = rates;
        table = table.row([
            place(part.figure.x_axis, measured).to_string(),
            display_name(measured.operation),
            median,
            least,
            most,
            measured.runs.len().to_string(),
            latency(|of| of.p50_us),
            latency(|of| of.p99_us),
            median_of(measured, each).map_or(String::new(), digits),
            share,
            which,
        ]);
    }
    table
}

/// Describes the best result of each operation, with what binds it.
fn binds<'a>(report: &'a Report, part: &'a Part) -> impl Iterator<Item = String> + 'a {
    let unit = Unit::of(part.figure.quantity == Quantity::Bytes, &part.measured);
    part.figure.operations().into_iter().filter_map(move |operation| {
        let ours = part.measured.iter().filter(|of| of.operation == operation);
        let rate = |of: &Measured| unit.rates(of).map_or(0.0, |rate| rate.0);
        let best = ours.max_by(|a, b| rate(a).total_cmp(&rate(b)))?;
        let across = if part.figure.x_axis == XAxis::Threads { "threads" } else { "under way" };
        let reached = format!(
            "{}: at most {} {} at {} {across}",
            display_name(operation),
            digits(rate(best)),
            unit.name,
            place(part.figure.x_axis, best)
        );
        Some(match bound(report, report.results.machine.cores, &part.figure, best) {
            Some(binding) => format!(
                "{reached}, {:.0} % of the {} {} that {} ({}) allows.",
                binding.share * 100.0,
                digits(in_unit(unit, best, binding.ceiling)),
                unit.name,
                serde_name(binding.limit),
                binding.place
            ),
            None => format!("{reached}; the ceiling was {NOT_MEASURED}."),
        })
    })
}
