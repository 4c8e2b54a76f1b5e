//! Changes of content for which the kernel leaves it to the file system to clear setuid and setgid.

use super::cluster::{Application, CHUNK, RDWR, ROOT, with_cluster};
use super::kernel_caches::Kernel;
use client::{Invalidate, WriteOptions};
use rt::IoBuf;
use std::sync::Arc;
use types::{ByteRange, Credentials, InodeId, SetAttr};

const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const USER: Credentials = Credentials { uid: 1000, gid: 100, pid: 1 };

#[test]
fn copies_and_fallocate_by_users_clear_setuid() {
    with_cluster(|cluster| async move {
        let (mount, _) = cluster.mount().await;
        for len in [100, 2 * CHUNK] {
            let name = format!("f{len}");
            let mode = 0o100_666;
            let (known, file) =
                mount.create(ROOT, InodeId::ROOT, name.as_bytes(), mode, 0, RDWR).await.unwrap();
            let fill = async |at: usize| {
                let data = IoBuf::from_slice(&vec![b'x'; len]);
                file.write(at as u64, data, WriteOptions::default()).await.unwrap();
            };
            fill(0).await;
            let hole = ByteRange::at(0, 50);
            for (change, who) in
                [("punch", USER), ("reserve", USER), ("copy", USER), ("punch", ROOT), ("copy", ROOT)]
            {
                let set = SetAttr { mode: Some(0o6777), ..SetAttr::default() };
                mount.setattr(ROOT, known.ino, set, None).await.unwrap();
                match change {
                    "punch" => file.fallocate(who, PUNCH_HOLE | KEEP_SIZE, hole).await.unwrap(),
                    "reserve" => file.fallocate(who, 0, hole).await.unwrap(),
                    _ => assert_eq!(file.copy_file_range(who, 0, (&file, 50), 50).await.unwrap(), 50),
                }
                let bits = mount.getattr(known.ino).await.unwrap().mode & 0o6000;
                assert_eq!(bits, if who == ROOT { 0o6000 } else { 0 }, "{name}: {change} by {}", who.uid);
            }
            file.release().await;
        }
    });
}

#[test]
fn the_kernel_is_told_that_a_change_of_content_has_cleared_setuid() {
    with_cluster(|cluster| async move {
        let [one, _] = cluster.clients().await;
        let kernel = Arc::new(Kernel::default());
        let face: Arc<dyn Invalidate> = kernel.clone();
        one.set_invalidator(Arc::downgrade(&face));
        for len in [100, 2 * CHUNK] {
            let file = one.create_file(&format!("f{len}")).await;
            one.fill(&file, 0, len, b'x').await;
            for (mode, is_told) in [(0o6777, true), (0o777, false)] {
                for change in ["write", "cut"] {
                    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
                    one.setattr(ROOT, file.ino(), set, None).await.unwrap();
                    kernel.dropped.lock().clear();
                    match change {
                        "write" => {
                            let how = WriteOptions { kill_suid_sgid: true, ..WriteOptions::default() };
                            one.write(&file, 0, IoBuf::from_slice(b"y"), how).await.unwrap();
                        }
                        _ => {
                            let set = SetAttr { kill_suid_sgid: true, ..SetAttr::default() };
                            one.setattr(ROOT, file.ino(), set, Some(50)).await.unwrap();
                        }
                    }
                    let forgotten = kernel.dropped.lock().iter().any(|(ino, _)| *ino == file.ino());
                    assert_eq!(forgotten, is_told, "{change} of {len} bytes with mode {mode:o}");
                    assert_eq!(one.getattr(file.ino()).await.unwrap().mode & 0o7777, 0o777);
                }
            }
            one.release(file).await;
        }
    });
}
