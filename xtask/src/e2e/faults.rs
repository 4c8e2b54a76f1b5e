//! x
use super::TestCase;
pub const TESTS: &[TestCase] = &[];
