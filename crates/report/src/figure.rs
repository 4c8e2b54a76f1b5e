//! Figures: series over two axes, as SVG.

use crate::Table;
use plotters::chart::{ChartBuilder, SeriesLabelPosition};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::{
    Circle, DashedLineSeries, DrawingArea, ErrorBar, IntoDrawingArea, IntoLogRange, LineSeries, PathElement,
    SVGBackend,
};
use plotters::style::{BLACK, Color, RGBColor, WHITE};
use std::ops::Range;
use types::{Errno, Error, Result};

const SIZE_PIXELS: (u32, u32) = (860, 440);
/// Margin beyond the smallest and the largest value: a factor on log axes, a share of the span on
/// linear ones.
const MARGIN_FACTOR: f64 = 1.15;
const MARGIN_LINEAR: f64 = 0.06;
/// Most ticks of an axis: with more, their labels overlap.
const MAX_TICKS: usize = 8;

/// Colours that most people can distinguish (Okabe and Ito: "Color Universal Design", 2008),
/// without its yellow.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(80, 80, 80),
];

/// Scale of an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Linear.
    Linear,
    /// Logarithmic with ticks at powers of 2: threads, sizes.
    Log2,
    /// Logarithmic with ticks at powers of 10.
    Log10,
}

/// An axis.
#[derive(Clone, PartialEq, Debug)]
pub struct Axis {
    /// Quantity and unit.
    pub name: String,
    /// Scale of the axis.
    pub scale: Scale,
}

/// A data point.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// Horizontal value.
    pub x: f64,
    /// Vertical value.
    pub y: f64,
    /// Minimum and maximum of several measurements, drawn as an error bar.
    pub spread: Option<(f64, f64)>,
}

/// A series of points.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points, in the order of the line.
    pub points: Vec<Point>,
    /// A bound for the other series (a ceiling): dashed, without marks.
    pub is_limit: bool,
}

/// A figure.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// Subject of the figure.
    pub title: String,
    /// Explanation for the reader.
    pub caption: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Series to draw.
    pub series: Vec<Series>,
}

impl Figure {
    /// Returns the data: a row for each x, a column for each series.
    pub fn table(&self) -> Table {
        let mut across: Vec<f64> =
            self.series.iter().flat_map(|series| series.points.iter().map(|p| p.x)).collect();
        across.sort_by(f64::total_cmp);
        across.dedup();
        let names =
            std::iter::once(self.x.name.clone()).chain(self.series.iter().map(|series| series.name.clone()));
        let rows = across.iter().map(|x| {
            let cells = self
                .series
                .iter()
                .map(|series| series.points.iter().find(|point| point.x == *x).map_or(String::new(), cell));
            std::iter::once(format_number(*x)).chain(cells).collect()
        });
        Table {
            caption: format!("{} ({})", self.title, self.y.name),
            columns: names.collect(),
            rows: rows.collect(),
        }
    }

