//! Shutdown of a session with failures.

use super::cluster::{CHUNK, with_cluster};
use types::{Credentials, Errno, InodeId};
use wire::MetaOp;

/// Open files; enough that some come after the failing one in whatever order they are reported.
const FILES: usize = 16;

#[test]
fn a_shutdown_that_cannot_report_one_file_reports_the_others_and_reclaims_orphans() {
    with_cluster(|cluster| async move {
        let mut files = Vec::new();
        for number in 0..FILES {
            let (ino, file) = cluster.create(&number.to_string()).await;
            cluster.fill(&file, 0, CHUNK, b'a').await.unwrap();
            files.push((ino, file));
        }
        let (orphan, file) = cluster.create("orphan").await;
        cluster.client.unlink(Credentials::default(), InodeId::ROOT, b"orphan").await.unwrap();
        cluster.client.release(file).await;
        cluster.client.forget(orphan, 1);
        let stranger = cluster.other_client();
        assert_eq!(stranger.getattr(orphan).await.unwrap().nlink, 0);

        let refused = files[FILES / 2].0;
        cluster.meta.refuse_next(
            Errno::EIO,
            move |request| matches!(request.op, MetaOp::EndWrite { ino, .. } if ino == refused),
        );
        assert_eq!(cluster.client.shutdown().await.unwrap_err().errno, Errno::EIO);
        assert!(cluster.meta.has_refused_all());
        for (ino, _) in files.iter().filter(|(ino, _)| *ino != refused) {
            assert_eq!(stranger.getattr(*ino).await.unwrap().size, CHUNK as u64, "inode {ino}");
        }
        assert_eq!(stranger.getattr(orphan).await.unwrap_err().errno, Errno::ESTALE);
    });
}
