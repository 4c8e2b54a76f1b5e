//! New connections: identifies the client and chooses the core that serves it.

use super::core::{ConnectionSlot, IncomingConnection, Shared};
use crate::fault::Fault;
use crate::inbound::Inbound;
use crate::limits::{ACCEPT_PAUSE, HELLO_TIMEOUT, MAX_HANDSHAKES};
use crate::stream::Stream;
use crate::{Caller, Proof};
use rt::Either;
use rt::IoBuf;
use rt::net::{Address, Listener, Socket};
use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use types::{Errno, Error};
use wire::Message;
use wire::frame::{FrameKind, Header, Hello, VERSION};

/// The longest body of a hello, bytes.
const MAX_HELLO_BYTES: u32 = 16 << 10;

/// Longest name that a client may give itself, bytes: a host name (253) and a process number.
const MAX_CLIENT_NAME_BYTES: usize = 320;

/// Accepts connections until the server stops.
pub(super) async fn accept_all(shared: Arc<Shared>, listener: Listener) {
    let on_host = listener.local_addr().is_ok_and(|address| address.inet().is_none());
    let handshakes = Rc::new(Cell::new(0));
    loop {
        let accepted = match rt::select(shared.stop.wait(), listener.accept()).await {
            Either::First(()) => return,
            Either::Second(accepted) => accepted,
        };
        match accepted {
            Ok((socket, address)) => {
                if handshakes.get() >= MAX_HANDSHAKES {
                    tracing::warn!(%address, "a connection was closed: too many handshakes in progress");
                    continue;
                }
                let slot = shared.reserve_slot();
                // Without a limit, a client that sends requests and reads no answers would hold the
                // core's memory for ever.
                let stall_limit = shared.options.limits.liveness.dead_after;
                if !on_host && let Err(e) = socket.set_stall_limit(stall_limit) {
                    tracing::debug!(%address, "no limit for stalled sends: {e}");
                }
                handshakes.set(handshakes.get() + 1);
                let (shared, handshakes) = (shared.clone(), handshakes.clone());
                rt::spawn(async move {
                    do_handshake(shared, socket, address, slot, on_host).await;
                    handshakes.set(handshakes.get() - 1);
                });
            }
            Err(e) => {
                tracing::warn!("accepting a connection failed: {e}");
                rt::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Hands a connection to its core after the hello. `slot` is `None` if the server has its maximum
/// of connections; the client gets that as an error.
async fn do_handshake(
    shared: Arc<Shared>,
    socket: Socket,
    address: Address,
    mut slot: Option<ConnectionSlot>,
    on_host: bool,
) {
    let handshake = async {
        let (stream, proof, memory) = match on_host {
            false => {
                let (stream, proof) = shared.options.security.accept(socket).await?;
                (stream, proof, None)
            }
            true => {
                let (stream, proof, memory) = shared.options.security.accept_on_host(socket).await?;
                slot.as_mut().map_or(Ok(()), |place| place.add_shared_memory(memory.len()))?;
                (stream, proof, Some(Arc::new(memory)))
            }
        };
        let greeted = receive_hello(&shared, stream, proof, address.clone(), slot.is_some()).await?;
        Ok::<_, Fault>(greeted.map(|(stream, caller, incarnation)| (stream, memory, caller, incarnation)))
    };
    let outcome = rt::timeout(HELLO_TIMEOUT, handshake).await;
    match (outcome.unwrap_or(Err(Fault::Silent)), slot) {
        (Ok(Some((stream, memory, caller, incarnation))), Some(slot)) => match stream.detach() {
            Ok(stream) => {
                shared.assign_to_core(IncomingConnection { stream, memory, caller, incarnation, slot })
            }
            Err(e) => tracing::warn!(%address, "a connection can't be moved to its core: {e}"),
        },
        (Ok(_), _) => {} // The client got the reason.
        (Err(Fault::Io(e)), _) if e.kind() == io::ErrorKind::PermissionDenied => {
            tracing::warn!(%address, "a connection was refused: {e}");
        }
        (Err(fault), _) => tracing::debug!(%address, "a connection ended before its hello: {fault}"),
    }
}

/// Receives and checks the hello. `None`: the client was refused.
async fn receive_hello(
    shared: &Shared,
    stream: Stream,
    proof: Proof,
    address: Address,
    has_slot: bool,
) -> Result<Option<(Stream, Caller, u64)>, Fault> {
    let stream = Rc::new(stream);
    let mut inbound = Inbound::new(stream.clone());
    let header = inbound.header().await?.ok_or(Fault::Closed)?;
    if header.kind != FrameKind::Hello || header.body_bytes > MAX_HELLO_BYTES || header.payload_bytes > 0 {
        return Err(Fault::unexpected("the first frame is not a hello"));
    }
    let hello = Hello::decode(inbound.body(&header).await?.as_slice())?;
    if !inbound.is_drained() {
        return Err(Fault::unexpected("a frame follows the hello before it is answered"));
    }
    drop(inbound);
    if let Err(error) = check(shared, &hello, has_slot) {
        tracing::warn!(client = ?hello.name, %address, "a client was refused: {error}");
        refuse(&stream, &error).await?;
        return Ok(None);
    }
    let caller = Caller {
        holder: proof.role().map_or(0, |role| role.fingerprint()),
        name: proof.role().map_or_else(|| hello.name.clone(), |role| role.to_string()),
        host: hello.name,
        proof,
        address,
        transport: stream.transport(),
        client: hello.client,
        core: hello.core,
        cluster: hello.cluster,
    };
    let stream = Rc::into_inner(stream).expect("the receiver, the only other owner, is gone");
    Ok(Some((stream, caller, hello.incarnation)))
}

fn check(shared: &Shared, hello: &Hello, has_slot: bool) -> Result<(), Error> {
    let name = &shared.options.name;
    if hello.protocol < VERSION.into() {
        let message =
            format!("{name} uses protocol version {VERSION}, the client version {}", hello.protocol);
        return Err(Error::new(Errno::EPROTO, message).hint("install the same version of weft on both"));
    }
    // The name is displayed, and appears in logs.
    if hello.name.len() > MAX_CLIENT_NAME_BYTES || hello.name.chars().any(char::is_control) {
        let message = format!(
            "a client's name has {} bytes: at most {MAX_CLIENT_NAME_BYTES} without control characters are allowed",
            hello.name.len()
        );
        return Err(Error::new(Errno::EINVAL, message).hint("give the machine a shorter, plain host name"));
    }
    let (ours, theirs) = (&shared.options.cluster, &hello.cluster);
    if !theirs.is_empty() && theirs != ours {
        let message = format!("{name} belongs to cluster {ours}, the client to {theirs}");
        return Err(Error::new(Errno::EACCES, message).hint("use the cluster file of this cluster"));
    }
    if !has_slot {
        let message = format!(
            "{name} has {} connections, its limit: each core of each client has one",
            shared.options.limits.connections
        );
        return Err(Error::new(Errno::EBUSY, message)
            .hint("unmount clients that aren't needed; weft session list shows them"));
    }
    Ok(())
}

/// Sends a client the reason for its refusal.
pub(super) async fn refuse(stream: &Stream, error: &Error) -> Result<(), Fault> {
    let mut body = Vec::new();
    error.encode(&mut body);
    let mut frame = Header::new(FrameKind::Error, 0).with_body(&body).encode().to_vec();
    frame.extend_from_slice(&body);
    stream.send(vec![IoBuf::from_slice(&frame)]).await?;
    Ok(())
}
