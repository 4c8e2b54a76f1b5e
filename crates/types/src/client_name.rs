//! Names of clients in certificates and export rules.

/// Longest name of a client, in characters: a host name fits (RFC 1123 labels have 63).
pub const MAX_CLIENT_NAME: usize = 64;

/// Whether a text is valid as a client's name: it is unambiguous in a URI, in a log and on a
/// command line.
pub fn is_client_name(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    (1..=MAX_CLIENT_NAME).contains(&name.len()) && !name.starts_with('-') && name.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        let longest = "x".repeat(MAX_CLIENT_NAME);
        for name in ["a", "login1", "a.b_c-1", &longest] {
            assert!(is_client_name(name), "{name}");
        }
        for name in ["", "a b", "a/b", "a\n", "-a", "\u{e9}", &format!("{longest}x")] {
            assert!(!is_client_name(name), "{name}");
        }
    }
}
