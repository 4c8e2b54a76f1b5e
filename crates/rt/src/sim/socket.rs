//! Simulated sockets, with the interface of this crate's functions.

use super::event_queue::EventQueue;
use super::network::Network;
use super::simulation::{DroppedObject, Simulation};
use super::stream::{End, EndId, EndState, Side};
use crate::buf::{Access, Borrowed, IoBuf};
use crate::context::{self, Runtime};
use crate::net::Address;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// The simulated world of this thread; fails outside of one, where a simulated socket can't be
/// used.
fn world() -> io::Result<Rc<Simulation>> {
    match context::current() {
        Some(Runtime::Sim(world)) => Ok(world),
        _ => Err(io::Error::from_raw_os_error(libc::EBADF)),
    }
}

fn inet(address: &Address) -> io::Result<SocketAddr> {
    let unsupported = || io::Error::new(io::ErrorKind::Unsupported, "simulated sockets are TCP only");
    address.inet().ok_or_else(unsupported)
}

fn with_end<R>(id: EndId, f: impl FnOnce(&mut End) -> io::Result<R>) -> io::Result<R> {
    world()?.with_network(|network, _| f(network.end_mut(id)?))
}

/// An end of a simulated connection.
#[derive(Debug)]
pub(crate) struct SimSocket {
    end: EndId,
    peer: SocketAddr,
}

impl SimSocket {
    pub(crate) async fn connect(address: Address, timeout: Duration) -> io::Result<SimSocket> {
        let peer = inet(&address)?;
        let world = world()?;
        let from = world.current();
        let end = world.with_network(|network, events| network.connect(events, from, peer))?;
        // Closes the end if this future is dropped.
        let socket = SimSocket { end, peer };
        let opened = poll_fn(|cx| {
            let polled = with_end(end, |end| {
                if let Some(error) = end.error() {
                    return Err(error);
                }
                end.wait_to_receive(cx.waker());
                Ok(end.state == EndState::Open)
            });
            match polled {
                Ok(true) => Poll::Ready(Ok(())),
                Ok(false) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            }
        });
        match crate::timeout(timeout, opened).await {
            Some(result) => result.map(|()| socket),
            None => Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
        }
    }

    pub(crate) fn peer_addr(&self) -> Address {
        Address::Inet(self.peer)
    }

    pub(crate) fn set_buffer_size(&self, bytes: usize) -> io::Result<()> {
        with_end(self.end, |end| {
            end.window = bytes.max(1);
            Ok(())
        })
    }

    pub(crate) fn set_stall_limit(&self, limit: Duration) -> io::Result<()> {
        with_end(self.end, |end| {
            end.stall_limit_ns = Some(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
            Ok(())
        })
    }

    pub(crate) async fn recv(&self, buf: IoBuf) -> io::Result<usize> {
        let _busy = Busy::receiving(self.end)?;
        let borrowed = Borrowed::new(buf, Access::Write);
        poll_fn(|cx| {
            let received = self.with_network(|network, events| {
                let mut bytes = vec![0; borrowed.len()];
                let end = network.end_mut(self.end)?;
                let received = end.receive(&mut bytes)?;
                match received {
                    Some(len) => {
                        borrowed.fill(&bytes[..len]);
                        network.received(events, self.end, len);
                    }
                    None => end.wait_to_receive(cx.waker()),
                }
                Ok(received)
            });
            match received {
                Ok(Some(len)) => Poll::Ready(Ok(len)),
                Ok(None) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            }
        })
        .await
    }

    pub(crate) async fn recv_exact(&self, buf: IoBuf) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match self.recv(buf.slice(done..buf.len())).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                got => done += got,
            }
        }
        Ok(())
    }

    pub(crate) async fn send(&self, pieces: Vec<IoBuf>) -> io::Result<()> {
        let _busy = Busy::sending(self.end)?;
        let borrow = |piece| Borrowed::new(piece, Access::Read);
        for piece in pieces.into_iter().map(borrow).collect::<Vec<_>>() {
            let mut done = 0;
            while done < piece.len() {
                done += self.send_some(&piece.as_slice()[done..]).await?;
            }
        }
        Ok(())
    }

    async fn send_some(&self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| {
            let sent = self.with_network(|network, events| {
                let sent = network.send(events, self.end, bytes)?;
                if sent == 0 {
                    network.end_mut(self.end)?.wait_to_send(cx.waker());
                }
                Ok(sent)
            });
            match sent {
                Ok(0) => Poll::Pending,
                sent => Poll::Ready(sent),
            }
        })
        .await
    }

    pub(crate) fn shutdown(&self) {
        if let Ok(world) = world() {
            world.with_network(|network, events| network.shut_down(events, self.end));
        }
    }

    fn with_network<R>(
        &self,
        f: impl FnOnce(&mut Network, &mut EventQueue) -> io::Result<R>,
    ) -> io::Result<R> {
        world()?.with_network(f)
    }
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        context::with_sim(|world| world.close(DroppedObject::Socket(self.end)));
    }
}

/// A receive or a send in progress; each end has at most one of each.
struct Busy {
    end: EndId,
    flag: fn(&mut End) -> &mut bool,
}

impl Busy {
    fn receiving(end: EndId) -> io::Result<Busy> {
        Busy::new(end, |end| &mut end.receiving)
    }

    fn sending(end: EndId) -> io::Result<Busy> {
        Busy::new(end, |end| &mut end.sending)
    }

    /// Panics if there is one already: on a real socket, that would mix bytes.
    fn new(end: EndId, flag: fn(&mut End) -> &mut bool) -> io::Result<Busy> {
        let was_busy = with_end(end, |end| Ok(std::mem::replace(flag(end), true)))?;
        assert!(!was_busy, "two receives or two sends are in progress on one socket");
        Ok(Busy { end, flag })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // An end that is gone isn't busy.
        let _ = with_end(self.end, |end| {
            *(self.flag)(end) = false;
            Ok(())
        });
    }
}

/// A simulated listening socket.
#[derive(Debug)]
pub(crate) struct SimListener {
    boot: u64,
    address: SocketAddr,
}

impl SimListener {
    pub(crate) fn bind(address: &Address) -> io::Result<SimListener> {
        let world = world()?;
        let wanted = inet(address)?;
        let host = world.current();
        let address = world.with_network(|network, _| network.listen(host, wanted))?;
        Ok(SimListener { boot: world.boot(), address })
    }

    pub(crate) fn local_addr(&self) -> Address {
        Address::Inet(self.address)
    }

    pub(crate) async fn accept(&self) -> io::Result<(SimSocket, Address)> {
        let (end, peer) = poll_fn(|cx| match self.poll_accept(cx.waker()) {
            Ok(Some(accepted)) => Poll::Ready(Ok(accepted)),
            Ok(None) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        })
        .await?;
        debug_assert_eq!(end.side, Side::Server);
        Ok((SimSocket { end, peer }, Address::Inet(peer)))
    }

    fn poll_accept(&self, waker: &std::task::Waker) -> io::Result<Option<(EndId, SocketAddr)>> {
        let world = world()?;
        if world.boot() != self.boot {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        let host = world.current();
        world.with_network(|network, _| network.accept(host, self.address.port(), waker))
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let closed = DroppedObject::Listener { boot: self.boot, port: self.address.port() };
        context::with_sim(|world| world.close(closed));
    }
}
