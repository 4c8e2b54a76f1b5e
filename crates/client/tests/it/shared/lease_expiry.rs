//! A client that is cut off from the metadata service, and doesn't know whether its session has
//! been ended.

use super::cluster::{Application, RDONLY, RDWR, ROOT, with_cluster};
use super::kernel_caches::Kernel;
use client::Invalidate;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use types::{Errno, Error, InodeId};

#[test]
fn an_expired_lease_serves_nothing_from_cache() {
    with_cluster(|cluster| async move {
        let (lonely, way) = cluster.client_with_cuttable_meta().await;
        let kernel = Arc::new(Kernel::default());
        let face: Arc<dyn Invalidate> = kernel.clone();
        lonely.set_invalidator(Arc::downgrade(&face));
        let other = cluster.client().await;
        let file = other.create_file("f").await;
        other.fill(&file, 0, 10, b'x').await;
        let open = lonely.open_named("f", RDONLY).await;
        assert_eq!(lonely.read_all(&open).await, [b'x'; 10]);
        rt::sleep(Duration::from_secs(2)).await;
        kernel.dropped.lock().clear();

        way.cut();
        // The cached state is valid as long as no other session could get the lease.
        assert_eq!(lonely.read_all(&open).await, [b'x'; 10]);
        let writer = other.open(ROOT, file.ino(), RDWR).await.unwrap();
        let written = Rc::new(RefCell::new(None));
        let (client, done) = (other.clone(), written.clone());
        rt::spawn(async move {
            client.fill(&writer, 0, 10, b'y').await;
            *done.borrow_mut() = Some(rt::monotonic_ns());
        });
        let seen = Rc::new(RefCell::new(None));
        let (client, told) = (lonely.clone(), seen.clone());
        let handle = open.clone();
        rt::spawn(async move {
            rt::sleep(Duration::from_secs(13)).await;
            let read = client.try_read_all(&handle).await;
            *told.borrow_mut() = Some(read);
        });
        while written.borrow().is_none() {
            rt::sleep(Duration::from_millis(10)).await;
        }
        let written_ns = written.borrow().unwrap_or_default();
        let forgotten = kernel.dropped.lock().clone();
        assert!(
            forgotten.iter().any(|&(ino, at)| ino == file.ino() && at < written_ns),
            "the kernel kept pages: {forgotten:?}, written at {written_ns}"
        );
        assert!(seen.borrow().is_none(), "a read was answered: {:?}", seen.borrow());

        way.restore();
        while seen.borrow().is_none() {
            rt::sleep(Duration::from_millis(10)).await;
        }
        let read = seen.borrow_mut().take();
        assert_eq!(read.map(|read| read.unwrap_err().errno), Some(Errno::ESTALE));
    });
}

/// As for a process that was stopped: the first thing that it finds is an answer from before.
#[test]
fn an_old_answer_does_not_extend_leases() {
    with_cluster(|cluster| async move {
        let (lonely, way) = cluster.client_with_cuttable_meta().await;
        let other = cluster.client().await;
        let file = other.create_file("f").await;
        other.fill(&file, 0, 10, b'x').await;
        let open = lonely.open_named("f", RDONLY).await;
        assert_eq!(lonely.read_all(&open).await, [b'x'; 10]);
        way.cut();
        // Until the service has answered the request for recalls, without any.
        rt::sleep(Duration::from_secs(14)).await;
        let read = Rc::new(RefCell::new(None));
        let (client, told) = (lonely.clone(), read.clone());
        rt::spawn(async move { *told.borrow_mut() = Some(client.try_read_all(&open).await) });
        other.fill(&file, 0, 10, b'y').await;
        way.restore();
        while read.borrow().is_none() {
            rt::sleep(Duration::from_millis(10)).await;
        }
        let read = read.borrow_mut().take();
        assert_eq!(read.map(|read| read.unwrap_err().errno), Some(Errno::ESTALE));
    });
}

