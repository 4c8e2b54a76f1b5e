//! Reports as one self-contained HTML page: text, tables, figures with log axes, several series and
//! error bars.
//!
//! A [`Page`] is built from [`Block`]s and rendered to a string: style and figures (SVG) are
//! included, there is no script, and nothing is fetched. This crate escapes all text. It is
//! independent of the reported subject, and does no I/O.
//!
//! ```
//! use report::{Axis, Block, Figure, Page, Point, Scale, Series, Table};
//! let threads = Axis { name: "threads".into(), scale: Scale::Log2 };
//! let rate = Axis { name: "GB/s".into(), scale: Scale::Log10 };
//! let points = [(1.0, 3.0), (2.0, 5.8), (4.0, 9.1)].map(|(x, y)| Point { x, y, spread: Some((y * 0.9, y * 1.1)) });
//! let read = Series { name: "read".into(), points: points.into(), is_limit: false };
//! let figure = Figure { title: "Sequential".into(), caption: "Three runs.".into(), x: threads, y: rate, series: vec![read] };
//! let table = Table::of(&["quantity", "value"]).row(["usable", "86 TiB"]);
//! let page = Page { title: "A plan".into(), blocks: vec![Block::Figure(figure), Block::Table(table)] };
//! assert!(page.html().unwrap().contains("<svg"));
//! ```

mod figure;
mod page;

pub use figure::{Axis, Figure, Point, Scale, Series};
pub use page::{Block, Page, Table};

/// Escapes text for HTML, outside of tags or in a quoted attribute.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}
