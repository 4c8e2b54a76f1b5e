//! The first of two.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Which future was first, with its output.
pub(crate) enum Either<A, B> {
    First(A),
    Second(B),
}

/// Runs two futures until one ends; the other is dropped. The first is asked first.
pub(crate) async fn either<A: Future, B: Future>(first: A, second: B) -> Either<A::Output, B::Output> {
    let mut first = pin!(first);
    let mut second = pin!(second);
    poll_fn(|cx| {
        if let Poll::Ready(output) = first.as_mut().poll(cx) {
            return Poll::Ready(Either::First(output));
        }
        second.as_mut().poll(cx).map(Either::Second)
    })
    .await
}
