//! One operation of a history.

/// An operation of one caller, with its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation<A> {
    /// The caller, for messages.
    pub caller: String,
    /// When it was called, on any clock that all callers share.
    pub called: u64,
    /// When it returned. `None`: its outcome is uncertain, it may have taken effect at any moment
    /// after its call, or never.
    pub returned: Option<u64>,
    /// The operation and its answer.
    pub action: A,
}

impl<A> Operation<A> {
    /// The latest moment at which it may have taken effect.
    pub fn deadline(&self) -> u64 {
        self.returned.unwrap_or(u64::MAX)
    }
}
