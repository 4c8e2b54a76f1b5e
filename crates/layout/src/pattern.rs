//! Validity of stripe patterns.

use types::{Errno, Error, MAX_INLINE_LIMIT, Result, StripePattern};

/// Checks every field but the pool, which only the cluster map knows. Errors: `EINVAL`, with the
/// field and the allowed values.
pub fn check(pattern: &StripePattern) -> Result<()> {
    chunk_size(pattern.chunk_size as u64)?;
    stripe_count(pattern.stripe_count as u64)?;
    inline_limit(pattern.inline_limit as u64)?;
    Ok(())
}

/// Checks a requested chunk size in bytes: a power of two from 64 KiB to 64 MiB.
pub fn chunk_size(bytes: u64) -> Result<u32> {
    let allowed = StripePattern::MIN_CHUNK_SIZE as u64..=StripePattern::MAX_CHUNK_SIZE as u64;
    if !allowed.contains(&bytes) || !bytes.is_power_of_two() {
        return Err(invalid(format!("chunk size {bytes} is not a power of two from 64 KiB to 64 MiB"))
            .hint("1 MiB (1048576) suits most files"));
    }
    Ok(bytes as u32)
}

/// Checks a requested stripe count: 1 to 65535. It may exceed the number of groups in the pool.
pub fn stripe_count(count: u64) -> Result<u16> {
    match u16::try_from(count) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(invalid(format!("stripe count {count} is not from 1 to {}", u16::MAX))
            .hint("1 keeps a file on one group; a large count uses every group of the pool")),
    }
}

/// Checks a requested inline limit in bytes: 0 to 64 KiB.
pub fn inline_limit(bytes: u64) -> Result<u32> {
    if bytes > MAX_INLINE_LIMIT as u64 {
        return Err(invalid(format!("inline limit {bytes} is above 64 KiB ({MAX_INLINE_LIMIT})"))
            .hint("0 keeps every file out of the metadata; the default is 4096"));
    }
    Ok(bytes as u32)
}

fn invalid(message: String) -> Error {
    Error::new(Errno::EINVAL, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(pattern: StripePattern) -> String {
        let error = check(&pattern).unwrap_err();
        assert_eq!(error.errno, Errno::EINVAL);
        assert!(!error.hint.is_empty());
        error.message.into_owned()
    }

    #[test]
    fn default_and_extremes_are_fine() {
        let default = StripePattern::default();
        for pattern in [
            default,
            StripePattern { chunk_size: 65536, stripe_count: 1, inline_limit: 0, ..default },
            StripePattern { chunk_size: 64 << 20, stripe_count: u16::MAX, inline_limit: 65536, ..default },
        ] {
            assert_eq!(check(&pattern), Ok(()));
        }
    }

    #[test]
    fn refusals_name_the_field_and_the_value() {
        let default = StripePattern::default();
        for size in [0, 1, 32768, 65537, 3 << 20, 128 << 20, u32::MAX] {
            let message = refusal(StripePattern { chunk_size: size, ..default });
            assert!(message.contains(&format!("chunk size {size} ")), "{message}");
        }
        let message = refusal(StripePattern { stripe_count: 0, ..default });
        assert!(message.contains("stripe count 0 "), "{message}");
        let message = refusal(StripePattern { inline_limit: 65537, ..default });
        assert!(message.contains("inline limit 65537 "), "{message}");
    }

    #[test]
    fn numbers_beyond_their_type_are_refused_not_cut() {
        assert!(chunk_size((1 << 32) + 65536).is_err());
        assert!(stripe_count(65537).is_err());
        assert!(inline_limit(1 << 32).is_err());
    }
}
