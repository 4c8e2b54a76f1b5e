//! A measurement of the hardware runs in the target's own directory and leaves nothing behind.

use chunkstore::{Identity, Options, Store};
use net::Channel;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use storage::StorageService;
use tempfile::TempDir;
use types::{ChunkFileId, Errno, NodeId, Result, SessionId, TargetId};
use wire::{Measure, RateQuantity, StorageOp, StorageReply, StorageRequest};

const TARGET: TargetId = TargetId(3);
const HOUR_MS: u64 = 600_000;

async fn service(dir: &Path) -> Arc<StorageService> {
    let identity = Identity { cluster: "c".into(), target: TARGET };
    Store::format(dir, &identity).await.unwrap();
    let (store, _) = Store::open(dir, &identity, Options::default()).await.unwrap();
    Arc::new(StorageService::new([store]))
}

async fn measure(service: &Arc<StorageService>, what: Measure, milliseconds: u64) -> Result<StorageReply> {
    let op = StorageOp::Measure { what, milliseconds };
    let request = StorageRequest::new(SessionId(0), TARGET, ChunkFileId(0), op);
    Channel::in_process(service.clone()).call(request, None).await
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn with_service<F: Future<Output = ()>>(test: impl FnOnce(Arc<StorageService>) -> F + 'static) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().to_path_buf();
    let run = async move {
        let service = service(&path).await;
        let before = names(&path);
        test(service).await;
        assert_eq!(names(&path), before, "something is left");
    };
    rt::block_on(run).unwrap();
}

#[test]
fn a_drive_gives_four_figures() {
    with_service(|service| async move {
        let answer = measure(&service, Measure::Drive { size: 2 << 20 }, 30).await.unwrap();
        let StorageReply::Rates(rates) = answer else { panic!("{answer:?}") };
        let kinds: Vec<RateQuantity> = rates.iter().map(|rate| rate.of).collect();
        assert_eq!(
            kinds,
            [RateQuantity::Write, RateQuantity::Read, RateQuantity::RandomWrite, RateQuantity::RandomRead]
        );
        assert!(rates.iter().all(|rate| rate.rate > 0), "{rates:?}");
    });
}

#[test]
fn measurements_are_exclusive_and_end_with_their_caller() {
    with_service(|service| async move {
        let long = measure(&service, Measure::Drive { size: 2 << 20 }, HOUR_MS);
        let mut long = Box::pin(long);
        assert!(rt::timeout(Duration::from_millis(50), long.as_mut()).await.is_none());
        let second = measure(&service, Measure::Drive { size: 2 << 20 }, 30).await;
        assert_eq!(second.unwrap_err().errno, Errno::EBUSY);
        drop(long);
        measure(&service, Measure::Drive { size: 2 << 20 }, 30).await.unwrap();
    });
}

#[test]
fn a_file_that_has_no_room_is_refused_before_it_is_begun() {
    with_service(|service| async move {
        let refused = measure(&service, Measure::Drive { size: 1 << 60 }, 30).await.unwrap_err();
        assert_eq!(refused.errno, Errno::ENOSPC);
        assert!(refused.message.contains("target 3") && refused.message.contains("are free"), "{refused:?}");
    });
}

#[test]
fn one_process_has_no_network_and_times_have_a_limit() {
    with_service(|service| async move {
        let network = Measure::Network { to: NodeId(2), streams: 1 };
        assert_eq!(measure(&service, network, 30).await.unwrap_err().errno, Errno::EOPNOTSUPP);
        assert_eq!(measure(&service, Measure::Cpu, 0).await.unwrap_err().errno, Errno::EINVAL);
        let StorageReply::Rates(rates) = measure(&service, Measure::Cpu, 18).await.unwrap() else { panic!() };
        assert_eq!(rates.len(), 6);
    });
}

#[test]
fn a_network_is_measured_over_as_many_ways_as_are_asked_for() {
    with_service(|service| async move {
        let (other, made) = (service.clone(), Arc::new(std::sync::atomic::AtomicU32::new(0)));
        let counted = made.clone();
        service.set_network_connector(Box::new(move |node| {
            assert_eq!(node, NodeId(2));
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(Channel::in_process(other.clone()))
        }));
        let network = Measure::Network { to: NodeId(2), streams: 3 };
        let StorageReply::Rates(rates) = measure(&service, network, 10).await.unwrap() else { panic!() };
        let kinds: Vec<(RateQuantity, u32)> = rates.iter().map(|rate| (rate.of, rate.streams)).collect();
        assert_eq!(kinds, [(RateQuantity::Network, 3), (RateQuantity::RoundTrips, 1)]);
        assert_eq!(made.load(std::sync::atomic::Ordering::Relaxed), 3);
        let too_many = Measure::Network { to: NodeId(2), streams: 65 };
        assert_eq!(measure(&service, too_many, 10).await.unwrap_err().errno, Errno::EINVAL);
    });
}
