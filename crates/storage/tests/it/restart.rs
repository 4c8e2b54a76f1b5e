//! State that a service recovers after its process died.

use chunkstore::Store;
use net::Handler;
use rt::IoBuf;
use std::path::Path;
use storage::StorageService;
use testkit::targets;
use types::{ChunkFileId, Errno, Result, SessionId, TargetId};
use wire::{DataPath as Way, SlotSequence, StorageOp, StorageReply, StorageRequest};

const TARGET: TargetId = TargetId(1);
const INO: ChunkFileId = ChunkFileId(9);

/// A process with one target. Dropping it acts like a kill.
async fn start(dir: &Path) -> StorageService {
    if Store::identify(dir).await.unwrap().is_none() {
        targets::format(dir, TARGET, 0).await;
    }
    StorageService::new([targets::open(dir, TARGET).await])
}

async fn write(service: &StorageService, session: u64, sequence: u32, byte: u8) -> Result<StorageReply> {
    let op = StorageOp::Write { offset: 0, path: Way::Cached, durable: false };
    let number = Some(SlotSequence { slot: 0, sequence });
    let request =
        StorageRequest { slot_sequence: number, ..StorageRequest::new(SessionId(session), TARGET, INO, op) };
    service.handle(request, Some(IoBuf::from_slice(&[byte; 4096]))).await
}

async fn content(service: &StorageService) -> u8 {
    let buf = IoBuf::alloc(4096);
    let op = StorageOp::Read { offset: 0, path: Way::Cached };
    let request = StorageRequest::new(SessionId(7), TARGET, INO, op);
    service.handle(request, Some(buf.clone())).await.unwrap();
    buf.as_slice()[0]
}

#[test]
fn a_write_that_is_repeated_does_not_undo_another() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    let run = async move {
        let service = start(&path).await;
        write(&service, 1, 1, 1).await.unwrap();
        write(&service, 2, 1, 2).await.unwrap();
        write(&service, 1, 1, 1).await.unwrap();
        assert_eq!(content(&service).await, 2);
        drop(service);
        let service = start(&path).await;
        write(&service, 1, 1, 1).await.unwrap();
        assert_eq!(content(&service).await, 2);
        write(&service, 1, 2, 3).await.unwrap();
        assert_eq!(content(&service).await, 3);
    };
    rt::block_on(run).unwrap();
}

#[test]
fn an_ended_session_stays_fenced_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    let run = async move {
        let service = start(&path).await;
        write(&service, 1, 1, 1).await.unwrap();
        let fence = StorageOp::Fence { session: SessionId(1) };
        let fence = StorageRequest::new(SessionId(0), TARGET, INO, fence);
        service.handle(fence, None).await.unwrap();
        drop(service);
        let service = start(&path).await;
        assert_eq!(write(&service, 1, 2, 3).await.unwrap_err().errno, Errno::ESTALE);
        write(&service, 2, 1, 2).await.unwrap();
        assert_eq!(content(&service).await, 2);
    };
    rt::block_on(run).unwrap();
}
