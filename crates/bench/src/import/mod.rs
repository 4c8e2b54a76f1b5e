//! Imports output of other programs as results.
//!
//! Experiments get weft's names (see `names`), so that results of different programs can be
//! compared; the format is recognised by its content.

mod fio;
mod ior;
mod mdtest;

use crate::results::{FORMAT, Machine, Results};

/// Parses results of weft, JSON of fio, or text of IOR and mdtest; one file may contain several of
/// the texts.
///
/// Errors: what is wrong with it, without the file's name.
pub fn any(text: &str) -> Result<Results, String> {
    let text = text.trim_start_matches('\u{feff}');
    if text.contains("\"fio version\"") {
        return fio::parse(text);
    }
    if text.trim_start().starts_with('{') {
        return Results::parse(text);
    }
    let mut parts: Vec<Results> = Vec::new();
    for part in split(text) {
        parts.push(match ior::is_start(part) {
            true => ior::parse(part)?,
            false => mdtest::parse(part)?,
        });
    }
    let joined = parts.into_iter().reduce(|mut all, part| {
        if !all.system.contains(&part.system) {
            all.system = format!("{} and {}", all.system, part.system);
        }
        all.machine.clients = all.machine.clients.max(part.machine.clients);
        all.command.extend(part.command);
        all.measured.extend(part.measured);
        all.notes.extend(part.notes);
        all.notes.dedup();
        all
    });
    joined.ok_or_else(|| {
        "not results of weft bench (JSON), nor output of fio (--output-format=json), IOR or mdtest".into()
    })
}

/// Returns one part for each run of IOR or mdtest; text before the first is left out.
fn split(text: &str) -> Vec<&str> {
    let mut starts = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if ior::is_start(line) || mdtest::is_start(line) {
            starts.push(at);
        }
        at += line.len();
    }
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().zip(ends).map(|(start, end)| &text[*start..end]).collect()
}

/// Returns results of another program, still without measurements.
fn results(system: &str, began: &str, command: &str, clients: u32) -> Results {
    Results {
        weft_bench: FORMAT,
        system: system.into(),
        began: began.into(),
        command: command.split_whitespace().map(|word| word.trim_matches(['"', '\'']).to_string()).collect(),
        machine: Machine { clients, ..Machine::default() },
        ceilings: Vec::new(),
        measured: Vec::new(),
        notes: Vec::new(),
    }
}

/// Returns the text after `name:` or `name   :` at the start of a line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let behind = |line: &'a str| line.trim_start().strip_prefix(name)?.trim_start().strip_prefix(':');
    text.lines().find_map(behind).map(str::trim)
}

/// Returns the number at the start, and the rest.
fn leading(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    Some((text[..digits].parse().ok()?, &text[digits..]))
}

/// Returns the bytes of `4096`, `4k`, `1M`, `8MiB`: powers of 1024.
fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = leading(text.trim())?;
    let power = match unit.trim().chars().next().map(|letter| letter.to_ascii_lowercase()) {
        None | Some('b') => 0,
        Some(letter) => "kmgtp".find(letter)? as u32 + 1,
    };
    number.checked_mul(1 << (10 * power))
}

#[cfg(test)]
mod tests;
