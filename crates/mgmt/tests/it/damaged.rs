//! Damaged superblocks and target lists: each is refused.

use mgmt::fuzzing;
use mgmt::{StatePaths, Superblock, TargetList};

/// Random mutations of each image.
const ROUNDS: usize = 2000;

#[test]
fn damaged_files_of_a_state_directory_are_refused() {
    mutate::confined(|| {
        let dir = tempfile::tempdir().unwrap();
        let paths = StatePaths::new(dir.path());
        Superblock::random("a \"quoted\" name\t").create(&paths.superblock()).unwrap();
        let directories = vec!["targets/t1".into(), "/mnt/disk 2/t".into()];
        TargetList::new(&paths, directories).unwrap().create(&paths).unwrap();
        for path in [paths.superblock(), paths.target_list()] {
            mutate::damage(&std::fs::read(path).unwrap(), ROUNDS, fuzzing::state_files);
        }
    });
}
