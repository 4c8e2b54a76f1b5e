//! RPC over a transport.
//!
//! A [`Channel`] is a client's connection to one service; a service is a [`Handler`]. In one
//! process a call is a function call on the caller's core: nothing is queued, copied or handed to
//! another thread. The disk reads into or writes from the payload buffer of the request itself.
//!
//! Between processes a call goes to a [`Peer`], over TCP. Each core of the client has its own
//! connection to the peer, made when it is first needed. Each connection lives on one core of the
//! [`Server`]: a request is sent, executed and answered without a change of thread on either side.
//! Many requests are in flight on a connection, and answers come in any order. Frames that are
//! queued during a send leave together with the next send. One receive takes many small messages; a
//! large payload moves directly between socket and buffer.
//!
//! A connection that breaks, falls silent or delivers a damaged frame is ended. Its calls are
//! retransmitted on the next connection until their time-out, so requests must tolerate
//! retransmission. A retransmitted request never runs concurrently with its older copy. The server
//! ends the old connection and waits for its running requests before it welcomes the new connection
//! of the same client core. A request that hasn't begun, because it waits for what another client
//! does, ends with its connection ([`Deadline::unless_disconnected`]): what it waits for may depend
//! on the next connection. The server doesn't wait for requests whose time-out has passed, because
//! the client won't retransmit them. Such a request may hang for ever, and must not block the client's
//! other requests.
//!
//! With [`Security::Tls`] both ends authenticate before the first frame, with certificates of the
//! cluster's authority. The connection is encrypted unless both ends opt out. The service learns
//! the caller's identity ([`Caller::proof`]).
//!
//! A client on the server's own machine can use a Unix socket and shared memory instead
//! ([`PeerOptions::same_host`]). It learns the socket's name from the server's welcome over TCP.
//! Small messages still go over the socket; one end copies a large payload into the memory and the
//! other copies it out. The server trusts nothing in that memory: it verifies its own copy.
//!
//! This crate doesn't know the meaning of messages, nor what a file is. Which service a request goes
//! to is the business of `routing`.
//!
//! Invariants:
//! - nothing accesses a caller's buffer after its call has ended, however it ended;
//! - every request that reaches a service gets one answer, unless its connection ends;
//! - every queue is bounded: by the requests in flight, by the bytes in flight, or by `limits.rs`.

#![warn(missing_docs)]

mod budget;
mod caller;
mod channel;
mod client;
mod detached;
mod exports;
mod fault;
#[doc(hidden)]
pub mod fuzzing;
mod inbound;
mod limits;
mod liveness;
mod networks;
mod outbox;
mod receive_sizing;
mod revocations;
mod server;
mod shared_arena;
mod signal;
mod stream;
mod tls;

pub use caller::{Caller, Proof};
pub use channel::{Channel, Deadline, Distance, Handler, LocalFuture};
pub use client::{
    AddressFailure, ClientIdentity, LinkStatus, Lookup, Peer, PeerOptions, PeerStatus, ProbeFailure, SameHost,
};
pub use detached::run_detached;
pub use exports::Exports;
pub use liveness::Liveness;
pub use networks::Networks;
pub use server::{Router, Server, ServerLimits, ServerOptions};
pub use stream::{Security, Transport};
pub use tls::Tls;
