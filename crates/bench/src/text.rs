//! Formatting of numbers.

/// Formats bytes with at most one decimal: `1.5 MiB`.
pub fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let power =
        (0..units.len() - 1).find(|power| bytes >> (10 * (power + 1)) == 0).unwrap_or(units.len() - 1);
    let text = format!("{:.1}", bytes as f64 / (1u64 << (10 * power)) as f64);
    format!("{} {}", text.trim_end_matches(".0"), units[power])
}

/// Formats a number with four significant digits.
pub fn digits(value: f64) -> String {
    let magnitude = if value > 0.0 { value.log10().floor() } else { 0.0 };
    let text = format!("{value:.*}", (3.0 - magnitude).clamp(0.0, 6.0) as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (1234.56, "1235"),
            (12.3456, "12.35"),
            (0.012345, "0.01235"),
            (5.0, "5"),
            (700.0, "700"),
        ] {
            assert_eq!(digits(value), text);
        }
        for (bytes, text) in [(0, "0 B"), (1536, "1.5 KiB"), (1 << 20, "1 MiB"), (47_008, "45.9 KiB")] {
            assert_eq!(size(bytes), text);
        }
    }
}
