//! The values of `docs/reference/limits.md` are those of the constants that it names.

use super::read;

const PAGE: &str = "docs/reference/limits.md";

/// Units of the page. A time is compared in seconds, a size in bytes.
const UNITS: &[(&str, u64)] = &[
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("bytes", 1),
    ("%", 1),
    ("s", 1),
    ("min", 60),
    ("day", 24 * 3600),
    ("days", 24 * 3600),
];

/// Returns the value of an expression of constants. Other constants of the same source are known.
fn evaluate(expression: &str, source: &str) -> Option<u64> {
    let text = expression.trim();
    if let Some(seconds) = text.strip_prefix("Duration::from_secs(") {
        return evaluate(seconds.strip_suffix(')')?, source);
    }
    if let Some((left, right)) = text.split_once("<<") {
        return Some(evaluate(left, source)? << evaluate(right, source)?);
    }
    if let Some((left, right)) = text.split_once('*') {
        return Some(evaluate(left, source)? * evaluate(right, source)?);
    }
    match text {
        "i64::MAX as u64" => Some(i64::MAX as u64),
        _ if text.starts_with(|c: char| c.is_ascii_digit()) => text.replace('_', "").parse().ok(),
        name => value_of(name, source),
    }
}

/// Returns the value of a constant in a source text.
fn value_of(name: &str, source: &str) -> Option<u64> {
    let declaration = format!("const {name}: ");
    let rest = source.split_once(&declaration)?.1;
    let (_, expression) = rest.split_once(';')?.0.split_once('=')?;
    evaluate(expression, source)
}

/// Returns the value in a row: a number and a unit, if it has one.
fn documented(text: &str) -> u64 {
    let mut words = text.split_whitespace();
    let number: u64 = words.next().unwrap().parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    let factor = |unit| UNITS.iter().find(|(name, _)| *name == unit).unwrap_or_else(|| panic!("{text}")).1;
    number * words.next().map_or(1, factor)
}

#[test]
fn values_of_the_reference_are_those_of_the_source() {
    let page = read(PAGE);
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with('|') && line.contains(".rs`"))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() > 50, "the rows are not found any more");
    for row in rows {
        let [_, what, value, place, _] = row[..] else { panic!("{row:?}") };
        let quoted: Vec<&str> = place.split('`').skip(1).step_by(2).collect();
        let [name, file] = quoted[..] else { panic!("{place}") };
        let found = value_of(name, &read(&format!("crates/{file}")));
        assert_eq!(found, Some(documented(value)), "{what} ({name} in {file})");
    }
}

#[test]
fn expressions_of_constants_are_evaluated() {
    let source = "const DAY_S: i64 = 24 * 3600;\npub const A: u64 = 3 * DAY_S;\nconst B: usize = 4 << 20;\n\
                  const C: Duration = Duration::from_secs(30 * 60);\nconst D: u32 = 65_536;\nconst E: u8 = f();\n";
    let value = |name| value_of(name, source);
    assert_eq!([value("A"), value("B"), value("C")], [Some(259_200), Some(4 << 20), Some(1800)]);
    assert_eq!([value("D"), value("E"), value("F")], [Some(65_536), None, None]);
    assert_eq!((documented("30 min"), documented("8 GiB"), documented("7")), (1800, 8 << 30, 7));
}
