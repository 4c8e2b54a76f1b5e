//! Directories that another mount removes while they are in use here: what is looked for in them isn't there (`ENOENT`), as on a
//! local file system.

use super::{Cluster, listing};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

pub(crate) fn nothing_is_found_in_a_directory_that_another_mount_has_removed(cluster: &Cluster) {
    let ([here, there], [other, _]) = (cluster.paths("removed"), cluster.paths("stays"));
    for round in 0..3 {
        fs::create_dir(&here).unwrap();
        fs::write(here.join("f"), "").unwrap();
        fs::write(&other, "").unwrap();
        let open = File::open(&here).unwrap();
        assert!(open.metadata().unwrap().is_dir());
        fs::remove_dir_all(&there).unwrap();
        let inside = |name: &str| PathBuf::from(format!("/proc/self/fd/{}/{name}", open.as_raw_fd()));
        // As long as the other mount refers to it, it is listed as empty, which programs read in the same way.
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

/// Two programs empty one tree, each through a mount of its own: neither fails for what the other was faster to remove.
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
