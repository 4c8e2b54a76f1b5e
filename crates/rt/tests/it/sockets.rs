//! Real stream sockets on the ring.
#![allow(unsafe_code)] // One system call is raw.

use rt::IoBuf;
use rt::net::{Address, Listener, Socket};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);

async fn pair() -> (Socket, Socket) {
    let listener = Listener::bind(Address::Inet("127.0.0.1:0".parse().unwrap())).unwrap();
    let address = listener.local_addr().unwrap();
    let both = rt::join_all(vec![
        Box::pin(async { Socket::connect(address, LIMIT).await.unwrap() })
            as std::pin::Pin<Box<dyn Future<Output = Socket>>>,
        Box::pin(async { listener.accept().await.unwrap().0 }),
    ]);
    let mut both = both.await.into_iter();
    (both.next().unwrap(), both.next().unwrap())
}

fn pattern(len: usize) -> IoBuf {
    let bytes: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
    IoBuf::from_slice(&bytes)
}

#[test]
fn bytes_arrive_in_order_however_they_are_cut() {
    rt::block_on(async {
        let (here, there) = pair().await;
        // More than the kernel buffers at once, in more pieces than one system call takes.
        let whole = pattern(24 << 20);
        let mut cut: Vec<IoBuf> = (0..1500).map(|i| whole.slice(i * 1000..(i + 1) * 1000)).collect();
        cut.push(IoBuf::alloc(0));
        cut.push(whole.slice(1_500_000..whole.len()));
        rt::spawn(async move {
            here.send(cut).await.unwrap();
            here.send(vec![]).await.unwrap();
            here.send(vec![IoBuf::from_slice(b"end")]).await.unwrap();
        });
        let received = IoBuf::alloc(whole.len());
        there.recv_exact(received.clone()).await.unwrap();
        assert!(received.as_slice() == whole.as_slice());
        let tail = IoBuf::alloc(100);
        assert_eq!(there.recv(tail.clone()).await.unwrap(), 3);
        assert_eq!(&tail.as_slice()[..3], b"end");
        assert_eq!(there.recv(tail.clone()).await.unwrap(), 0);
        assert_eq!(there.recv_exact(tail).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    })
    .unwrap();
}

#[test]
fn a_shutdown_ends_the_receive_of_another_task() {
    rt::block_on(async {
        let (here, _there) = pair().await;
        let here = Rc::new(here);
        let other = here.clone();
        rt::spawn(async move {
            rt::yield_now().await;
            other.shutdown();
        });
        assert_eq!(here.recv(IoBuf::alloc(10)).await.unwrap(), 0);
        assert!(here.send(vec![IoBuf::alloc(10)]).await.is_err());
    })
    .unwrap();
}

#[test]
fn a_receive_that_is_given_up_takes_nothing_later() {
    rt::block_on(async {
        let (here, there) = pair().await;
        assert!(rt::timeout(Duration::from_millis(5), here.recv(IoBuf::alloc(4096))).await.is_none());
        rt::sleep(Duration::from_millis(5)).await; // The cancellation has run.
        there.send(vec![IoBuf::from_slice(b"late")]).await.unwrap();
        let buf = IoBuf::alloc(4);
        here.recv_exact(buf.clone()).await.unwrap();
        assert_eq!(buf.as_slice(), b"late");
    })
    .unwrap();
}

#[test]
fn a_refused_connection_is_an_error_and_an_unanswered_one_times_out() {
    rt::block_on(async {
        let address =
            Listener::bind(Address::Inet("127.0.0.1:0".parse().unwrap())).unwrap().local_addr().unwrap();
        let refused = Socket::connect(address, LIMIT).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        // A full backlog of a Unix listener makes further connections wait.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("full");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        // SAFETY: a plain system call on an open descriptor; it shortens the backlog.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let mut waiting = Vec::new();
        let late = loop {
            match Socket::connect(path.clone(), Duration::from_millis(20)).await {
                Ok(socket) => waiting.push(socket),
                Err(e) => break e,
            }
        };
        assert_eq!(late.raw_os_error(), Some(libc::ETIMEDOUT));
    })
    .unwrap();
}

#[test]
fn a_connection_moves_to_another_core() {
    let (to_other, from_here) = std::sync::mpsc::channel();
    let other = rt::start_core(
        rt::CoreConfig { name: "other".into(), cpu: None, batch: false },
        move || async move {
            let socket = Socket::from_fd(from_here.recv().unwrap());
            let buf = IoBuf::alloc(5);
            socket.recv_exact(buf.clone()).await.unwrap();
            socket.send(vec![buf]).await.unwrap();
        },
    )
    .unwrap();
    rt::block_on(async move {
        let (here, there) = pair().await;
        to_other.send(there.into_fd().unwrap()).unwrap();
        here.send(vec![IoBuf::from_slice(b"ab"), IoBuf::from_slice(b"cde")]).await.unwrap();
        let buf = IoBuf::alloc(5);
        here.recv_exact(buf.clone()).await.unwrap();
        assert_eq!(buf.as_slice(), b"abcde");
    })
    .unwrap();
    other.join().unwrap();
}

#[test]
fn paths_work_like_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    rt::block_on(async move {
        let listener = Listener::bind(path.clone()).unwrap();
        assert_eq!(listener.local_addr().unwrap(), Address::Unix(path.clone()));
        assert!(Listener::bind(path.clone()).is_err());
        let here = Socket::connect(path.clone(), LIMIT).await.unwrap();
        let (there, from) = listener.accept().await.unwrap();
        assert_eq!(from.to_string(), "unix");
        assert_eq!(here.peer_addr().unwrap(), Address::Unix(path));
        here.send(vec![IoBuf::from_slice(b"x")]).await.unwrap();
        assert_eq!(there.recv(IoBuf::alloc(9)).await.unwrap(), 1);
    })
    .unwrap();
}

