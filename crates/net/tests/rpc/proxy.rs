//! A wire that can be cut.

use parking_lot::Mutex;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

/// Forwards connections to a server.
pub struct Proxy {
    pub address: SocketAddr,
    /// Pairs of client's and server's ends, in the order of their making.
    pairs: Arc<Mutex<Vec<(TcpStream, TcpStream)>>>,
}

impl Proxy {
    pub fn to(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let pairs: Arc<Mutex<Vec<(TcpStream, TcpStream)>>> = Arc::default();
        let made = pairs.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let Ok(server) = TcpStream::connect(server) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || forward(from, to));
                }
                made.lock().push((client, server));
            }
        });
        Proxy { address, pairs }
    }

    /// Connections that were made so far.
    pub fn connections(&self) -> usize {
        self.pairs.lock().len()
    }

    /// Cuts the newest connection at the client's end; the server doesn't learn of it.
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

fn forward(mut from: TcpStream, mut to: TcpStream) {
    let mut buf = vec![0; 64 << 10];
    while let Ok(got @ 1..) = from.read(&mut buf) {
        if to.write_all(&buf[..got]).is_err() {
            return;
        }
    }
}
