//! What bounds the waits, queues and buffers of this crate.

use std::time::Duration;

/// How long a call is repeated before it fails.
pub(crate) const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a call waits for a peer that couldn't be reached for longer than a call may take: the
/// longest pause between two tries, and a try.
pub(crate) const LOST_PEER_PATIENCE: Duration = Duration::from_secs(2);
/// A peer that nobody has tried to reach for so long is no longer taken for lost.
pub(crate) const LOST_PEER_MEMORY: Duration = Duration::from_secs(15);
/// How long a connection to one address may take; a live host on a slow line answers within this.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a try to connect waits until it is known where the peer is; then it goes by what was
/// known before.
pub(crate) const LOOKUP_PATIENCE: Duration = Duration::from_secs(2);
/// The first pause after all addresses of a peer have failed; it doubles up to the longest.
pub(crate) const FIRST_BACKOFF: Duration = Duration::from_millis(20);
/// The longest such pause: a server that comes back is noticed within it.
pub(crate) const LONGEST_BACKOFF: Duration = Duration::from_secs(1);
/// An address that has failed is tried after the others for so long.
pub(crate) const FAILED_ADDRESS_REST: Duration = Duration::from_secs(30);

/// The longest such rest, of one whose connections break again and again after they were made: each
/// time it is tried costs what is under way the time until the break is noticed. A connection that
/// lasts longer than this makes good for all before it.
pub(crate) const LONGEST_ADDRESS_REST: Duration = Duration::from_secs(600);

/// How often who waits for a primary looks whether the map names another one: short beside what it
/// takes to replace one.
pub(crate) const GROUP_LOOK: Duration = Duration::from_millis(50);
/// Rest before a primary is asked again that refused for its version of the group, at first; it
/// doubles up to the longest. A map needs a millisecond or two from management to all.
pub(crate) const FIRST_GROUP_REST: Duration = Duration::from_millis(2);
/// The longest such rest.
pub(crate) const LONGEST_GROUP_REST: Duration = Duration::from_millis(500);
/// How much longer than its patience a request to a group waits for the answer of a call that is
/// under way, which has a time-out of its own.
pub(crate) const LAST_WORD_TIME: Duration = Duration::from_secs(1);

/// How long a member of a group that is read from may be silent before others are asked beside it:
/// longer than a busy disk takes as a rule.
pub(crate) const READ_PATIENCE: Duration = Duration::from_millis(1000);
/// So long others are asked before one that was silent; then it may have come back.
pub(crate) const SILENCE_MEMORY: Duration = Duration::from_secs(3);
/// What of a chunk file is read from the same member, bytes: longer than a disk's head takes to get
/// there.
pub(crate) const READ_REGION_BYTES: u64 = 2 << 20;
/// Requests that a member has more under way than the least busy one, from which on that one is
/// asked instead.
pub(crate) const BUSIER_BY: u32 = 4;
/// The same of one in this process's rack, before one in another rack is asked: the way there is
/// narrower as a rule, and others use it, too.
pub(crate) const BUSIER_THAN_OTHER_RACKS_BY: u32 = 16;

/// How often a connection with requests in flight is looked at.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_millis(100);
/// A client whose requests are unanswered asks for a sign of life after so long without a byte.
pub(crate) const SILENCE_BEFORE_PING: Duration = Duration::from_secs(5);
/// A connection without a byte for so long although some were asked for is dead.
pub(crate) const SILENCE_BEFORE_DEATH: Duration = Duration::from_secs(10);
/// A server asks an idle client for a sign of life after so long: connections of hosts that
/// vanished must end some day.
pub(crate) const IDLE_BEFORE_PING: Duration = Duration::from_secs(20);
/// A server gives up a client that is silent, or takes no answers, for so long.
pub(crate) const IDLE_BEFORE_DEATH: Duration = Duration::from_secs(40);
/// How long a new connection may take to say hello.
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that may be about to say hello at a time; more are closed unheard.
pub(crate) const MAX_HANDSHAKES: usize = 256;
/// Pause after a failed accept (descriptors are short, say).
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A request whose time-out is over for so long was given up by its client as well, whose clock
/// runs a little differently.
pub(crate) const GIVEN_UP_FOR: Duration = Duration::from_secs(1);
/// A client that waits for its older requests to end, or for room for what it has sent, gets a sign
/// of life so often.
pub(crate) const WELCOME_PING_INTERVAL: Duration = Duration::from_secs(2);

