//! Directories that another mount removes while they are in use here: lookups in them return
//! `ENOENT`, as on a local file system.

use super::{Cluster, listing};
use client::Client;
use rt::CoreConfig;
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use types::InodeId;

/// Longer than the service takes to delete inodes that no mount references.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) fn lookups_in_a_directory_removed_by_another_client_return_enoent(cluster: &Cluster) {
    let ([here, there], [other, _]) = (cluster.paths("removed"), cluster.paths("stays"));
    for round in 0..3 {
        fs::create_dir(&here).unwrap();
        fs::write(here.join("f"), "").unwrap();
        fs::write(&other, "").unwrap();
        let open = File::open(&here).unwrap();
        assert!(open.metadata().unwrap().is_dir());
        fs::remove_dir_all(&there).unwrap();
        let inside = |name: &str| PathBuf::from(format!("/proc/self/fd/{}/{name}", open.as_raw_fd()));
        // As long as the other mount references it, it is listed as empty, which applications treat
        // the same way.
        match listing::names(&open) {
            Ok(names) => {
                let is_dot = |name: &String| matches!(&**name, "." | "..");
                assert!(names.iter().all(is_dot), "{names:?} in round {round}");
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "list in round {round}"),
        }
        let tried: [(&str, io::Result<()>); 8] = [
            ("look", fs::metadata(inside("f")).map(drop)),
            ("open", File::open(inside("f")).map(drop)),
            ("make", File::create(inside("g")).map(drop)),
            ("make a directory", fs::create_dir(inside("h"))),
            ("remove", fs::remove_file(inside("f"))),
            ("move from", fs::rename(inside("f"), &other)),
            ("move to", fs::rename(&other, inside("f"))),
            ("link", fs::hard_link(&other, inside("f"))),
        ];
        for (call, outcome) in tried {
            let number = outcome.expect_err(call).raw_os_error();
            assert_eq!(number, Some(libc::ENOENT), "{call} in round {round}");
        }
        drop(open);
        fs::remove_file(&other).unwrap();
    }
}

/// `fstat(2)` of an open directory returns the same as on a local file system, before and after the
/// service has deleted the directory.
pub(crate) fn an_open_directory_has_attributes_when_another_mount_has_removed_it(cluster: &Cluster) {
    let [here, there] = cluster.paths("open");
    fs::create_dir(&here).unwrap();
    fs::set_permissions(&here, Permissions::from_mode(0o751)).unwrap();
    let open = File::open(&here).unwrap();
    let identity_of = |of: &Metadata| (of.dev(), of.ino(), of.mode(), of.uid(), of.gid(), of.mtime());
    let before = open.metadata().unwrap();
    assert_eq!(before.nlink(), 2);
    fs::remove_dir(&there).unwrap();
    let has_attributes = |when: &str| {
        let now = open.metadata().unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_eq!((identity_of(&now), now.nlink()), (identity_of(&before), 0), "{when}");
    };
    has_attributes("removed");
    wait_until_deleted(&cluster.clients[0], InodeId(before.ino()));
    has_attributes("deleted");
    let inside = PathBuf::from(format!("/proc/self/fd/{}/f", open.as_raw_fd()));
    let outcomes =
        [listing::names(&open).map(drop), File::create(&inside).map(drop), fs::metadata(&here).map(drop)];
    for outcome in outcomes {
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }
    has_attributes("used after it was deleted");
}

/// Waits until the service has deleted an inode.
fn wait_until_deleted(client: &Arc<Client>, ino: InodeId) {
    let (client, began) = (client.clone(), Instant::now());
    let config = CoreConfig { name: "waiting".into(), ..CoreConfig::default() };
    let waiting = rt::start_core(config, move || async move {
        while client.getattr(ino).await.is_ok() {
            assert!(began.elapsed() < TEST_TIMEOUT, "inode {ino} is never deleted");
            rt::sleep(Duration::from_millis(5)).await;
        }
    });
    waiting.unwrap().join().unwrap();
}

/// Two applications remove one tree, each through its own mount: neither fails when the other
/// removes an entry first.
pub(crate) fn two_mounts_remove_a_tree_together(cluster: &Cluster) {
    let paths = cluster.paths("tree");
    for round in 0..10 {
        for folder in 0..36 {
            let folder = paths[0].join(format!("{}/{}", folder / 6, folder % 6));
            fs::create_dir_all(&folder).unwrap();
            ["a", "b"].iter().for_each(|name| fs::write(folder.join(name), "content").unwrap());
        }
        let programs: Vec<Child> = paths
            .iter()
            .map(|path| Command::new("rm").arg("-rf").arg(path).stderr(Stdio::piped()).spawn().unwrap())
            .collect();
        for program in programs {
            let ended = program.wait_with_output().unwrap();
            let says = String::from_utf8_lossy(&ended.stderr);
            assert!(ended.status.success() && says.is_empty(), "round {round}: {says}");
        }
        assert!(paths.iter().all(|path| !path.exists()), "round {round}: the tree is left");
    }
}
