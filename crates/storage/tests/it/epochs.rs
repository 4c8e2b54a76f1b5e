//! Requests under leases that have ended.

use net::{Channel, Handler};
use rt::IoBuf;
use std::path::Path;
use std::sync::Arc;
use storage::StorageService;
use testkit::targets;
use types::{ByteRange, ChunkFileId, Refusal, Result, SessionId, TargetId};
use wire::{
    AllocateMode, DataPath as Way, SeekTarget, SlotSequence, StorageOp, StorageReply, StorageRequest,
};

const TARGET: TargetId = TargetId(1);
const INO: ChunkFileId = ChunkFileId(9);
const WRITE: StorageOp = StorageOp::Write { offset: 0, path: Way::Cached, durable: false };
const READ: StorageOp = StorageOp::Read { offset: 0, path: Way::Cached };

async fn serve(dir: &Path) -> Arc<StorageService> {
    Arc::new(StorageService::new([targets::create(dir, TARGET, 0).await]))
}

fn with_service<F: Future<Output = ()>>(test: impl FnOnce(Arc<StorageService>) -> F + 'static) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    rt::block_on(async move { test(serve(&path).await).await }).unwrap();
}

async fn ask(
    service: &Arc<StorageService>,
    request: StorageRequest,
    payload: Option<IoBuf>,
) -> Result<StorageReply> {
    let service: Arc<dyn Handler<StorageRequest, StorageReply>> = service.clone();
    Channel::in_process(service).call(request, payload).await
}

async fn under(service: &Arc<StorageService>, epoch: u64, op: StorageOp) -> Result<StorageReply> {
    let payload = matches!(op, READ | WRITE).then(|| IoBuf::from_slice(&[epoch as u8; 4096]));
    let request = StorageRequest { epoch, ..StorageRequest::new(SessionId(5), TARGET, INO, op) };
    ask(service, request, payload).await
}

async fn first_byte(service: &Arc<StorageService>) -> u8 {
    let buf = IoBuf::alloc(4096);
    let request = StorageRequest::new(SessionId(0), TARGET, INO, READ);
    ask(service, request, Some(buf.clone())).await.unwrap();
    buf.as_slice()[0]
}

fn is_revoked(answer: Result<StorageReply>) -> bool {
    answer.is_err_and(|error| error.errno == Refusal::RevokedLeaseEpoch)
}

#[test]
fn every_kind_of_late_request_is_refused_and_changes_nothing() {
    with_service(|service| async move {
        let late = [
            WRITE,
            READ,
            StorageOp::Truncate { len: 0 },
            StorageOp::Allocate { range: ByteRange::new(0, 4096), how: AllocateMode::Punch },
            StorageOp::Delete,
            StorageOp::Stat,
            StorageOp::Seek { from: 0, what: SeekTarget::Data },
        ];
        under(&service, 7, WRITE).await.unwrap();
        for op in late.clone() {
            assert!(under(&service, 7, op.clone()).await.is_ok(), "{op:?}");
        }
        under(&service, 8, WRITE).await.unwrap();
        for op in late {
            assert!(is_revoked(under(&service, 7, op.clone()).await), "{op:?}");
            assert_eq!(first_byte(&service).await, 8, "{op:?}");
        }
    });
}

/// A read or a length request begins the next epoch, too.
#[test]
fn late_requests_do_not_change_what_was_read() {
    for op in [READ, StorageOp::Stat, StorageOp::Seek { from: 0, what: SeekTarget::Hole }] {
        with_service(move |service| async move {
            under(&service, 1, WRITE).await.unwrap();
            under(&service, 2, op).await.unwrap();
            assert!(is_revoked(under(&service, 1, WRITE).await));
            assert_eq!(first_byte(&service).await, 1);
        });
    }
}

/// The former lease holder's chunk file was deleted: its late write doesn't create it again.
#[test]
fn a_late_write_does_not_bring_a_deleted_chunk_file_back() {
    with_service(|service| async move {
        under(&service, 1, WRITE).await.unwrap();
        under(&service, 2, StorageOp::Delete).await.unwrap();
        assert!(is_revoked(under(&service, 1, WRITE).await));
        let Ok(StorageReply::Stat { blocks: 0, len: 0, .. }) = under(&service, 2, StorageOp::Stat).await
        else {
            panic!("there is no chunk file")
        };
    });
}

#[test]
fn an_executed_numbered_write_is_answered_in_any_epoch() {
    with_service(|service| async move {
        let write = async |epoch, sequence, byte| {
            let number = Some(SlotSequence { slot: 0, sequence });
            let request = StorageRequest {
                epoch,
                slot_sequence: number,
                ..StorageRequest::new(SessionId(5), TARGET, INO, WRITE)
            };
            ask(&service, request, Some(IoBuf::from_slice(&[byte; 4096]))).await
        };
        write(1, 1, 1).await.unwrap();
        under(&service, 2, WRITE).await.unwrap();
        // The client didn't get the answer; it sends the same request in the current epoch.
        assert!(matches!(write(1, 1, 1).await, Ok(StorageReply::Done { .. })));
        assert!(matches!(write(3, 1, 1).await, Ok(StorageReply::Done { .. })));
        assert_eq!(first_byte(&service).await, 2);
        assert!(is_revoked(write(1, 2, 9).await), "one that wasn't done isn't done any more");
        assert!(
            matches!(write(3, 2, 3).await, Ok(StorageReply::Done { .. })),
            "until its sender has another epoch"
        );
        assert_eq!(first_byte(&service).await, 3);
    });
}
