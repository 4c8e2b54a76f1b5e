//! Sizes as people write and read them: powers of 1024, with or without the `i` and the `B`.

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Parses a size like `4096`, `64K`, `1M`, `1MiB` or `2gb`. Returns bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let power = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        unit => {
            let letter = unit.trim_end_matches('b').trim_end_matches('i');
            let at = "kmgtpe".find(letter).filter(|_| letter.len() == 1);
            at.ok_or_else(|| format!("{text:?} is not a size: write for example 64K, 1M or 4096"))? + 1
        }
    };
    let number: u64 =
        number.parse().map_err(|_| format!("{text:?} is not a size: write for example 64K, 1M or 4096"))?;
    number.checked_mul(1 << (10 * power)).ok_or_else(|| format!("{text:?} is more than 16 EiB"))
}

/// Formats a size like `1.5 MiB`: at most one decimal, none if it would be zero.
pub fn format_size(bytes: u64) -> String {
    let mut power = 0;
    // Rounded to a tenth, 1023.96 KiB would be 1024.0 KiB.
    while power + 1 < UNITS.len() && bytes as f64 / 1024f64.powi(power as i32) >= 1023.95 {
        power += 1;
    }
    let value = format!("{:.1}", bytes as f64 / 1024f64.powi(power as i32));
    format!("{} {}", value.trim_end_matches(".0"), UNITS[power])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("7b", 7),
            ("64K", 65536),
            ("64k", 65536),
            ("1M", 1 << 20),
            ("1MiB", 1 << 20),
            ("2gb", 2 << 30),
            ("3Ti", 3 << 40),
            ("15E", 15 << 60),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "K", "-1", "1.5M", "1X", "1KM", "1 M", "1iB", "16E", "99999999999999999999"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_written_briefly() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1 MiB"),
            (1 << 20, "1 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
    }
}
