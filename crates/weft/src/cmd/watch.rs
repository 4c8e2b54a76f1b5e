//! `--watch`: a query that is repeated until its output is closed.

use crate::cli::WatchOption;
use crate::exit::Exit;
use crate::output::{error_document, error_lines, to_json};
use serde::Serialize;
use serde_json::Value;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;
use types::Result;

/// Moves the cursor of a terminal to its beginning, and erases what is below.
const REDRAW: &str = "\x1b[H\x1b[J";

/// The answer to a query, for programs and for people.
pub struct View {
    document: Value,
    text: String,
    exit: Exit,
}

impl View {
    /// Creates the view of a value.
    pub fn new(value: &impl Serialize, text: String) -> Result<View> {
        Ok(View { document: to_json(value)?, text, exit: Exit::Success })
    }

    /// Sets how the command ends.
    pub fn exit(self, exit: Exit) -> View {
        View { exit, ..self }
    }
}

/// Shows the answer to a query once, or with `--watch` again and again. Returns how the command
/// ends: with `--watch` by the last answer.
///
/// # Errors
/// The query's, if the first one fails. Later errors are shown, since a process may be restarted.
pub fn show(json: bool, watch: WatchOption, mut query: impl FnMut() -> Result<View>) -> Result<Exit> {
    let view = query()?;
    let mut out = io::stdout().lock();
    let Some(interval) = watch.interval() else {
        let text = if json { format!("{:#}\n", view.document) } else { view.text };
        // A closed pipe (`weft status | head -1`) is no error.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        return Ok(view.exit);
    };
    let form = match (json, out.is_terminal()) {
        (true, _) => Form::Lines,
        (false, true) => Form::Screen,
        (false, false) => Form::Texts,
    };
    Ok(repeat(view, form, &mut out, || {
        std::thread::sleep(interval);
        query()
    }))
}

/// How repeated answers follow each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A JSON document on each line.
    Lines,
    /// Each answer replaces the one before on the terminal.
    Screen,
    /// An empty line between answers.
    Texts,
}

/// Writes answers until the output is closed. `next` waits for the next one.
fn repeat(first: View, form: Form, out: &mut impl Write, mut next: impl FnMut() -> Result<View>) -> Exit {
    let mut view = first;
    loop {
        let text = match form {
            Form::Lines => format!("{}\n", view.document),
            Form::Screen => format!("{REDRAW}{}", view.text),
            Form::Texts => format!("{}\n", view.text),
        };
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            return view.exit;
        }
        view = next().unwrap_or_else(|error| View {
            document: error_document(&error),
            text: error_lines(&error),
            exit: Exit::Failed,
        });
    }
}

impl WatchOption {
    fn interval(self) -> Option<Duration> {
        self.watch.map(Duration::from_secs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use types::{Errno, Error};

    /// An output that is closed after some writes.
    struct Pipe {
        written: Vec<String>,
        open: usize,
    }

    impl Write for Pipe {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            if self.written.len() == self.open {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.written.push(String::from_utf8(text.to_vec()).unwrap());
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn watched(form: Form) -> (Vec<String>, Exit) {
        let mut pipe = Pipe { written: vec![], open: 3 };
        let view = |number: u32| View::new(&json!({ "n": number }), format!("{number}\n"));
        let mut number = 1;
        let exit = repeat(view(1).unwrap(), form, &mut pipe, || {
            number += 1;
            match number {
                2 => Err(Error::new(Errno::ENOTCONN, "it is not running").hint("start it")),
                number => Ok(view(number)?.exit(Exit::HealthWarning)),
            }
        });
        (pipe.written, exit)
    }

    #[test]
    fn answers_follow_until_the_output_is_closed() {
        let (lines, exit) = watched(Form::Lines);
        assert_eq!(exit, Exit::HealthWarning);
        assert_eq!(lines.len(), 3);
        for line in &lines {
            assert!(line.ends_with('\n') && line.lines().count() == 1, "{line}");
            serde_json::from_str::<Value>(line).unwrap();
        }
        assert!(lines[1].contains("ENOTCONN") && lines[2].contains("\"n\":3"), "{lines:?}");
        let (texts, _) = watched(Form::Texts);
        assert_eq!(texts, ["1\n\n", "error: it is not running\nhint: start it\n\n", "3\n\n"]);
        let (screens, _) = watched(Form::Screen);
        assert!(screens.iter().all(|screen| screen.starts_with(REDRAW)), "{screens:?}");
    }
}
