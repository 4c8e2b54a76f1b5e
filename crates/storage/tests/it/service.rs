//! The service as a client sees it.

use chunkstore::Store;
use net::{Channel, Handler};
use rt::IoBuf;
use rt::sim::Machine;
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use storage::{Counters, ServingLease, StorageService};
use testkit::targets;
use types::{ByteRange, ChunkFileId, Errno, Result, SessionId, TargetId};
use wire::{AllocateMode, DataPath as Way, SeekTarget, StorageOp, StorageReply, StorageRequest};

const INO: ChunkFileId = ChunkFileId(9);
/// Names of the entries of a target's directory.
const SUPERBLOCK: &str = "target.toml";
const CHUNKS: &str = "chunks";

async fn store(dir: &Path, target: u32) -> Arc<Store> {
    let dir = dir.join(target.to_string());
    targets::create(&dir, TargetId(target), 0).await
}

/// Runs a test with a service of targets 1 and 2.
fn with_service<F: Future<Output = ()>>(
    test: impl FnOnce(Arc<StorageService>, std::path::PathBuf) -> F + 'static,
) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    let run = async move {
        let stores = [store(&path, 1).await, store(&path, 2).await];
        test(Arc::new(StorageService::new(stores)), path).await;
    };
    rt::block_on(run).unwrap();
}

async fn ask(
    service: &Arc<StorageService>,
    target: u32,
    op: StorageOp,
    payload: Option<IoBuf>,
) -> Result<StorageReply> {
    ask_as(service, SessionId(0), target, op, payload).await
}

async fn ask_as(
    service: &Arc<StorageService>,
    session: SessionId,
    target: u32,
    op: StorageOp,
    payload: Option<IoBuf>,
) -> Result<StorageReply> {
    let service: Arc<dyn Handler<StorageRequest, StorageReply>> = service.clone();
    let request = StorageRequest::new(session, TargetId(target), INO, op);
    Channel::in_process(service).call(request, payload).await
}

/// A client that reconnects before its node has opened all targets is not refused.
#[test]
fn a_request_waits_for_the_targets_of_a_start() {
    let run = async move {
        let service = Arc::new(StorageService::under_lease(Arc::new(ServingLease::forever())));
        let early = service.clone();
        let answer = Rc::new(RefCell::new(None));
        let told = answer.clone();
        rt::spawn(async move {
            let answer = ask_as(&early, SessionId(5), 1, StorageOp::Stat, None).await;
            *told.borrow_mut() = Some(answer);
        });
        rt::sleep(Duration::from_millis(20)).await;
        assert!(answer.borrow().is_none());
        service.add(store(Path::new(targets::SIMULATED_DIR), 1).await).unwrap();
        service.open_to_clients(TargetId(1));
        service.set_targets_complete();
        while answer.borrow().is_none() {
            rt::sleep(Duration::from_millis(1)).await;
        }
        assert!(matches!(*answer.borrow(), Some(Ok(StorageReply::Stat { len: 0, .. }))));
        let missing = ask_as(&service, SessionId(5), 2, StorageOp::Stat, None).await;
        assert_eq!(missing.unwrap_err().errno, Errno::ENODEV);
    };
    Machine::new(1).run(run).unwrap();
}

#[test]
fn an_ended_session_is_refused_after_its_last_write_is_in() {
    with_service(|service, _| async move {
        let write = || StorageOp::Write { offset: 0, path: Way::Direct, durable: true };
        let (ended, other) = (SessionId(5), SessionId(6));
        let running = async {
            let data = IoBuf::from_slice(&[5; 1 << 20]);
            ask_as(&service, ended, 1, write(), Some(data)).await.unwrap();
        };
        let fence = async {
            ask(&service, 2, StorageOp::Fence { session: ended }, None).await.unwrap();
            // The fence applies to all targets, and running requests have ended.
            let Ok(StorageReply::Stat { len, .. }) = ask(&service, 1, StorageOp::Stat, None).await else {
                panic!("a stat is answered")
            };
            assert_eq!(len, 1 << 20);
        };
        let steps: Vec<std::pin::Pin<Box<dyn Future<Output = ()>>>> =
            vec![Box::pin(running), Box::pin(fence)];
        rt::join_all(steps).await;
        let late = ask_as(&service, ended, 1, write(), Some(IoBuf::from_slice(&[6; 4096]))).await;
        assert_eq!(late.unwrap_err().errno, Errno::ESTALE);
        ask_as(&service, other, 1, write(), Some(IoBuf::from_slice(&[7; 4096]))).await.unwrap();
    });
}