/// Many pages wait for the service while an application reads a set of files; the caches of all
/// other files are dropped in time.
#[test]
fn stuck_files_do_not_delay_dropping_others() {
    const FILES: usize = 1280;
    with_cluster(|cluster| async move {
        let (lonely, way) = cluster.client_with_cuttable_meta().await;
        let kernel = Arc::new(Kernel::default());
        let face: Arc<dyn Invalidate> = kernel.clone();
        lonely.set_invalidator(Arc::downgrade(&face));
        let other = cluster.client().await;
        for i in 0..FILES {
            let file = other.create_file(&format!("f{i}")).await;
            other.release(file).await;
        }
        let mut known = Vec::new();
        for i in 0..FILES {
            let name = format!("f{i}");
            known.push(lonely.lookup(ROOT, InodeId::ROOT, name.as_bytes()).await.unwrap().ino);
        }
        // After a recall, the service grants no lease for a while.
        rt::sleep(Duration::from_secs(3)).await;
        for ino in &known {
            assert!(lonely.getattr(*ino).await.unwrap().cacheable);
        }
        let stuck = known.iter().copied().step_by(40);
        kernel.stuck.lock().extend(stuck);
        kernel.dropped.lock().clear();
        way.cut();
        rt::sleep(Duration::from_secs(14)).await;
        let forgotten: BTreeSet<InodeId> = kernel.dropped.lock().iter().map(|(ino, _)| *ino).collect();
        let missing = known.iter().filter(|ino| !forgotten.contains(ino)).count();
        assert_eq!(missing, kernel.stuck.lock().len(), "others had to wait");
        way.restore();
    });
}

#[test]
fn a_short_disconnection_ends_no_lease() {
    with_cluster(|cluster| async move {
        let (lonely, way) = cluster.client_with_cuttable_meta().await;
        let file = lonely.create_file("f").await;
        lonely.fill(&file, 0, 100_000, b'x').await;
        way.cut();
        rt::sleep(Duration::from_secs(14)).await;
        let read = Rc::new(RefCell::new(None));
        let (client, handle, told) = (lonely.clone(), file.clone(), read.clone());
        rt::spawn(async move {
            let bytes = client.try_read_all(&handle).await;
            *told.borrow_mut() = Some(bytes);
        });
        rt::sleep(Duration::from_secs(3)).await;
        assert!(read.borrow().is_none(), "it waits");
        way.restore();
        while read.borrow().is_none() {
            rt::sleep(Duration::from_millis(10)).await;
        }
        let bytes = read.borrow_mut().take();
        assert_eq!(bytes.map(|bytes| bytes.unwrap().len()), Some(100_000));
        lonely.fill(&file, 0, 10, b'y').await;
    });
}

/// For example a client whose certificate has been revoked.
#[test]
fn a_refused_client_fails_at_once_and_recovers() {
    with_cluster(|cluster| async move {
        let (refused, way) = cluster.client_with_cuttable_meta().await;
        let file = refused.create_file("f").await;
        refused.fill(&file, 0, 10, b'x').await;
        assert_eq!(refused.read_all(&file).await, [b'x'; 10]);
        let refusal =
            Error::new(Errno::EACCES, "this member was removed").hint("ask for another certificate");
        way.refuse(Some(refusal.clone()));
        rt::sleep(Duration::from_secs(20)).await;
        let asked_ns = rt::monotonic_ns();
        assert_eq!(refused.try_read_all(&file).await.unwrap_err(), refusal);
        assert_eq!(refused.lookup(ROOT, InodeId::ROOT, b"f").await.unwrap_err(), refusal);
        let waited = Duration::from_nanos(rt::monotonic_ns() - asked_ns);
        assert!(waited < Duration::from_secs(1), "{waited:?} on the simulated clock");
        way.refuse(None);
        rt::sleep(Duration::from_secs(3)).await;
        assert_eq!(refused.read_all(&file).await, [b'x'; 10]);
    });
}

/// The same after a restart of the service, which doesn't know the session yet.
#[test]
fn a_client_refused_at_registration_fails_at_once() {
    with_cluster(|cluster| async move {
        let (refused, way) = cluster.client_with_cuttable_meta().await;
        let file = refused.create_file("f").await;
        refused.fill(&file, 0, 10, b'x').await;
        let refusal =
            Error::new(Errno::EACCES, "this member was removed").hint("ask for another certificate");
        way.refuse(Some(refusal.clone()));
        cluster.restart_metadata().await;
        rt::sleep(Duration::from_secs(20)).await;
        let asked_ns = rt::monotonic_ns();
        assert_eq!(refused.try_read_all(&file).await.unwrap_err(), refusal);
        let waited = Duration::from_nanos(rt::monotonic_ns() - asked_ns);
        assert!(waited < Duration::from_secs(1), "{waited:?} on the simulated clock");
    });
}