/// A Unix connection by abstract name.
async fn named_pair(name: &str) -> (Socket, Socket) {
    let listener = Listener::bind(Address::Abstract(name.into())).unwrap();
    assert_eq!(listener.local_addr().unwrap(), Address::Abstract(name.into()));
    let here = Socket::connect(Address::Abstract(name.into()), LIMIT).await.unwrap();
    let (there, from) = listener.accept().await.unwrap();
    assert_eq!(from, Address::Unix("".into()));
    (here, there)
}

#[test]
fn descriptors_travel_over_unix_sockets() {
    rt::block_on(async {
        let (here, there) = named_pair(&format!("weft-test-{:x}", rt::random_u64())).await;
        // SAFETY: a plain system call.
        assert_eq!(here.peer_user().unwrap(), unsafe { libc::geteuid() });
        let (memory, fd) = rt::SharedMemory::create(8192).unwrap();
        memory.copy_in(5, &IoBuf::from_slice(b"over there"));
        here.send_fd(fd).await.unwrap();
        here.send(vec![IoBuf::from_slice(b"and a byte without")]).await.unwrap();
        let theirs = rt::SharedMemory::open(there.recv_fd().await.unwrap(), 8192).unwrap();
        let seen = IoBuf::alloc(10);
        theirs.copy_out(5, &seen);
        assert_eq!(seen.as_slice(), b"over there");
        assert_eq!(there.recv_fd().await.unwrap_err().kind(), ErrorKind::InvalidData);
        drop(here);
        there.recv_exact(IoBuf::alloc(17)).await.unwrap();
        assert_eq!(there.recv_fd().await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    })
    .unwrap();
}

/// Number of open descriptors of sockets and shared memory. Files are not counted: other tests of
/// this process open hundreds of them at a time.
fn open_descriptors() -> usize {
    let links =
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    links
        .filter(|to| ["socket:", "/memfd:"].iter().any(|kind| to.to_string_lossy().starts_with(kind)))
        .count()
}

#[test]
fn an_unreceived_descriptor_is_closed() {
    // Other tests of this process open and close descriptors, too, so the test checks for growth
    // over many rounds.
    let before = open_descriptors();
    rt::block_on(async {
        for _ in 0..200 {
            let (here, there) = named_pair(&format!("weft-test-{:x}", rt::random_u64())).await;
            let receive = std::rc::Rc::new(there);
            let waiting = receive.clone();
            // Dropped while it waits; the descriptor may arrive before the kernel knows that.
            let given_up = rt::timeout(Duration::from_micros(50), async move { waiting.recv_fd().await });
            let (_, fd) = rt::SharedMemory::create(4096).unwrap();
            let sent = async { here.send_fd(fd).await };
            drop(given_up.await);
            let _ = sent.await;
            rt::yield_now().await;
        }
    })
    .unwrap();
    assert!(open_descriptors() < before + 100, "{} after {before}", open_descriptors());
}

#[test]
fn checksums_of_a_buffer_are_discarded_when_it_is_received_into() {
    rt::block_on(async {
        let (one, two) = pair().await;
        two.send(vec![IoBuf::from_slice(&[1; 3 * 4096])]).await.unwrap();
        let buf = IoBuf::alloc(4096);
        for part in [true, false] {
            buf.note_checksums(vec![17]);
            match part {
                true => assert!(one.recv(buf.clone()).await.unwrap() > 0),
                false => one.recv_exact(buf.clone()).await.unwrap(),
            }
            assert_eq!(buf.with_checksums(|sums| sums[0]), None);
        }
    })
    .unwrap();
}
