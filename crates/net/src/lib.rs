//! RPC over a transport.
//!
//! A [`Channel`] is a client's way to one service; a service is a [`Handler`]. In one process a
//! call is a function call on the caller's core: nothing is queued, copied or handed to another
//! thread. The payload buffer of a request is the very buffer that the disk reads into or writes
//! from.
//!
//! Between processes a call goes to a [`Peer`], over TCP. Each core of the client has its own
//! connection to the peer, made when it is first needed, and each connection lives on one core of
//! the [`Server`]: a request is sent, executed and answered without changing the thread on either
//! side. Many requests are in flight on a connection, and answers come in any order. Whatever is
//! queued while a send is under way leaves with the next one; small messages are received many at a
//! time; a large payload goes straight between socket and buffer.
//!
//! A connection that breaks, falls silent or brings a damaged frame is ended, and the calls on it
//! are repeated on the next connection until their time-out. So requests must bear repetition. A
//! repeated request never runs beside its older copy: the server ends the old connection, and waits
//! for what runs, before it welcomes the new one of the same client core. It doesn't wait for what
//! nobody repeats any more, since its time-out is over: that may hang for ever, and the client has
//! other things to ask.
//!
//! By [`Security::Tls`] both ends prove who they are before the first frame, with certificates of
//! the cluster's authority, and what follows is encrypted unless both do without; the service
//! learns whom it serves ([`Caller::proof`]).
//!
//! A client on the server's own machine uses a Unix socket and shared memory instead, if it is told
//! to ([`PeerOptions::same_host`]): it learns the way there from the server's welcome over TCP.
//! Small things still go over the socket, large payloads are copied into the memory by one end and
//! out of it by the other. The server believes nothing that is in the memory: it checks its own
//! copy.
//!
//! What messages mean is not known here, nor what a file is.
//!
//! Invariants:
//! - a caller's buffer is not touched any more once its call has ended, however it ended;
//! - every request that reaches a service gets one answer, unless its connection ends;
//! - every queue is bounded: by the requests in flight, by the bytes in flight, or by `limits.rs`.

#![warn(missing_docs)]

mod apart;
mod appetite;
mod arena;
mod budget;
mod caller;
mod channel;
mod client;
mod either;
mod exports;
mod fault;
#[doc(hidden)]
pub mod fuzzing;
mod groups;
mod inbound;
mod limits;
mod liveness;
mod loads;
mod meta_channels;
mod networks;
mod node_channels;
mod outbox;
mod racks;
mod reads;
mod revocations;
mod server;
mod signal;
mod storage_channels;
mod stream;
mod tls;

pub use apart::run_apart;
pub use caller::{Caller, Proof};
pub use channel::{Channel, Deadline, Distance, Handler, LocalFuture};
pub use client::{
    AddressFailure, ClientIdentity, LinkStatus, Lookup, Peer, PeerOptions, PeerStatus, ProbeFailure, SameHost,
};
pub use exports::Exports;
pub use groups::ToGroup;
pub use liveness::Liveness;
pub use meta_channels::{MetaChannel, MetaChannels};
pub use networks::Networks;
pub use node_channels::Connect;
pub use racks::{OnThisHost, OwnRack};
pub use server::{Router, Server, ServerLimits, ServerOptions};
pub use storage_channels::{StorageChannel, StorageChannels, WhenOffline};
pub use stream::{Security, Transport};
pub use tls::Tls;
