//! Changes of content that the kernel leaves to the file system to take setuid and setgid for.

use crate::cluster::{CHUNK, RDWR, ROOT, with_cluster};
use client::WriteHow;
use rt::IoBuf;
use types::{ByteRange, Credentials, InodeId, SetAttr};

const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const USER: Credentials = Credentials { uid: 1000, gid: 100, pid: 1 };

#[test]
fn copies_and_reservations_of_anybody_but_root_clear_setuid() {
    with_cluster(|cluster| async move {
        let (mount, _) = cluster.mount().await;
        for len in [100, 2 * CHUNK] {
            let name = format!("f{len}");
            let mode = 0o100_666;
            let (known, file) =
                mount.create(ROOT, InodeId::ROOT, name.as_bytes(), mode, 0, RDWR).await.unwrap();
            let fill = async |at: usize| {
                let data = IoBuf::from_slice(&vec![b'x'; len]);
                file.write(at as u64, data, WriteHow::default()).await.unwrap();
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
