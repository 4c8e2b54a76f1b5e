//! Output for people: tables, lists, error messages.

use std::io::Write;
use types::{Errno, Error, Result};

/// Prints to standard output; a closed pipe (`weft status | head -1`) is no error.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints a JSON document.
pub fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Error::new(Errno::EPROTO, format!("the answer can't be written as JSON: {e}")))?;
    print(&(text + "\n"));
    Ok(())
}

/// Converts a value to a JSON document.
pub fn to_json(value: &impl serde::Serialize) -> Result<serde_json::Value> {
    serde_json::to_value(value)
        .map_err(|e| Error::new(Errno::EPROTO, format!("the answer can't be written as JSON: {e}")))
}

/// Prints a value as JSON for scripts, or as text for people.
pub fn show(json: bool, value: &impl serde::Serialize, text: impl FnOnce() -> String) -> Result<()> {
    if json {
        return print_json(value);
    }
    print(&text());
    Ok(())
}

/// Prints to standard error, apart from the results. A closed pipe or a full disk doesn't end the
/// command: `eprintln!` would panic.
pub fn print_to_stderr(text: &str) {
    let mut err = std::io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

/// Form of an error message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorFormat {
    /// Lines `error:` and `hint:`.
    Text,
    /// One line of JSON.
    Json,
}

/// Prints an error on standard error, apart from the results.
pub fn print_error(format: ErrorFormat, error: &Error) {
    print_to_stderr(&match format {
        ErrorFormat::Text => error_lines(error),
        ErrorFormat::Json => format!("{}\n", error_document(error)),
    });
}

/// Returns an error as lines for people.
pub fn error_lines(error: &Error) -> String {
    match &*error.hint {
        "" => format!("error: {}\n", error_message(error)),
        hint => format!("error: {}\nhint: {hint}\n", error_message(error)),
    }
}

fn error_message(error: &Error) -> &str {
    if error.message.is_empty() { error.errno.name() } else { &error.message }
}

/// Returns the JSON document of an error.
pub fn error_document(error: &Error) -> serde_json::Value {
    serde_json::json!({ "error": {
        "errno": wire::error_number(error.errno),
        "name": error.errno.name(),
        "message": error_message(error),
        "hint": error.hint,
    } })
}

/// Converts a failed system call on an object to the error of the service boundary.
pub fn os_error(what: impl std::fmt::Display, cause: &std::io::Error) -> Error {
    let errno = cause.raw_os_error().map_or(Errno::EIO, Errno::Number);
    // The number at the end of Rust's text doesn't help people.
    let text = cause.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text).to_lowercase();
    Error::new(errno, format!("{what}: {text}"))
}

/// Formats an age: `5 minutes`, `3 hours`, `2 days`.
pub fn format_age(seconds: i64) -> String {
    let (count, unit) = match seconds.max(0) {
        s if s < 120 => (s, "seconds"),
        s if s < 2 * 3600 => (s / 60, "minutes"),
        s if s < 48 * 3600 => (s / 3600, "hours"),
        s => (s / 86_400, "days"),
    };
    format!("{count} {}", if count == 1 { unit.trim_end_matches('s') } else { unit })
}

/// Formats names and values, one pair per line, values aligned.
pub fn list(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
}

/// Alignment of a column.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// Formats rows below a heading, with aligned columns two spaces apart.
pub fn table<const N: usize>(heading: [(&str, Align); N], rows: &[[String; N]]) -> String {
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heading[column].0.chars().count()]).max().unwrap_or(0)
    });
    let line = |cells: [&str; N]| {
        let padded = (0..N).map(|column| {
            let (cell, width) = (cells[column], widths[column]);
            match heading[column].1 {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            }
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
    };
    let head = line(heading.map(|(name, _)| name));
    let body = rows.iter().map(|row| line(std::array::from_fn(|column| row[column].as_str())));
    head + &body.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["1".into(), "a".into(), "9 B".into()], ["10".into(), "long".into(), "10 KiB".into()]];
        let text = table([("id", Align::Right), ("name", Align::Left), ("size", Align::Right)], &rows);
        assert_eq!(text, "id  name    size\n 1  a        9 B\n10  long  10 KiB\n");
    }

    #[test]
    fn ages_are_round() {
        for (seconds, text) in
            [(-5, "0 seconds"), (1, "1 second"), (150, "2 minutes"), (7200, "2 hours"), (172_800, "2 days")]
        {
            assert_eq!(format_age(seconds), text);
        }
    }

    #[test]
    fn lists_are_aligned() {
        assert_eq!(list(&[("a", "1".into()), ("long", "2".into())]), "a     1\nlong  2\n");
    }

    #[test]
    fn an_error_is_lines_for_people_and_a_document_for_programs() {
        let error = Error::new(Errno::ENOENT, "target 7 doesn't exist").hint("weft target list");
        assert_eq!(error_lines(&error), "error: target 7 doesn't exist\nhint: weft target list\n");
        let expected = serde_json::json!({ "error": {
            "errno": 2, "name": "ENOENT", "message": "target 7 doesn't exist", "hint": "weft target list",
        } });
        assert_eq!(error_document(&error), expected);
        assert_eq!(error_lines(&Errno::EBUSY.into()), "error: EBUSY\n");
    }

    #[test]
    fn system_errors_lose_their_number() {
        let error = os_error("/x", &std::io::Error::from_raw_os_error(2));
        assert_eq!(error.message, "/x: no such file or directory");
        assert_eq!(error.errno, Errno::ENOENT);
    }
}
