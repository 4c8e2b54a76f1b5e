//! Inode flags that one client sets apply to all clients.

use super::cluster::{Application, RDONLY, ROOT, with_cluster};
use client::WriteOptions;
use rt::IoBuf;
use std::time::Duration;
use types::{ByteRange, Credentials, Errno, InodeFlags, InodeId};

const WRONLY: u32 = 1;
const O_APPEND: u32 = 0o2000;
/// Modes of `fallocate(2)`.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;
const USER: Credentials = Credentials { uid: 1000, gid: 100, pid: 1 };

#[test]
fn a_file_that_another_client_makes_immutable_is_not_opened_for_writing() {
    with_cluster(|cluster| async move {
        let [one, other] = cluster.clients().await;
        let file = one.create_file("f").await;
        one.fill(&file, 0, 100, b'x').await;
        let ino = file.ino();
        let set = async |flags| other.set_flags(ROOT, ino, flags, None).await.unwrap();
        // Each change recalls the lease of `one`, under which it opens without a request.
        for turn in 0..3 {
            let opened = one.open(ROOT, ino, WRONLY).await.unwrap();
            one.release(opened).await;
            set(InodeFlags::IMMUTABLE).await;
            for client in [&one, &other] {
                let refused = client.open(ROOT, ino, WRONLY | O_APPEND).await;
                assert_eq!(refused.map(drop).unwrap_err().errno, Errno::EPERM, "turn {turn}");
            }
            // A file that was open stays writable.
            one.fill(&file, 0, 50, b'y').await;
            set(InodeFlags::NONE).await;
        }
        one.release(file).await;
    });
}

/// A listing grants leases, and contains no flags.
#[test]
fn flags_are_queried_again_after_a_recall() {
    with_cluster(|cluster| async move {
        let [one, other] = cluster.clients().await;
        let file = other.create_file("f").await;
        let ino = file.ino();
        other.release(file).await;
        let known = one.lookup(ROOT, InodeId::ROOT, b"f").await.unwrap();
        assert_eq!((known.ino, one.getattr(ino).await.unwrap().flags), (ino, InodeFlags::NONE));
        other.set_flags(ROOT, ino, InodeFlags::IMMUTABLE, None).await.unwrap();
        let lists_with_a_lease = async || {
            let listing = one.readdir(InodeId::ROOT, 0, 1000, true).await.unwrap();
            let at = listing.entries.iter().position(|entry| entry.ino == ino).unwrap();
            listing.cacheable_attributes[at]
        };
        // After a recall, the service grants no unrequested lease for a second.
        let mut has_lease = false;
        for _ in 0..10 {
            rt::sleep(Duration::from_secs(1)).await;
            has_lease = lists_with_a_lease().await;
            if has_lease {
                break;
            }
        }
        assert!(has_lease, "the listing brings no lease");
        let refused = one.open(ROOT, ino, WRONLY).await;
        assert_eq!(refused.map(drop).unwrap_err().errno, Errno::EPERM);
    });
}

/// The kernel wants to create a file that it doesn't know, and opens the existing one without
/// checking its flags.
#[test]
fn an_immutable_file_that_is_found_instead_of_being_made_is_not_opened_for_writing() {
    with_cluster(|cluster| async move {
        let [one, other] = cluster.clients().await;
        let file = other.create_file("f").await;
        let set = async |flags| other.set_flags(ROOT, file.ino(), flags, None).await.unwrap();
        let create = async |flags| {
            let made = one.create(ROOT, InodeId::ROOT, b"f", 0o100_644, 0, flags).await;
            made.map(|(_, opened)| opened)
        };
        set(InodeFlags::IMMUTABLE).await;
        assert_eq!(create(WRONLY).await.map(drop).unwrap_err().errno, Errno::EPERM);
        one.release(create(RDONLY).await.unwrap()).await;
        set(InodeFlags::APPEND).await;
        assert_eq!(create(WRONLY).await.map(drop).unwrap_err().errno, Errno::EPERM);
        one.release(create(WRONLY | O_APPEND).await.unwrap()).await;
        set(InodeFlags::NONE).await;
        one.release(create(WRONLY).await.unwrap()).await;
        other.release(file).await;
    });
}

#[test]
fn an_append_only_file_is_only_appended_to() {
    with_cluster(|cluster| async move {
        let [one, other] = cluster.clients().await;
        let file = one.create_file("f").await;
        let ino = file.ino();
        one.fill(&file, 0, 100, b'x').await;
        other.set_flags(ROOT, ino, InodeFlags::APPEND, None).await.unwrap();
        assert_eq!(one.open(ROOT, ino, WRONLY).await.map(drop).unwrap_err().errno, Errno::EPERM);
        let log = one.open(ROOT, ino, WRONLY | O_APPEND).await.unwrap();
        let write = async |how| one.write(&log, 0, IoBuf::from_slice(b"yy"), how).await;
        assert_eq!(write(WriteOptions::default()).await.unwrap_err().errno, Errno::EPERM);
        assert_eq!(write(WriteOptions { append: true, ..WriteOptions::default() }).await.unwrap(), 2);
        for mode in [PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE] {
            let emptied = one.fallocate(&log, mode, ByteRange::new(0, 50)).await;
            assert_eq!(emptied.unwrap_err().errno, Errno::EPERM, "mode {mode:#x}");
        }
        let cut = one.setattr(ROOT, ino, Default::default(), Some(0)).await;
        assert_eq!(cut.unwrap_err().errno, Errno::EPERM);
        assert_eq!(other.getattr(ino).await.unwrap().size, 102);
        one.release(log).await;
        one.release(file).await;
    });
}

#[test]
fn no_async_create_in_an_immutable_directory() {
    with_cluster(|cluster| async move {
        let [one, other] = cluster.clients().await;
        let dir = one.mkdir(ROOT, InodeId::ROOT, b"d", 0o777, 0).await.unwrap().ino;
        let make = async |number: u32| {
            let name = format!("f{number}");
            let (_, file) = one.create(ROOT, dir, name.as_bytes(), 0o100_644, 0, WRONLY).await?;
            one.release(file).await;
            Ok::<(), types::Error>(())
        };
        for number in 0..200 {
            make(number).await.unwrap();
        }
        for (client, flags, number) in
            [(&other, InodeFlags::IMMUTABLE, 200), (&one, InodeFlags::IMMUTABLE, 201)]
        {
            client.set_flags(ROOT, dir, flags, None).await.unwrap();
            assert_eq!(make(number).await.unwrap_err().errno, Errno::EPERM);
            client.set_flags(ROOT, dir, InodeFlags::NONE, None).await.unwrap();
            make(number).await.unwrap();
        }
        let listed = other.readdir(dir, 0, 1000, false).await.unwrap().entries.len();
        assert_eq!(listed, 202);
    });
}

#[test]
fn the_service_refuses_users_what_their_kernel_would() {
    with_cluster(|cluster| async move {
        let [one, _] = cluster.clients().await;
        let dir = one.mkdir(ROOT, InodeId::ROOT, b"d", 0o777, 0).await.unwrap().ino;
        let (known, file) = one.create(USER, dir, b"f", 0o100_644, 0, WRONLY).await.unwrap();
        one.release(file).await;
        one.set_flags(USER, known.ino, InodeFlags::NODUMP, None).await.unwrap();
        let refused = one.set_flags(USER, known.ino, InodeFlags::IMMUTABLE, None).await;
        assert_eq!(refused.unwrap_err().errno, Errno::EPERM);
        assert_eq!(one.getattr(known.ino).await.unwrap().flags, InodeFlags::NODUMP);
    });
}
