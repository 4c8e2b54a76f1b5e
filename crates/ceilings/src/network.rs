//! The network path to another machine, over any transport.

use crate::{BestRate, Limit, per_second};
use rt::IoBuf;
use std::cell::Cell;
use std::time::Duration;

/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 1 << 20;

/// Messages in flight per stream, so that the next one is ready when the previous one has been
/// sent.
const DEPTH: usize = 4;

/// A channel for messages: completes when the other end has received one.
pub trait MessageChannel {
    /// Error of a send.
    type Error;
    /// Sends a message; `None`: one without payload.
    fn send(&self, bytes: Option<IoBuf>) -> impl Future<Output = Result<(), Self::Error>>;
}

/// Sends over all channels in parallel for `each`, and then small messages over the first one, one
/// after the other, for `each`. Returns bytes and messages per second.
///
/// # Errors
/// The first error of a channel.
pub async fn measure<W: MessageChannel>(channels: &[W], each: Duration) -> Result<Vec<BestRate>, W::Error> {
    let each_ns = each.as_nanos() as u64;
    let data = IoBuf::alloc(MESSAGE_BYTES);
    // Establishes the connections.
    for channel in channels {
        channel.send(None).await?;
    }
    let (began_ns, sent, broken) = (rt::monotonic_ns(), Cell::new(0), Cell::new(false));
    let stream = async |channel: &W| -> Result<(), W::Error> {
        while rt::monotonic_ns() - began_ns < each_ns && !broken.get() {
            // The other streams need not continue.
            channel.send(Some(data.clone())).await.inspect_err(|_| broken.set(true))?;
            sent.set(sent.get() + MESSAGE_BYTES as u64);
        }
        Ok(())
    };
    let streams: Vec<_> =
        channels.iter().flat_map(|channel| [channel; DEPTH]).map(|way| Box::pin(stream(way))).collect();
    rt::join_all(streams).await.into_iter().collect::<Result<(), W::Error>>()?;
    let rate = per_second(sent.get(), rt::monotonic_ns() - began_ns);
    let mut found = vec![BestRate { limit: Limit::Network, rate, streams: channels.len() as u32 }];
    if let Some(channel) = channels.first() {
        let (began_ns, mut count) = (rt::monotonic_ns(), 0);
        while rt::monotonic_ns() - began_ns < each_ns {
            channel.send(None).await?;
            count += 1;
        }
        let rate = per_second(count, rt::monotonic_ns() - began_ns);
        found.push(BestRate { limit: Limit::RoundTrips, rate, streams: 1 });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails at the message with this number.
    struct Counting(Cell<u64>, u64);

    impl MessageChannel for &Counting {
        type Error = &'static str;

        async fn send(&self, _bytes: Option<IoBuf>) -> Result<(), &'static str> {
            rt::yield_now().await;
            self.0.set(self.0.get() + 1);
            if self.0.get() == self.1 { Err("broken") } else { Ok(()) }
        }
    }

    #[test]
    fn bytes_and_messages_are_counted_and_errors_returned() {
        rt::block_on(async {
            let channel = Counting(Cell::new(0), u64::MAX);
            let found = measure(&[&channel, &channel], Duration::from_millis(5)).await.unwrap();
            let kinds: Vec<_> = found.iter().map(|best| (best.limit, best.streams)).collect();
            assert_eq!(kinds, [(Limit::Network, 2), (Limit::RoundTrips, 1)]);
            let broken = Counting(Cell::new(0), 30);
            assert_eq!(measure(&[&broken], Duration::from_secs(60)).await, Err("broken"));
        })
        .unwrap();
    }
}
