//! Waiting for the first of two futures.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The output of the future that completed first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Either<A, B> {
    /// That of the first future.
    First(A),
    /// That of the second future.
    Second(B),
}

impl<A, B> Either<A, B> {
    /// The output of the first future, if that completed first.
    pub fn first(self) -> Option<A> {
        match self {
            Either::First(output) => Some(output),
            Either::Second(_) => None,
        }
    }
}

/// Runs two futures until one completes, and drops the other. The first is polled first, so its
/// output takes precedence when both are ready.
///
/// A future that is to continue after a wait is passed by pinned reference.
///
/// ```
/// use rt::Either;
/// use std::future::{pending, ready};
/// use std::pin::pin;
///
/// let first = rt::block_on(async {
///     let mut work = pin!(pending::<u32>());
///     assert_eq!(rt::select(work.as_mut(), ready("stopped")).await, Either::Second("stopped"));
///     rt::select(ready(1), ready(2)).await.first()
/// });
/// assert_eq!(first.unwrap(), Some(1));
/// ```
pub fn select<A: Future, B: Future>(first: A, second: B) -> Select<A, B> {
    Select { first, second }
}

/// Two futures of which one is to complete, see [`select`]. It needs the space of each once, which
/// the state of an `async fn` wouldn't guarantee.
pub struct Select<A, B> {
    first: A,
    second: B,
}

impl<A: Future, B: Future> Future for Select<A, B> {
    type Output = Either<A::Output, B::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: nothing moves the futures from here on: they are only accessed below, pinned
        // again, and the type has no `Drop` of its own.
        let this = unsafe { self.get_unchecked_mut() };
        // SAFETY: it is pinned as a part of `self`.
        if let Poll::Ready(output) = unsafe { Pin::new_unchecked(&mut this.first) }.poll(cx) {
            return Poll::Ready(Either::First(output));
        }
        // SAFETY: as above.
        unsafe { Pin::new_unchecked(&mut this.second) }.poll(cx).map(Either::Second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::future::{pending, ready};
    use std::pin::pin;
    use std::task::Waker;

    fn poll<F: Future>(future: F) -> Poll<F::Output> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn the_first_takes_precedence() {
        assert_eq!(poll(select(ready(1), ready(2))), Poll::Ready(Either::First(1)));
        assert_eq!(poll(select(pending::<()>(), ready(2))), Poll::Ready(Either::Second(2)));
        assert!(poll(select(pending::<()>(), pending::<()>())).is_pending());
    }

    #[test]
    fn the_other_future_is_dropped() {
        struct Counted<'a>(&'a Cell<u32>);
        impl Drop for Counted<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        let drops = Cell::new(0);
        let counted = Counted(&drops);
        let waits = async move {
            pending::<()>().await;
            drop(counted);
        };
        let outcome = poll(async { select(waits, ready(())).await.first().is_none() && drops.get() == 1 });
        assert_eq!(outcome, Poll::Ready(true));
    }

    #[test]
    fn it_needs_no_more_space_than_the_futures() {
        let large = async {
            let held = [1u8; 1000];
            pending::<()>().await;
            std::hint::black_box(&held);
        };
        let size = size_of_val(&large);
        assert_eq!(
            size_of_val(&select(large, ready(()))).next_multiple_of(16),
            (size + 1).next_multiple_of(16)
        );
    }
}
