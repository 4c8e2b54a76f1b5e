//! Bounds of the waits, queues and buffers of this crate.

use std::time::Duration;

/// How long a call is retried before it fails.
pub(crate) const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time that a call waits for a peer that has been unreachable for longer than the call's
/// time-out: the longest pause between two connection attempts, and one attempt.
pub(crate) const UNREACHABLE_PEER_WAIT: Duration = Duration::from_secs(2);
/// A peer counts as unreachable for this long after the last failed attempt to reach it.
pub(crate) const UNREACHABLE_PEER_MEMORY: Duration = Duration::from_secs(15);
/// Longest time that connecting to one address may take; a live host on a slow line answers within
/// this.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest time that a connection attempt waits for the peer's addresses to be looked up; then it
/// uses those known before.
pub(crate) const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// First pause after all addresses of a peer have failed; it doubles up to the longest.
pub(crate) const FIRST_BACKOFF: Duration = Duration::from_millis(20);
/// The longest such pause: a client notices within it that a server is back.
pub(crate) const LONGEST_BACKOFF: Duration = Duration::from_secs(1);
/// How long a failed address is tried after the others.
pub(crate) const FAILED_ADDRESS_BACKOFF: Duration = Duration::from_secs(30);

/// The longest such time, for an address whose connections break again and again after they were
/// made. Each use of it delays the requests in flight until the break is noticed. A connection that
/// lasts longer than this clears the history.
pub(crate) const LONGEST_ADDRESS_BACKOFF: Duration = Duration::from_secs(600);

/// How often a connection with requests in flight is checked.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_millis(100);
/// A client with unanswered requests sends a ping after this long without a byte.
pub(crate) const SILENCE_BEFORE_PING: Duration = Duration::from_secs(5);
/// A connection without a byte for this long, although a ping was sent, is dead.
pub(crate) const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);
/// A server sends an idle client a ping after this long: connections of vanished hosts must end
/// eventually.
pub(crate) const IDLE_BEFORE_PING: Duration = Duration::from_secs(20);
/// A server ends the connection of a client that is silent, or reads no answers, for this long.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(40);
/// Longest time until a new connection sends its hello.
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that may be in the handshake at a time; more are closed at once.
pub(crate) const MAX_HANDSHAKES: usize = 256;
/// Pause after a failed accept (because descriptors are exhausted, say).
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A request whose time-out passed this long ago was abandoned by its client as well: clocks run at
/// slightly different rates.
pub(crate) const ABANDONED_AFTER: Duration = Duration::from_secs(1);
/// Interval of the pings to a client that waits for its older requests to end, or for a permit for
/// what it has sent.
pub(crate) const WAIT_PING_INTERVAL: Duration = Duration::from_secs(2);