#[test]
fn every_request_has_its_answer() {
    with_service(|service, _| async move {
        let data = IoBuf::from_slice(&[5; 10_000]);
        let write = StorageOp::Write { offset: 0, path: Way::Direct, durable: true };
        assert!(matches!(ask(&service, 1, write, Some(data)).await, Ok(StorageReply::Done { .. })));
        let punch = StorageOp::Allocate { range: ByteRange::new(0, 4096), how: AllocateMode::Punch };
        assert!(matches!(ask(&service, 1, punch, None).await, Ok(StorageReply::Done { .. })));
        assert!(matches!(
            ask(&service, 1, StorageOp::Truncate { len: 9000 }, None).await,
            Ok(StorageReply::Done { .. })
        ));
        assert!(matches!(ask(&service, 1, StorageOp::Sync, None).await, Ok(StorageReply::Done { .. })));
        let seek = StorageOp::Seek { from: 0, what: SeekTarget::Data };
        assert_eq!(ask(&service, 1, seek, None).await, Ok(StorageReply::Offset(Some(4096))));
        let Ok(StorageReply::Stat { len: 9000, .. }) = ask(&service, 1, StorageOp::Stat, None).await else {
            panic!("the length is what it was cut to")
        };
        let found = IoBuf::alloc(10_000);
        let read = StorageOp::Read { offset: 0, path: Way::Cached };
        assert_eq!(ask(&service, 1, read.clone(), Some(found.clone())).await, Ok(StorageReply::Unit));
        let expected = [vec![0; 4096], vec![5; 9000 - 4096], vec![0; 1000]].concat();
        assert_eq!(found.as_slice(), expected);
        // The other target has no chunk file of this inode.
        assert_eq!(ask(&service, 2, read, Some(found.clone())).await, Ok(StorageReply::Unit));
        assert_eq!(found.as_slice(), [0; 10_000]);
        assert!(matches!(ask(&service, 1, StorageOp::Delete, None).await, Ok(StorageReply::Done { .. })));
        assert!(matches!(ask(&service, 1, StorageOp::SyncTarget, None).await, Ok(StorageReply::Done { .. })));
        let Ok(StorageReply::Space { capacity, free }) = ask(&service, 1, StorageOp::Space, None).await
        else {
            panic!("space is answered with space")
        };
        assert!(free <= capacity && capacity > 0);
        assert_eq!(service.counters(TargetId(1)), Some(Counters { requests: 10, ..Counters::default() }));
    });
}

#[test]
fn errors_name_target_and_remedy() {
    with_service(|service, path| async move {
        let data = IoBuf::from_slice(&[5; 4096]);
        let write = StorageOp::Write { offset: 0, path: Way::Direct, durable: true };
        ask(&service, 2, write.clone(), Some(data.clone())).await.unwrap();
        let mut folder = path.join("2/chunks");
        while folder.is_dir() {
            let entry = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
            folder = entry.filter(|path| path.extension().is_none()).last().unwrap();
        }
        std::fs::write(folder, [6; 4096]).unwrap();
        let read = StorageOp::Read { offset: 0, path: Way::Direct };
        let error = ask(&service, 2, read, Some(data.clone())).await.unwrap_err();
        assert_eq!(error.errno, Errno::EIO);
        assert!(error.message.contains("target 2") && error.message.contains("0..4096"), "{error}");
        assert!(!error.hint.is_empty());
        assert_eq!(service.counters(TargetId(2)).unwrap().io_errors, 1);

        let beyond = StorageOp::Write { offset: u64::MAX - 100, path: Way::Cached, durable: false };
        assert_eq!(ask(&service, 1, beyond, Some(data)).await.unwrap_err().errno, Errno::EFBIG);
        assert_eq!(ask(&service, 1, write, None).await.unwrap_err().errno, Errno::EINVAL);
        let unknown = ask(&service, 3, StorageOp::Stat, None).await.unwrap_err();
        assert_eq!(unknown.errno, Errno::ENODEV);
        assert!(unknown.message.contains("target 3"), "{unknown}");
    });
}

