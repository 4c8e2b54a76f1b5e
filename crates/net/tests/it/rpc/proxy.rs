//! A network path that can be cut.

use parking_lot::Mutex;
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Forwards connections to a server.
pub struct Proxy {
    pub address: SocketAddr,
    /// Client's and server's ends of each connection, in the order in which they were made.
    pairs: Arc<Mutex<Vec<(TcpStream, TcpStream)>>>,
    /// Connections with lower numbers discard all data.
    frozen: Arc<AtomicUsize>,
}

impl Proxy {
    pub fn to(server: SocketAddr) -> Proxy {
        Proxy::with_pieces(server, |number| number)
    }

    /// A proxy that forwards data in pieces; `piece` returns the length of the next one, given the
    /// number of available bytes.
    pub fn with_pieces(server: SocketAddr, piece: fn(usize) -> usize) -> Proxy {
        Proxy::start(server, piece, usize::MAX)
    }

    /// A proxy that discards all data beyond this many bytes in each direction of a connection;
    /// connections stay open.
    pub fn that_chokes(server: SocketAddr, bytes: usize) -> Proxy {
        Proxy::start(server, |number| number, bytes)
    }

    fn start(server: SocketAddr, piece: fn(usize) -> usize, limit: usize) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let pairs: Arc<Mutex<Vec<(TcpStream, TcpStream)>>> = Arc::default();
        let made = pairs.clone();
        let frozen = Arc::new(AtomicUsize::new(0));
        let ice = frozen.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let Ok(server) = TcpStream::connect(server) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (ice, number) = (ice.clone(), made.lock().len());
                    std::thread::spawn(move || {
                        let passed = Cell::new(0);
                        let swallows = |bytes| {
                            passed.set(passed.get() + bytes);
                            number < ice.load(Ordering::SeqCst) || passed.get() > limit
                        };
                        forward(from, to, piece, &swallows)
                    });
                }
                made.lock().push((client, server));
            }
        });
        Proxy { address, pairs, frozen }
    }

    /// Number of connections made so far.
    pub fn connections(&self) -> usize {
        self.pairs.lock().len()
    }

    /// Discards all further data on existing connections; they stay open.
    pub fn freeze(&self) {
        self.frozen.store(self.connections(), Ordering::SeqCst);
    }

    /// Cuts the newest connection at the client's end; the server doesn't notice.
    pub fn cut_client(&self) {
        self.pairs.lock().last().unwrap().0.shutdown(Shutdown::Both).unwrap();
    }

    /// Cuts the newest connection at both ends.
    pub fn cut(&self) {
        let pairs = self.pairs.lock();
        let (client, server) = pairs.last().unwrap();
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    }
}

fn forward(
    mut from: TcpStream,
    mut to: TcpStream,
    piece: fn(usize) -> usize,
    swallows: &dyn Fn(usize) -> bool,
) {
    to.set_nodelay(true).unwrap();
    let mut buf = vec![0; 64 << 10];
    while let Ok(got @ 1..) = from.read(&mut buf) {
        let mut rest = &buf[..got];
        while !rest.is_empty() {
            let (first, others) = rest.split_at(piece(rest.len()).clamp(1, rest.len()));
            if swallows(first.len()) {
                break;
            }
            if to.write_all(first).is_err() {
                return;
            }
            rest = others;
        }
    }
}
