//! A readable violation.

use std::fmt;

/// The few operations that no order explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The object.
    pub object: String,
    /// Possible states of the object before them; empty: the initial state.
    pub before: Vec<String>,
    /// The operations, by call.
    pub lines: Vec<Line>,
}

/// One operation in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// When it was called.
    pub called: u64,
    /// When it returned.
    pub returned: Option<u64>,
    /// The caller.
    pub caller: String,
    /// The operation, with its answer.
    pub action: String,
    /// Until its return, an order still explained the history.
    pub is_decisive: bool,
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = self.lines.iter().map(|line| line.called).min().unwrap_or(0);
        write!(f, "{}: no order explains these operations (times in ms after {start} ns)", self.object)?;
        if !self.before.is_empty() {
            write!(f, "\n    before these, it {}", self.before.join(", or "))?;
        }
        let ms = |time: u64| (time - start) as f64 / 1e6;
        for line in &self.lines {
            let end = match line.returned {
                Some(returned) => format!("{:10.4}", ms(returned)),
                None => "         ?".to_string(),
            };
            write!(f, "\n    {:10.4} .. {end}  {}: {}", ms(line.called), line.caller, line.action)?;
            if line.is_decisive {
                write!(f, "    <- inconsistent from this answer on")?;
            }
        }
        Ok(())
    }
}