/// Damage of a file with one replica can't be repaired, but is reported.
#[test]
fn a_scrub_reports_damaged_and_missing_files() {
    with_service(|service, path| async move {
        for target in [1, 2] {
            let op = StorageOp::Write { offset: 0, path: Way::Cached, durable: true };
            ask(&service, target, op, Some(IoBuf::from_slice(&[7; 20_000]))).await.unwrap();
        }
        for store in service.stores() {
            store.maintain(0).await.unwrap();
            store.maintain(0).await.unwrap();
        }
        let file = |target: u32| Store::chunk_file_path(&path.join(target.to_string()), INO);
        let mut bytes = std::fs::read(file(1)).unwrap();
        bytes[5000] ^= 1;
        std::fs::write(file(1), &bytes).unwrap();
        std::fs::remove_file(file(2)).unwrap();
        let mut map = types::ClusterMap::default();
        map.settings.scrub.asked = 1;
        let handle = types::MapHandle::new(map);
        rt::spawn(StorageService::run_scrubs(service.clone(), handle));
        while service.scrubs().len() < 2 || service.scrubs().iter().any(|p| p.asked == 0 || p.is_running) {
            rt::sleep(Duration::from_millis(20)).await;
        }
        let told: Vec<(u64, u64, u64)> =
            service.scrubs().iter().map(|p| (p.damaged, p.mended, p.missing)).collect();
        assert_eq!(told, [(1, 0, 0), (0, 0, 1)]);
        assert!(service.scrubs()[0].bytes_done >= 20_000 && service.scrubs()[0].ended_s > 0);
        assert!(path.join("1/scrub.json").exists(), "it is kept for the next start");
        // A read that finds a chunk file of known length missing counts it from then on.
        let read = StorageOp::Read { offset: 0, path: Way::Cached };
        let lost = ChunkFileId(INO.0 + 1);
        let request = StorageRequest {
            length_bound: 5000,
            ..StorageRequest::new(SessionId(5), TargetId(1), lost, read)
        };
        let error = service.handle(request, Some(IoBuf::alloc(4096))).await.unwrap_err();
        assert_eq!(error.errno, Errno::EIO, "{error}");
        assert_eq!(service.scrubs()[0].missing, 1);
    });
}

/// Acts like `umount -l`: the path shows the empty directory below the mount point.
fn unmount(dir: &Path) {
    std::fs::rename(dir, dir.with_extension("away")).unwrap();
    std::fs::create_dir(dir).unwrap();
}

/// Mounts it again; nothing may have been written to the mount point meanwhile.
fn mount(dir: &Path) {
    std::fs::remove_dir(dir).unwrap();
    std::fs::rename(dir.with_extension("away"), dir).unwrap();
}

/// Without another replica, a file that can't be found must neither read as zeros nor be changed.
#[test]
fn a_target_whose_disk_is_gone_answers_nothing_until_it_is_back() {
    with_service(|service, path| async move {
        let write = || StorageOp::Write { offset: 0, path: Way::Cached, durable: true };
        let read = || StorageOp::Read { offset: 0, path: Way::Cached };
        let one = TargetId(1);
        for target in [1, 2] {
            ask(&service, target, write(), Some(IoBuf::from_slice(&[7; 5000]))).await.unwrap();
        }
        service.check_target(one).await;
        assert!(service.is_available(one));
        let of = |ino: u64, op: StorageOp, payload: Option<IoBuf>| {
            let handler: Arc<dyn Handler<StorageRequest, StorageReply>> = service.clone();
            let request = StorageRequest::new(SessionId(0), one, ChunkFileId(ino), op);
            async move { Channel::in_process(handler).call(request, payload).await }
        };
        unmount(&path.join("1"));
        // The first lookup that ends elsewhere takes the whole target offline, including open
        // files.
        for (ino, op, payload) in [
            (50, read(), Some(IoBuf::alloc(100))),
            (INO.0, read(), Some(IoBuf::alloc(100))),
            (INO.0, write(), Some(IoBuf::alloc(100))),
            (INO.0, StorageOp::SyncTarget, None),
            (50, StorageOp::Stat, None),
            (50, StorageOp::Delete, None),
            (0, StorageOp::Regions { from: ChunkFileId(0), which: wire::RegionSelection::All }, None),
            (0, StorageOp::Space, None),
        ] {
            let error = of(ino, op.clone(), payload).await.unwrap_err();
            assert_eq!(error.errno, Errno::EIO, "{op:?}: {error}");
            assert!(error.message.contains("target 1 is offline") && error.hint.contains("mount"), "{error}");
        }
        of(0, StorageOp::Fence { session: SessionId(77) }, None).await.unwrap();
        assert!(!service.is_available(one) && service.is_available(TargetId(2)));
        service.check_target(one).await;
        assert!(!service.is_available(one));
        ask(&service, 2, StorageOp::Stat, None).await.unwrap();
        mount(&path.join("1"));
        service.check_target(one).await;
        assert!(service.is_available(one));
        let buf = IoBuf::alloc(5000);
        of(INO.0, read(), Some(buf.clone())).await.unwrap();
        assert!(buf.as_slice().iter().all(|byte| *byte == 7));
    });
}

