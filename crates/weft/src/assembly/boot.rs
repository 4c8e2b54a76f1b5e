//! Which start of the machine this is.

use crate::output::os_error;
use std::fs;
use types::{Errno, Error, Result};

/// Where Linux tells a random id of the start.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A number that is another one after every start of the machine: what processes wrote and didn't put on disk is gone then, and only then.
pub fn boot_number() -> Result<u64> {
    let text = fs::read_to_string(BOOT_ID).map_err(|error| os_error(BOOT_ID, &error))?;
    number_of(&text)
        .ok_or_else(|| Error::new(Errno::EIO, format!("{BOOT_ID} has no id of the start: {text:?}")))
}

/// The first half of a UUID; it is random.
fn number_of(uuid: &str) -> Option<u64> {
    let digits: String = uuid.trim().chars().filter(|digit| *digit != '-').take(16).collect();
    if digits.len() == 16 { u64::from_str_radix(&digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_the_first_half_of_the_id() {
        assert_eq!(number_of("0123abcd-4567-4e89-8f00-000000000001\n"), Some(0x0123_abcd_4567_4e89));
        assert_eq!(number_of("0123abcd"), None);
        assert_eq!(number_of("not the id of any start"), None);
        assert_eq!(boot_number().unwrap(), boot_number().unwrap());
    }
}
