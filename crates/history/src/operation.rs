//! One operation of a history.

/// What one caller did, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation<A> {
    /// Who did it, for messages.
    pub caller: String,
    /// When it was called. Any clock that all callers share.
    pub called: u64,
    /// When it returned. `None`: its effect is open, it may have happened at any moment after its
    /// call, or never.
    pub returned: Option<u64>,
    /// What it did and what it answered.
    pub action: A,
}

impl<A> Operation<A> {
    /// The latest moment at which it may have happened.
    pub fn end(&self) -> u64 {
        self.returned.unwrap_or(u64::MAX)
    }
}
