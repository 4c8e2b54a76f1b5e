//! Common parts of figures and tables of measurements.

use crate::compare::is_in_bytes;
use crate::profiles::XAxis;
use crate::{Measured, Operation, Through};
use report::{Axis, Figure, Point, Scale, Series};

/// Returns the word for a value in results: `storage-read`, `read-file`.
pub fn serde_name(value: impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_string)).unwrap_or_default()
}

/// Returns the display name of an operation.
pub fn display_name(operation: Operation) -> String {
    match operation {
        Operation::Mixed => "70/30".into(),
        Operation::ReadFile => "read file".into(),
        other => serde_name(other),
    }
}

/// Returns the display name of an operation, with the access path if that isn't a mount.
pub fn display_name_with_path(operation: Operation, through: Through) -> String {
    match through {
        Through::Mount => display_name(operation),
        Through::Core => format!("{} by the core", display_name(operation)),
    }
}

/// A unit of rates, with its size in base units.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Unit {
    /// Its symbol.
    pub name: &'static str,
    /// Bytes or operations per second.
    pub size: f64,
    /// True for bytes, false for operations.
    pub in_bytes: bool,
}

impl Unit {
    /// Returns the unit for the largest of the rates.
    pub fn of<'a>(in_bytes: bool, measured: impl IntoIterator<Item = &'a Measured>) -> Unit {
        let any = Unit { name: "", size: 1.0, in_bytes };
        let most = measured
            .into_iter()
            .filter_map(|measured| any.rates(measured))
            .fold(0.0, |most: f64, rate| most.max(rate.0));
        let (name, size) = match (in_bytes, most) {
            (true, most) if most >= 1e9 => ("GB/s", 1e9),
            (true, _) => ("MB/s", 1e6),
            (false, most) if most >= 1e6 => ("M operations/s", 1e6),
            (false, most) if most >= 1e4 => ("k operations/s", 1e3),
            (false, _) => ("operations/s", 1.0),
        };
        Unit { name, size, in_bytes }
    }

    /// Returns median, minimum and maximum in this unit; `None` without runs with a rate.
    pub fn rates(&self, measured: &Measured) -> Option<(f64, f64, f64)> {
        let (middle, least, most) =
            if self.in_bytes { measured.bytes_per_s() } else { measured.ops_per_s() }?;
        let is_there = least > 0.0 && most.is_finite();
        is_there.then_some((middle / self.size, least / self.size, most / self.size))
    }
}

/// Returns the position of a measurement on the x axis.
pub fn place(across: XAxis, measured: &Measured) -> u32 {
    match across {
        XAxis::Threads => measured.threads,
        XAxis::QueueDepth => measured.queue_depth,
    }
}

/// Returns a line; `None` if nothing of it was measured.
pub fn series<'a>(
    label: String,
    across: XAxis,
    unit: Unit,
    measured: impl Iterator<Item = &'a Measured>,
) -> Option<Series> {
    let point = |measured: &Measured| {
        let (y, least, most) = unit.rates(measured)?;
        let spread = (measured.runs.len() > 1).then_some((least, most));
        Some(Point { x: f64::from(place(across, measured)), y, spread })
    };
    let mut points: Vec<Point> = measured.filter_map(point).collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    (!points.is_empty()).then_some(Series { name: label, points, is_limit: false })
}

/// Returns a figure with logarithmic axes; `None` if nothing was measured.
pub fn figure(title: &str, caption: &str, across: XAxis, unit: Unit, series: Vec<Series>) -> Option<Figure> {
    let name = match across {
        XAxis::Threads => "threads",
        XAxis::QueueDepth => "in flight per thread",
    };
    (!series.is_empty()).then(|| Figure {
        title: title.into(),
        caption: caption.into(),
        x: Axis { name: name.into(), scale: Scale::Log2 },
        y: Axis { name: unit.name.into(), scale: Scale::Log10 },
        series,
    })
}

/// Returns whether most of these are reported in bytes.
pub fn in_bytes(measured: &[&Measured]) -> bool {
    measured.iter().filter(|measured| is_in_bytes(measured)).count() * 2 > measured.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_results() {
        assert_eq!(serde_name(crate::Limit::StorageRandomRead), "storage-random-read");
        assert_eq!(display_name(Operation::ReadFile), "read file");
    }
}