/// Staging buffer of a busy connection's receiver, bytes: holds a dozen 4 KiB messages.
pub(crate) const RECEIVE_STAGE_BYTES: usize = 64 << 10;
/// The same of a connection on which little comes, bytes: the smallest piece of memory for I/O.
/// Thousands of idle clients shall cost little.
pub(crate) const IDLE_STAGE_BYTES: usize = 4 << 10;
/// A connection keeps its large staging buffer for so long after much has come at once: who mixes
/// large and small requests shouldn't change buffers between them.
pub(crate) const BUSY_AFTER_MUCH: Duration = Duration::from_secs(1);
/// A payload of which so much is still to come is received straight into its buffer, bytes.
pub(crate) const DIRECT_RECEIVE_BYTES: usize = 64 << 10;
/// One direct receive, bytes: short enough that a slow line shows signs of life.
pub(crate) const RECEIVE_PIECE_BYTES: usize = 1 << 20;
/// What is received at once while large payloads are expected, bytes: a header and a small body.
pub(crate) const BULK_PEEK_BYTES: usize = 256;
/// Piece of a sender's staging memory, bytes.
pub(crate) const SEND_STAGE_BYTES: usize = 64 << 10;
/// Payloads up to this are copied behind their header, bytes; larger ones leave from where they
/// are.
pub(crate) const COPIED_PAYLOAD_BYTES: usize = 8 << 10;
/// Bytes of headers and bodies that wait to be sent to a client, from which on a server reads no
/// more from it: some thousand signs of life, or an answer of the longest kind. What runs by then
/// is still answered.
pub(crate) const MAX_QUEUED_TALK_BYTES: usize = 1 << 20;
/// What a client shares with a server on its machine over one connection, bytes: enough for what
/// the kernel's requests of a core have in flight. It takes room where it was used.
pub(crate) const SHARED_MEMORY_BYTES: usize = 16 << 20;
/// What a server maps of a connection's client, bytes.
pub(crate) const MAX_SHARED_MEMORY_BYTES: usize = 64 << 20;
/// What a server maps of all its clients, bytes: half of a thousand connections. Others stay with
/// TCP.
pub(crate) const MAX_SHARED_MEMORY_IN_ALL: usize = 8 << 30;
/// Payload bytes that a client has in flight on a connection, both ways together.
pub(crate) const MAX_BYTES_IN_FLIGHT: usize = 64 << 20;

/// Requests in flight on a connection, those that may wait for others not counted.
pub(crate) const MAX_REQUESTS_IN_FLIGHT: usize = 256;
/// Requests in flight on a connection that may wait for others for as long as it takes. As many as
/// may wait for the locks of one file: a request that waits at the client instead can miss what it
/// waits for, and a client that can't ask for recalls is evicted. A server keeps some KiB for each.
pub(crate) const MAX_WAITS_IN_FLIGHT: usize = 32 << 10;
/// A connection without a call for so long is ended by its client, and made again when there is
/// one: a server has room for so many, and each core of each client has one of its own.
pub(crate) const IDLE_LIMIT: Duration = Duration::from_secs(600);
/// Connections of a server: of a thousand clients with 64 cores each.
pub(crate) const MAX_CONNECTIONS: usize = 64 << 10;
/// Payload bytes that one core of a server holds; a connection that would exceed it is not read
/// from meanwhile.
pub(crate) const MAX_PAYLOAD_BYTES_PER_CORE: usize = 512 << 20;
/// Of those one of so many is kept for nodes, and as much for small requests: 64 MiB, more than
/// what one node has in flight on a connection.
pub(crate) const KEPT_ROOM_IS_ONE_OF: usize = 8;
/// A request with fewer bytes, those of the answer that it asks for included, is small.
pub(crate) const SMALL_REQUEST_BYTES: usize = 64 << 10;
/// How long a server that stops waits for running requests.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Request buffers that a connection keeps for reuse.
pub(crate) const POOLED_BODIES: usize = 64;
/// The largest that is kept, bytes.
pub(crate) const POOLED_BODY_BYTES: usize = 4 << 10;

/// Where a busy encrypted connection receives, bytes: three records of the largest size (16 KiB and
/// what encryption adds).
pub(crate) const TLS_STAGE_BYTES: usize = 64 << 10;
/// The same while data comes faster than that is emptied: fifteen records.
pub(crate) const TLS_BULK_STAGE_BYTES: usize = 256 << 10;
/// What an encrypted connection encrypts before it sends it, plain bytes: fifteen full records,
/// which with what encryption adds stay below 256 KiB, a size of pooled memory.
pub(crate) const TLS_SEND_BYTES: usize = 15 * (16 << 10);

/// How long a request waits for the cluster map that its caller knows and its server doesn't. Nodes
/// hear of a map within milliseconds; a caller that names a map which doesn't exist waits for
/// nothing longer.
pub(crate) const MAP_PATIENCE: Duration = Duration::from_secs(5);
/// How often such a request looks at the map.
pub(crate) const MAP_POLL: Duration = Duration::from_millis(20);
/// No more than one line in the log about refused requests in this time.
pub(crate) const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(1);
