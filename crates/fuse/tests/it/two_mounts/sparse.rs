//! Block counts of sparse files, by which applications decide how to copy them.

use super::Cluster;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

pub(crate) fn a_file_with_a_hole_has_few_blocks_while_it_is_written(cluster: &Cluster) {
    const LENGTH: u64 = 1 << 30;
    let (paths, others) = (cluster.paths("sparse"), cluster.paths("sparse, too"));
    fs::write(&paths[1], "").unwrap();
    fs::hard_link(&paths[1], &others[1]).unwrap();
    let file = File::create(&paths[0]).unwrap();
    let looks = |when: &str| {
        for path in &paths {
            let meta = fs::metadata(path).unwrap();
            assert_eq!(meta.len(), LENGTH);
            assert!((1..4096).contains(&meta.blocks()), "{} blocks {when}", meta.blocks());
        }
    };
    file.write_all_at(b"x", LENGTH - 1).unwrap();
    looks("after a write");
    let blocks = file.metadata().unwrap().blocks();
    assert!((1..4096).contains(&blocks), "{blocks} blocks of an open file");
    // By a name that this mount looks up only now.
    let blocks = fs::metadata(&others[0]).unwrap().blocks();
    assert!((1..4096).contains(&blocks), "{blocks} blocks after a lookup");
    // Block counts that a lookup or a listing returns meanwhile are not cached.
    file.write_all_at(b"x", LENGTH / 2).unwrap();
    let listed = fs::read_dir(paths[0].parent().unwrap()).unwrap();
    assert!(listed.map(|entry| entry.unwrap()).any(|entry| entry.file_name() == "sparse"));
    looks("after a listing");
    file.sync_all().unwrap();
    looks("after fsync");
    drop(file);
    looks("after close");
    [&paths[1], &others[1]].iter().for_each(|path| fs::remove_file(path).unwrap());
}