/// Staging buffer of a busy connection's receiver, bytes: holds a dozen 4 KiB messages.
pub(crate) const RECEIVE_STAGE_BYTES: usize = 64 << 10;
/// The same for a mostly idle connection, bytes: the smallest unit of I/O memory. Thousands of idle
/// clients must cost little.
pub(crate) const IDLE_STAGE_BYTES: usize = 4 << 10;
/// How long a connection retains its large staging buffer after a large receive, so that a mix of
/// large and small requests doesn't switch buffers in between.
pub(crate) const LARGE_BUFFER_RETENTION: Duration = Duration::from_secs(1);
/// A payload with more outstanding bytes than this is received directly into its buffer.
pub(crate) const DIRECT_RECEIVE_BYTES: usize = 64 << 10;
/// One direct receive, bytes: short enough that progress shows on a slow line.
pub(crate) const RECEIVE_PIECE_BYTES: usize = 1 << 20;
/// Bytes received at once while large payloads are expected: a header and a small body.
pub(crate) const BULK_PEEK_BYTES: usize = 256;
/// Size of a sender's staging buffer, bytes.
pub(crate) const SEND_STAGE_BYTES: usize = 64 << 10;
/// Payloads up to this size are copied behind their header, bytes; larger ones are sent in place.
pub(crate) const COPIED_PAYLOAD_BYTES: usize = 8 << 10;
/// Bytes of headers and bodies queued for a client, above which a server reads no more from it:
/// some thousand pings, or one answer of the maximum length. Requests already running are still
/// answered.
pub(crate) const MAX_QUEUED_NON_PAYLOAD_BYTES: usize = 1 << 20;
/// Memory that a client shares with a server on its machine over one connection, bytes: enough for
/// the kernel requests that a core has in flight. Only the part that was used takes memory.
pub(crate) const SHARED_MEMORY_BYTES: usize = 16 << 20;
/// Bytes that a server maps for one connection.
pub(crate) const MAX_SHARED_MEMORY_BYTES: usize = 64 << 20;
/// Bytes that a server maps for all its clients: half of what a thousand connections may share.
/// Further clients stay with TCP.
pub(crate) const MAX_SHARED_MEMORY_IN_ALL: usize = 8 << 30;
/// Payload bytes that a client has in flight on a connection, both directions together.
pub(crate) const MAX_BYTES_IN_FLIGHT: usize = 64 << 20;

/// Requests in flight on a connection, except those that may wait for other clients.
pub(crate) const MAX_REQUESTS_IN_FLIGHT: usize = 256;
/// Requests in flight on a connection that may wait for other clients without a time limit. As many
/// as may wait for the locks of one file. A request held back at the client can miss the event that
/// it waits for, and a client that can't poll for recalls is evicted. A server holds a few KiB for
/// each.
pub(crate) const MAX_WAITING_REQUESTS: usize = 32 << 10;
/// A client closes a connection without a call for this long, and connects again for the next call.
/// A server's connections are limited, and each core of each client has its own.
pub(crate) const IDLE_CONNECTION_LIMIT: Duration = Duration::from_secs(600);
/// Connections of a server: a thousand clients with 64 cores each.
pub(crate) const MAX_CONNECTIONS: usize = 64 << 10;
/// Payload bytes that one core of a server holds; it doesn't read from a connection that would
/// exceed it meanwhile.
pub(crate) const MAX_PAYLOAD_BYTES_PER_CORE: usize = 512 << 20;
/// One part in this many of those bytes is reserved for nodes, and as much for small requests: 64
/// MiB, more than one node has in flight on a connection.
pub(crate) const RESERVED_BUDGET_DIVISOR: usize = 8;
/// A request with fewer bytes, including those of the answer that it asks for, is small.
pub(crate) const SMALL_REQUEST_BYTES: usize = 64 << 10;
/// Longest time that a stopping server waits for running requests.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Request buffers that a connection pools for reuse.
pub(crate) const POOLED_BODIES: usize = 64;
/// The largest pooled buffer, bytes.
pub(crate) const POOLED_BODY_BYTES: usize = 4 << 10;

/// Receive buffer of a busy encrypted connection, bytes: three records of the maximum size (16 KiB
/// and the encryption overhead).
pub(crate) const TLS_STAGE_BYTES: usize = 64 << 10;
/// The same while data arrives faster than the buffer is emptied: fifteen records.
pub(crate) const TLS_BULK_STAGE_BYTES: usize = 256 << 10;
/// Plaintext bytes that an encrypted connection encrypts per send: fifteen full records. With the
/// encryption overhead they stay below 256 KiB, a size of pooled memory.
pub(crate) const TLS_SEND_BYTES: usize = 15 * (16 << 10);

/// Longest time that a request waits for a cluster map that its caller has and its server doesn't
/// have yet. Nodes get a map within milliseconds; a caller that names a nonexistent map waits for
/// this long.
pub(crate) const MAP_WAIT_LIMIT: Duration = Duration::from_secs(5);
/// At most one log line about refused requests in this interval.
pub(crate) const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(1);
