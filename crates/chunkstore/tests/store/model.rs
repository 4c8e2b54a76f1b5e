//! Random operations against a vector of bytes.

use crate::common::{INO, buf, open_with, read, with_target};
use chunkstore::{Allocate, Durability, IoPath, Options, Seek, Store};
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;
use types::ByteRange;

/// Largest offset of an operation, bytes: a little more than one page of checksums covers.
const REACH: u64 = (4 << 20) + 50_000;
const MAX_LEN: usize = 300_000;

#[derive(Clone, Copy, Debug)]
enum Op {
    Write { offset: u64, len: usize, fill: u8, path: IoPath, durability: Durability },
    Read { offset: u64, len: usize, path: IoPath },
    Truncate(u64),
    Allocate(u64, usize, Allocate),
    Delete,
    Sync,
    Maintain,
    Close,
    Kill,
}

fn place() -> impl Strategy<Value = (u64, usize)> {
    prop_oneof![
        // Whole blocks, which may bypass the page cache.
        (0..REACH / 4096, 1..40usize).prop_map(|(block, count)| (block * 4096, count * 4096)),
        (0..REACH, 1..MAX_LEN),
        // Around the edges of blocks.
        (0..REACH / 4096, 0..3u64, 1..5000usize)
            .prop_map(|(block, d, len)| ((block * 4096 + d).saturating_sub(1), len)),
        // Close to the start, so that operations overlap.
        (0..20_000u64, 1..20_000usize),
    ]
}

fn path() -> impl Strategy<Value = IoPath> {
    prop_oneof![Just(IoPath::Direct), Just(IoPath::Cached)]
}

fn op() -> impl Strategy<Value = Op> {
    let durability = prop_oneof![4 => Just(Durability::Later), 1 => Just(Durability::Now)];
    let how = prop_oneof![Just(Allocate::Reserve), Just(Allocate::Punch), Just(Allocate::Zero)];
    prop_oneof![
        8 => (place(), any::<u8>(), path(), durability).prop_map(|((offset, len), fill, path, durability)| Op::Write {
            offset, len, fill, path, durability,
        }),
        8 => (place(), path()).prop_map(|((offset, len), path)| Op::Read { offset, len, path }),
        2 => (0..REACH).prop_map(Op::Truncate),
        3 => (place(), how).prop_map(|((offset, len), how)| Op::Allocate(offset, len, how)),
        1 => Just(Op::Delete),
        1 => Just(Op::Sync),
        1 => Just(Op::Maintain),
        1 => Just(Op::Close),
        1 => Just(Op::Kill),
    ]
}

fn put(model: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let end = offset as usize + data.len();
    model.resize(model.len().max(end), 0);
    model[offset as usize..end].copy_from_slice(data);
}

fn expected(model: &[u8], offset: u64, len: usize) -> Vec<u8> {
    let from = model.len().min(offset as usize);
    let mut data = model[from..model.len().min(offset as usize + len)].to_vec();
    data.resize(len, 0);
    data
}

/// Bytes that depend on the offset, so that a shift shows.
fn pattern(offset: u64, len: usize, fill: u8) -> Vec<u8> {
    (offset..offset + len as u64)
        .map(|at| (at / 512) as u8 ^ (at as u8).wrapping_mul(fill | 1) ^ fill)
        .collect()
}

async fn reopen(dir: &Path, options: &Options) -> Arc<Store> {
    open_with(dir, options.clone()).await.0
}

async fn play(dir: &Path, ops: Vec<Op>, options: Options) {
    let mut store = reopen(dir, &options).await;
    let mut model = Vec::new();
    for op in ops {
        match op {
            Op::Write { offset, len, fill, path, durability } => {
                let data = pattern(offset, len, fill);
                store.write(INO, offset, &buf(&data), path, durability).await.unwrap();
                put(&mut model, offset, &data);
            }
            Op::Read { offset, len, path } => {
                let got = read(&store, INO, offset, len, path).await.unwrap();
                assert!(got == expected(&model, offset, len), "{op:?}");
            }
            Op::Truncate(len) => {
                store.truncate(INO, len).await.unwrap();
                model.truncate(len as usize);
            }
            Op::Allocate(offset, len, how) => {
                store.allocate(INO, ByteRange::at(offset, len as u64), how).await.unwrap();
                match how {
                    Allocate::Reserve => {}
                    Allocate::Punch => {
                        let end = model.len().min(offset as usize + len);
                        let start = end.min(offset as usize);
                        model[start..end].fill(0);
                    }
                    Allocate::Zero => put(&mut model, offset, &vec![0; len]),
                }
            }
            Op::Delete => {
                store.delete(INO).await.unwrap();
                model.clear();
            }
            Op::Sync => store.sync(INO).await.unwrap(),
            Op::Maintain => store.maintain(0).await.unwrap(),
            Op::Close => {
                store.close().await.unwrap();
                drop(store);
                store = reopen(dir, &options).await;
            }
            Op::Kill => {
                drop(store);
                store = reopen(dir, &options).await;
            }
        }
        assert_eq!(store.stat(INO).await.unwrap().len, model.len() as u64, "{op:?}");
    }
    let len = model.len() + 5000;
    for path in [IoPath::Direct, IoPath::Cached] {
        assert!(read(&store, INO, 0, len, path).await.unwrap() == expected(&model, 0, len));
    }
    assert_eq!(store.verify(INO).await.unwrap(), []);
    check_seeks(&store, &model).await;
}

/// What is reported as a hole reads as zeros, and data and holes alternate.
async fn check_seeks(store: &Store, model: &[u8]) {
    let mut at = 0;
    while let Some(data) = store.seek(INO, at, Seek::Data).await.unwrap() {
        assert!(model[at as usize..data as usize].iter().all(|byte| *byte == 0));
        at = store.seek(INO, data, Seek::Hole).await.unwrap().unwrap();
        assert!(at > data && at <= model.len() as u64);
    }
    assert!(model[at as usize..].iter().all(|byte| *byte == 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_chunk_file_is_a_vector_of_bytes(ops in proptest::collection::vec(op(), 1..60), tiny_caches: bool) {
        let options = match tiny_caches {
            true => Options { max_open_files: 1, sum_cache_bytes: 4096, ..Options::default() },
            false => Options::default(),
        };
        with_target(move |dir| async move { play(&dir, ops, options).await });
    }
}
