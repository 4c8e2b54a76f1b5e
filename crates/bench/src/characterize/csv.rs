//! Results as CSV: a row for each operation and thread count.

use crate::figure_parts::serde_name;
use crate::{Measured, Results};

const COLUMNS: &str = "experiment,operation,clients,threads,record_bytes,queue_depth,total_bytes,caching,runs,\
                       median_bytes_per_s,least_bytes_per_s,most_bytes_per_s,median_ops_per_s,least_ops_per_s,most_ops_per_s,\
                       p50_us,p99_us,errors,wrong_bytes,generator_ns,binding,ceiling_share,cached,through";

/// Returns the content of the file.
pub fn csv(results: &Results) -> String {
    let rows = results.measured.iter().map(row);
    std::iter::once(COLUMNS.to_string()).chain(rows).map(|row| row + "\n").collect()
}

fn row(measured: &Measured) -> String {
    let three = |rates: Option<(f64, f64, f64)>| match rates {
        Some((middle, least, most)) => [middle, least, most].map(|rate| format!("{rate:.3}")),
        None => Default::default(),
    };
    let latency = |of: fn(&crate::Latency) -> f64| {
        median_of(measured, |run| run.latency.as_ref().map(of)).map_or(String::new(), |us| format!("{us:.1}"))
    };
    let mut cells = vec![
        quoted(&measured.experiment),
        serde_name(measured.operation),
        measured.clients.to_string(),
        measured.threads.to_string(),
        measured.record_bytes.to_string(),
        measured.queue_depth.to_string(),
        measured.total_bytes.to_string(),
        serde_name(measured.caching),
        measured.runs.len().to_string(),
    ];
    cells.extend(three(measured.bytes_per_s()));
    cells.extend(three(measured.ops_per_s()));
    cells.extend([latency(|of| of.p50_us), latency(|of| of.p99_us)]);
    cells.push(measured.runs.iter().map(|run| run.errors).sum::<u64>().to_string());
    cells.push(measured.runs.iter().map(|run| run.wrong_bytes).sum::<u64>().to_string());
    cells.push(measured.generator_ns.map_or(String::new(), |ns| format!("{ns:.0}")));
    let binding = measured.binding.as_ref();
    cells.push(binding.map_or(String::new(), |binding| serde_name(binding.limit)));
    cells.push(binding.map_or(String::new(), |binding| format!("{:.4}", binding.share)));
    cells.push(quoted(measured.cached.as_deref().unwrap_or("")));
    cells.push(serde_name(measured.through));
    cells.join(",")
}

/// Returns the median of a value of the runs.
pub fn median_of(measured: &Measured, of: impl Fn(&crate::Run) -> Option<f64>) -> Option<f64> {
    let mut all: Vec<f64> = measured.runs.iter().filter_map(of).collect();
    all.sort_by(f64::total_cmp);
    crate::median(&all)
}

/// Quotes text that contains separators.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.into(),
    }
}
