//! The page: text, tables and figures in one file.

use crate::{Figure, escape};
use std::fmt::Write as _;
use types::Result;

const STYLE: &str = "\
body{font:15px/1.45 system-ui,sans-serif;color:#1c2430;background:#fff;max-width:60rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2rem}\
table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}\
caption{text-align:left;font-weight:600;padding:.3rem 0}\
th,td{padding:.25rem .8rem;border-bottom:1px solid #dde2e8;text-align:left}\
td.n{text-align:right;white-space:nowrap}\
figure{margin:1.5rem 0}figure svg{max-width:100%;height:auto}figcaption{color:#475160}\
pre{background:#f4f6f8;padding:.7rem;overflow-x:auto}";

/// A page.
#[derive(Clone, PartialEq, Debug)]
pub struct Page {
    /// Title of the page, also its first heading.
    pub title: String,
    /// Content, in order.
    pub blocks: Vec<Block>,
}

/// A part of a page.
#[derive(Clone, PartialEq, Debug)]
pub enum Block {
    /// A heading below the title.
    Heading(String),
    /// A paragraph.
    Text(String),
    /// Preformatted text: commands, files.
    Verbatim(String),
    /// A table.
    Table(Table),
    /// A figure, with its data in a collapsed table.
    Figure(Figure),
}

/// A table.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Table {
    /// Caption above the table; may be empty.
    pub caption: String,
    /// Column headings.
    pub columns: Vec<String>,
    /// Cells; a short row is padded with empty cells.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with columns and no rows.
    pub fn of(columns: &[&str]) -> Table {
        Table { columns: columns.iter().map(|name| name.to_string()).collect(), ..Table::default() }
    }

    /// Appends a row.
    pub fn row<T: Into<String>>(mut self, cells: impl IntoIterator<Item = T>) -> Table {
        self.rows.push(cells.into_iter().map(Into::into).collect());
        self
    }

    fn html(&self) -> String {
        let mut html = String::from("<table>");
        if !self.caption.is_empty() {
            html += &format!("<caption>{}</caption>", escape(&self.caption));
        }
        let head = self.columns.iter().map(|name| format!("<th>{}</th>", escape(name)));
        html += &format!("<thead><tr>{}</tr></thead><tbody>\n", head.collect::<String>());
        for row in &self.rows {
            let cells =
                (0..self.columns.len()).map(|column| cell(row.get(column).map_or("", String::as_str)));
            html += &format!("<tr>{}</tr>\n", cells.collect::<String>());
        }
        html + "</tbody></table>\n"
    }
}

/// Renders a cell; numbers are right-aligned.
fn cell(text: &str) -> String {
    let is_number = text.starts_with(|first: char| first.is_ascii_digit() || "+-".contains(first));
    format!("<td{}>{}</td>", if is_number { " class=\"n\"" } else { "" }, escape(text))
}

impl Page {
    /// Renders the page as HTML.
    ///
    /// Errors: a figure without data, or with a number that its axis can't show.
    pub fn html(&self) -> Result<String> {
        let title = escape(&self.title);
        let mut html = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\
             <style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n"
        );
        for block in &self.blocks {
            html += &block.html()?;
        }
        html += "</body></html>\n";
        Ok(html)
    }
}

impl Block {
    fn html(&self) -> Result<String> {
        Ok(match self {
            Block::Heading(text) => format!("<h2>{}</h2>\n", escape(text)),
            Block::Text(text) => format!("<p>{}</p>\n", escape(text)),
            Block::Verbatim(text) => format!("<pre>{}</pre>\n", escape(text)),
            Block::Table(table) => table.html(),
            Block::Figure(figure) => {
                let mut html = format!("<figure>{}", figure.svg()?);
                let (title, caption) = (escape(&figure.title), escape(&figure.caption));
                let data = figure.table().html();
                writeln!(
                    html,
                    "<figcaption><b>{title}.</b> {caption}</figcaption><details><summary>Data</summary>{data}</details></figure>"
                )
                .expect("a String takes any text");
                html
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_stays_text() {
        let evil = "<script>alert('&')</script>\"";
        let blocks = vec![
            Block::Heading(evil.into()),
            Block::Text(evil.into()),
            Block::Verbatim(evil.into()),
            Block::Table(Table { caption: evil.into(), ..Table::of(&[evil]).row([evil]) }),
        ];
        let html = Page { title: evil.into(), blocks }.html().unwrap();
        assert!(!html.contains("<script"));
        assert_eq!(html.matches("&lt;script&gt;alert(&#39;&amp;&#39;)&lt;/script&gt;&quot;").count(), 8);
    }

    #[test]
    fn numbers_stand_right_and_short_rows_are_filled() {
        let html = Table::of(&["a", "b", "c"]).row(["word", "-1.5 GB"]).html();
        assert!(html.contains("<td>word</td><td class=\"n\">-1.5 GB</td><td></td>"), "{html}");
    }
}
