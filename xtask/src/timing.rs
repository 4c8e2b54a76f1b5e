//! Durations of the stages of a test run.

use std::fmt;
use std::time::Duration;

/// One stage of a run: its wall-clock time, and its parts, which may have run concurrently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Its name.
    pub name: String,
    /// Time from start to end.
    pub wall: Duration,
    /// The parts, each with its own wall-clock time.
    pub parts: Vec<(String, Duration)>,
}

/// The stages of a run, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    stages: Vec<Stage>,
}

impl Timing {
    /// Adds a finished stage. Parts with equal names are merged.
    pub fn add(&mut self, name: &str, wall: Duration, parts: Vec<(String, Duration)>) {
        let mut merged: Vec<(String, Duration)> = Vec::new();
        for (part, took) in parts {
            match merged.iter_mut().find(|(known, _)| *known == part) {
                Some((_, sum)) => *sum += took,
                None => merged.push((part, took)),
            }
        }
        merged.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        self.stages.push(Stage { name: name.to_string(), wall, parts: merged });
    }

    /// Appends the stages of another run.
    pub fn extend(&mut self, other: Timing) {
        self.stages.extend(other.stages);
    }
}

impl fmt::Display for Timing {
    /// Prints a table with one line per stage and one indented line per part, the longest first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "time per stage, seconds (parts of a stage run concurrently):")?;
        for stage in &self.stages {
            writeln!(f, "{:>9.1}  {}", stage.wall.as_secs_f64(), stage.name)?;
            for (part, took) in &stage.parts {
                writeln!(f, "{:>18.1}  {part}", took.as_secs_f64())?;
            }
        }
        let total: Duration = self.stages.iter().map(|stage| stage.wall).sum();
        write!(f, "{:>9.1}  in all", total.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_one_name_are_added_and_the_longest_comes_first() {
        let part = |name: &str, seconds| (name.to_string(), Duration::from_secs(seconds));
        let mut timing = Timing::default();
        timing.add("build", Duration::from_secs(90), Vec::new());
        timing.add("crates", Duration::from_secs(10), vec![part("a", 3), part("b", 9), part("a", 4)]);
        let expected = "time per stage, seconds (parts of a stage run concurrently):\n     \
                        90.0  build\n     10.0  crates\n               9.0  b\n               7.0  a\n    100.0  in all";
        assert_eq!(timing.to_string(), expected);
    }
}
