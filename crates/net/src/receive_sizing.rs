//! How much a connection receives at once.

use crate::limits::{IDLE_STAGE_BYTES, LARGE_BUFFER_RETENTION};

/// Distinguishes busy connections, which receive much at once, from mostly idle ones. The kernel
/// holds the buffer of a receive until data arrives, so an idle connection must have a small one. A
/// connection that becomes idle shrinks its buffer when the next keepalive ping or pong arrives.
#[derive(Default)]
pub(crate) struct ReceiveSizing {
    /// The connection uses the large receive buffer.
    large: bool,
    /// When a receive last filled its buffer, by the monotonic clock.
    last_full_receive_ns: u64,
}

impl ReceiveSizing {
    /// Notes that a receive returned `bytes` bytes into a buffer of `room` bytes.
    pub(crate) fn note(&mut self, bytes: usize, room: usize, now_ns: u64) {
        if bytes >= room.min(IDLE_STAGE_BYTES) {
            (self.large, self.last_full_receive_ns) = (true, now_ns);
        } else if self.large {
            self.large =
                now_ns.saturating_sub(self.last_full_receive_ns) < LARGE_BUFFER_RETENTION.as_nanos() as u64;
        }
    }

    /// Whether the next receive should use the large buffer.
    pub(crate) fn is_large(&self) -> bool {
        self.large
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_bytes_decide_the_buffer_size() {
        let second = LARGE_BUFFER_RETENTION.as_nanos() as u64;
        let mut receive_sizing = ReceiveSizing::default();
        receive_sizing.note(100, IDLE_STAGE_BYTES, 1);
        assert!(!receive_sizing.is_large(), "little came");
        receive_sizing.note(IDLE_STAGE_BYTES, IDLE_STAGE_BYTES, 2);
        assert!(receive_sizing.is_large(), "there may be more");
        receive_sizing.note(100, 64 << 10, second);
        assert!(receive_sizing.is_large(), "it was busy a moment ago");
        receive_sizing.note(100, 64 << 10, second + 2);
        assert!(!receive_sizing.is_large());
        receive_sizing.note(200, 200, second + 3);
        assert!(receive_sizing.is_large(), "the end of the stage was filled");
    }
}
