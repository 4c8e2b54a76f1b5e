//! Results of tests.

use std::fmt::Display;
use std::io;

/// Why a test didn't pass.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The test can't run here, with the reason.
    Skipped(String),
    /// The file system violated a guarantee.
    Failed(String),
}

/// What a test returns.
pub type TestResult<T = ()> = Result<T, Failure>;

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        Failure::Failed(message)
    }
}

/// Returns the result of a test that can't run here.
pub fn skip<T>(reason: impl Display) -> TestResult<T> {
    Err(Failure::Skipped(reason.to_string()))
}

/// Adds the failed operation to a system error.
pub trait At<T> {
    /// Converts an error to a failure that starts with `what`.
    fn at(self, what: impl Display) -> TestResult<T>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, what: impl Display) -> TestResult<T> {
        self.map_err(|error| Failure::Failed(format!("{what}: {error}")))
    }
}

/// Checks that a call failed with this error number.
pub fn expect_errno<T>(result: io::Result<T>, errno: i32, what: impl Display) -> TestResult {
    match result {
        Ok(_) => Err(Failure::Failed(format!("{what}: succeeded, expected {}", name_of(errno)))),
        Err(error) if error.raw_os_error() == Some(errno) => Ok(()),
        Err(error) => Err(Failure::Failed(format!("{what}: {error}, expected {}", name_of(errno)))),
    }
}

fn name_of(errno: i32) -> String {
    io::Error::from_raw_os_error(errno).to_string()
}

/// Fails the test unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::e2e::outcome::Failure::Failed(format!($($message)+)));
        }
    };
}
pub(crate) use ensure;

/// Fails the test unless both sides are equal.
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($message:tt)+) => {
        match (&$left, &$right) {
            (left, right) => if left != right {
                let message = format!($($message)+);
                return Err($crate::e2e::outcome::Failure::Failed(
                    format!("{message}: {left:?}, expected {right:?}")));
            }
        }
    };
}
pub(crate) use ensure_eq;