    /// Returns the figure as an SVG element.
    ///
    /// Errors: no data, or a value that its axis can't show; the error names figure and series.
    pub fn svg(&self) -> Result<String> {
        let (x, y) = self.spans()?;
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, SIZE_PIXELS).into_drawing_area();
            let log = |range: Range<f64>, base: f64| range.log_scale().base(base);
            let drawn = match (self.x.scale, self.y.scale) {
                (Scale::Linear, Scale::Linear) => self.draw(&area, x, y),
                (Scale::Linear, up) => self.draw(&area, x, log(y, base(up))),
                (across, Scale::Linear) => self.draw(&area, log(x, base(across)), y),
                (across, up) => self.draw(&area, log(x, base(across)), log(y, base(up))),
            };
            drawn.map_err(|cause| self.refuse(format!("can't be drawn: {cause}")))?;
        }
        Ok(svg)
    }

    fn refuse(&self, cause: impl std::fmt::Display) -> Error {
        Error::new(Errno::EINVAL, format!("figure {:?}: {cause}", self.title))
            .hint("the data of the report is incomplete: leave the figure out, or measure its data again")
    }

    /// Returns the spans of both axes.
    fn spans(&self) -> Result<(Range<f64>, Range<f64>)> {
        let across = |point: &Point| vec![point.x];
        let up = |point: &Point| match point.spread {
            Some((low, high)) => vec![point.y, low, high],
            None => vec![point.y],
        };
        Ok((self.span(&self.x, across)?, self.span(&self.y, up)?))
    }

    fn span(&self, axis: &Axis, of: impl Fn(&Point) -> Vec<f64>) -> Result<Range<f64>> {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for series in &self.series {
            for value in series.points.iter().flat_map(&of) {
                if !value.is_finite() || (axis.scale != Scale::Linear && value <= 0.0) {
                    let why = format!(
                        "series {:?} has {value}, which axis {:?} can't show",
                        series.name, axis.name
                    );
                    return Err(self.refuse(why));
                }
                (low, high) = (low.min(value), high.max(value));
            }
        }
        if low > high {
            return Err(self.refuse("has no data"));
        }
        Ok(match axis.scale {
            // From zero, so that heights are comparable; below zero if there are negative values.
            Scale::Linear => {
                let bottom = low.min(0.0);
                let span = (high - bottom).max(f64::MIN_POSITIVE);
                bottom..bottom + span.max(1e-300) * (1.0 + MARGIN_LINEAR)
            }
            scale => {
                let (low, high) = (low / MARGIN_FACTOR, high * MARGIN_FACTOR);
                // A span below one power of the base would have no tick.
                let power = |value: f64| value.log(base(scale));
                match high / low < base(scale) {
                    true => base(scale).powf(power(low).floor())..base(scale).powf(power(high).ceil()),
                    false => low..high,
                }
            }
        })
    }

    fn draw<'a, X, Y>(
        &self,
        area: &DrawingArea<SVGBackend<'a>, Shift>,
        x: impl plotters::coord::ranged1d::AsRangedCoord<CoordDescType = X, Value = f64>,
        y: impl plotters::coord::ranged1d::AsRangedCoord<CoordDescType = Y, Value = f64>,
    ) -> std::result::Result<(), Box<dyn std::error::Error + 'a>>
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(72)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .bold_line_style(BLACK.mix(0.12))
            .x_desc(self.x.name.as_str())
            .y_desc(self.y.name.as_str())
            .x_label_formatter(&|value| format_number(*value))
            .y_label_formatter(&|value| format_number(*value))
            .x_labels(MAX_TICKS)
            .y_labels(MAX_TICKS)
            .label_style(("sans-serif", 14))
            .draw()?;
        for (number, series) in self.series.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let line = series.points.iter().map(|point| (point.x, point.y));
            let drawn = if series.is_limit {
                chart.draw_series(DashedLineSeries::new(line, 6, 4, colour.stroke_width(2)))?
            } else {
                chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?
            };
            drawn
                .label(series.name.as_str())
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(3)));
            if series.is_limit {
                continue;
            }
            let marks = series.points.iter().map(|point| Circle::new((point.x, point.y), 3, colour.filled()));
            chart.draw_series(marks)?;
            let bars = series.points.iter().filter_map(|point| {
                let (low, high) = point.spread?;
                Some(ErrorBar::new_vertical(point.x, low, point.y, high, colour.stroke_width(1), 8))
            });
            chart.draw_series(bars)?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.25))
            .label_font(("sans-serif", 14))
            .draw()?;
        area.present()?;
        Ok(())
    }
}

fn base(scale: Scale) -> f64 {
    if scale == Scale::Log2 { 2.0 } else { 10.0 }
}

fn cell(point: &Point) -> String {
    match point.spread {
        Some((low, high)) => {
            format!("{} ({} to {})", format_number(point.y), format_number(low), format_number(high))
        }
        None => format_number(point.y),
    }
}