/// The periodic check finds it without any request.
#[test]
fn a_vanished_disk_is_detected_without_requests() {
    with_service(|service, path| async move {
        rt::spawn(StorageService::run_target_checks(service.clone()));
        let write = StorageOp::Write { offset: 0, path: Way::Cached, durable: false };
        ask(&service, 1, write, Some(IoBuf::from_slice(&[7; 5000]))).await.unwrap();
        unmount(&path.join("1"));
        // The file is open, so no request looks it up.
        while ask(&service, 1, StorageOp::Stat, None).await.is_ok() {
            rt::sleep(Duration::from_millis(20)).await;
        }
        mount(&path.join("1"));
        while ask(&service, 1, StorageOp::Stat, None).await.is_err() {
            rt::sleep(Duration::from_millis(20)).await;
        }
        ask(&service, 2, StorageOp::Stat, None).await.unwrap();
    });
}

#[test]
fn a_scrub_of_a_target_without_its_disk_reports_nothing() {
    search_in_vain(unmount, mount);
}

/// The disk in its place is a copy of it from before anything was written.
#[test]
fn a_scrub_of_a_swapped_disk_reports_nothing() {
    let swap = |dir: &Path| {
        unmount(dir);
        std::fs::copy(dir.with_extension("away").join(SUPERBLOCK), dir.join(SUPERBLOCK)).unwrap();
        std::fs::create_dir(dir.join(CHUNKS)).unwrap();
    };
    let swap_back = |dir: &Path| {
        std::fs::remove_file(dir.join(SUPERBLOCK)).unwrap();
        std::fs::remove_dir(dir.join(CHUNKS)).unwrap();
        mount(dir);
    };
    search_in_vain(swap, swap_back);
}

/// All files are those that were opened, but the superblock names another target.
#[test]
fn a_scrub_of_a_foreign_superblock_reports_nothing() {
    let write = |dir: &Path, from: &str, to: &str| {
        let path = dir.join(SUPERBLOCK);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, text.replace(from, to)).unwrap();
    };
    let (one, other) = ("target = 1\n", "target = 4\n");
    search_in_vain(move |dir| write(dir, one, other), move |dir| write(dir, other, one));
}

/// Scrubs a target whose directory has been replaced: the scrub reports nothing, and writes nothing
/// there.
fn search_in_vain(change: impl FnOnce(&Path) + 'static, change_back: impl FnOnce(&Path) + 'static) {
    with_service(move |service, path| async move {
        let dir = path.join("1");
        let op = StorageOp::Write { offset: 0, path: Way::Cached, durable: true };
        ask(&service, 1, op, Some(IoBuf::from_slice(&[7; 20_000]))).await.unwrap();
        change(&dir);
        let mut map = types::ClusterMap::default();
        map.settings.scrub.asked = 1;
        let handle = types::MapHandle::new(map);
        rt::spawn(StorageService::run_scrubs(service.clone(), handle));
        let progress = || service.scrubs().into_iter().find(|p| p.target == TargetId(1)).unwrap_or_default();
        while progress().hindrance.is_none() && progress().ended_s == 0 {
            rt::sleep(Duration::from_millis(20)).await;
        }
        let told = progress();
        assert!(told.hindrance.as_ref().is_some_and(|why| why.contains("target 1 is offline")), "{told:?}");
        assert_eq!((told.ended_s, told.missing, told.files_done), (0, 0, 0));
        assert!(!dir.join("scrub.json").exists(), "it keeps how far it is in what isn't the store");
        // An unmounted directory has to be empty.
        change_back(&dir);
    });
}