/// Formats four significant digits, with an exponent only for very small or large values.
fn format_number(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let magnitude = value.abs().log10().floor();
    if !(-4.0..7.0).contains(&magnitude) {
        return format!("{value:.2e}").replace(".00e", "e");
    }
    let decimals = (3.0 - magnitude).max(0.0) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(x: Scale, y: Scale) -> Figure {
        let point = |x: f64| Point { x, y: x * 3.0, spread: Some((x * 2.5, x * 3.5)) };
        let measured = Series {
            name: "read & <write>".into(),
            points: [1.0, 2.0, 1024.0].map(point).into(),
            is_limit: false,
        };
        let ceiling = [1.0, 1024.0].map(|x| Point { x, y: 2000.0, spread: None });
        let ceiling = Series { name: "ceiling".into(), points: ceiling.into(), is_limit: true };
        Figure {
            title: "Rate".into(),
            caption: "All of it.".into(),
            x: Axis { name: "threads".into(), scale: x },
            y: Axis { name: "GB/s".into(), scale: y },
            series: vec![measured, ceiling],
        }
    }

    #[test]
    fn every_pair_of_scales_draws_lines_marks_bars_and_names() {
        for x in [Scale::Linear, Scale::Log2, Scale::Log10] {
            for y in [Scale::Linear, Scale::Log2, Scale::Log10] {
                let svg = figure(x, y).svg().unwrap();
                assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
                for part in ["<polyline", "<circle", "<line", "threads", "GB/s", "ceiling", "&amp;"] {
                    assert!(svg.contains(part), "{x:?} {y:?} {part}");
                }
                assert!(!svg.contains("<write>"), "names are escaped");
                assert!(!svg.contains("NaN") && !svg.contains("inf"));
            }
        }
    }

    #[test]
    fn the_data_is_a_table_too() {
        let table = figure(Scale::Log2, Scale::Log10).table();
        assert_eq!(table.columns, ["threads", "read & <write>", "ceiling"]);
        assert_eq!(table.rows[0], ["1", "3 (2.5 to 3.5)", "2000"]);
        assert_eq!(table.rows[1], ["2", "6 (5 to 7)", ""]);
    }

    #[test]
    fn what_an_axis_cannot_show_is_refused_with_its_name() {
        let mut zero = figure(Scale::Log2, Scale::Log10);
        zero.series[1].points[0].y = 0.0;
        let error = zero.svg().unwrap_err();
        assert!(error.message.contains("\"Rate\"") && error.message.contains("\"ceiling\""), "{error}");
        zero.y.scale = Scale::Linear;
        zero.svg().unwrap();
        zero.series[0].points[0].y = f64::NAN;
        assert!(zero.svg().is_err());
        let none = Figure { series: vec![], ..figure(Scale::Linear, Scale::Linear) };
        assert!(none.svg().unwrap_err().message.contains("no data"));
    }

    #[test]
    fn one_point_alone_is_drawn() {
        for scale in [Scale::Linear, Scale::Log2] {
            let mut one = figure(scale, scale);
            one.series.truncate(1);
            one.series[0].points.truncate(1);
            one.series[0].points[0].spread = None;
            assert!(one.svg().unwrap().contains("<circle"));
        }
    }

    #[test]
    fn values_that_are_alike_have_ticks_on_a_log_axis() {
        let mut alike = figure(Scale::Log2, Scale::Log10);
        alike.series.truncate(1);
        alike.series[0].points.iter_mut().for_each(|point| (point.y, point.spread) = (6.17, None));
        let svg = alike.svg().unwrap();
        assert!(svg.lines().any(|line| line == "1") && svg.lines().any(|line| line == "10"), "{svg}");
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (1024.0, "1024"),
            (0.5, "0.5"),
            (1e9, "1e9"),
            (1.25e-7, "1.25e-7"),
            (12.3456, "12.35"),
        ] {
            assert_eq!(format_number(value), text);
        }
    }
}
