//! Loads on a real directory: measurements, refusals, and complete removal.

use bench::load::{NoObserver, Observer, Progress, run};
use bench::{Access, Caching, Experiment, FileSharing, IoExperiment, MetaExperiment, Operation, TreeShape};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

fn io(sharing: FileSharing, access: Access, queue_depth: u32) -> IoExperiment {
    IoExperiment {
        name: "io".into(),
        operations: vec![Operation::Write, Operation::Read, Operation::Mixed, Operation::Read],
        threads: 3,
        sharing,
        access,
        record_bytes: 47_008,
        thread_bytes: 20 * 47_008 + 5,
        queue_depth,
        caching: Caching::Warm,
        seconds: None,
        verify: true,
    }
}

fn meta(shape: TreeShape) -> MetaExperiment {
    MetaExperiment {
        name: "meta".into(),
        operations: vec![
            Operation::Create,
            Operation::Stat,
            Operation::ReadFile,
            Operation::Remove,
            Operation::Stat,
        ],
        threads: 3,
        thread_files: 20,
        file_bytes: 3901,
        shape,
        caching: Caching::Warm,
    }
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn all_forms_move_what_they_should_and_leave_nothing() {
    let place = tempfile::tempdir().unwrap();
    for sharing in [FileSharing::OwnFiles, FileSharing::Segments, FileSharing::Interleaved] {
        for (access, depth) in
            [(Access::Sequential, 1), (Access::Random, 1), (Access::Sequential, 4), (Access::Random, 4)]
        {
            let loaded =
                run(&Experiment::Io(io(sharing, access, depth)), place.path(), 2, &NoObserver).unwrap();
            assert_eq!(
                (loaded.measured.len(), loaded.notes.as_slice()),
                (4, &[][..]),
                "{sharing:?} {access:?} {depth}"
            );
            for run in loaded.measured.iter().flat_map(|measured| &measured.runs) {
                assert_eq!((run.operations, run.bytes, run.errors, run.wrong_bytes), (60, 60 * 47_008, 0, 0));
            }
            assert!(loaded.measured.iter().all(|measured| measured.runs.len() == 2));
            let reasons = loaded.measured.iter().map(|measured| measured.cached.as_deref());
            assert!(reasons.into_iter().all(|why| why == Some("caches were left as they were (warm)")));
            assert!(loaded.measured.iter().all(|measured| measured.generator_ns.is_some_and(|ns| ns > 0.0)));
            assert!(is_empty(place.path()));
        }
    }
}

#[test]
fn files_are_made_looked_at_and_removed() {
    let place = tempfile::tempdir().unwrap();
    for shape in [TreeShape::SharedDirectory, TreeShape::OwnDirectories { directories: 3 }] {
        let loaded = run(&Experiment::Meta(meta(shape)), place.path(), 1, &NoObserver).unwrap();
        let counts: Vec<_> = loaded
            .measured
            .iter()
            .map(|measured| (measured.runs[0].operations, measured.runs[0].errors))
            .collect();
        assert_eq!((counts, loaded.notes.len()), (vec![(60, 0); 5], 0));
        assert!(is_empty(place.path()));
    }
}

/// Changes a written byte before it is read.
struct Planter;

impl Observer for Planter {
    fn before_phase(&self, operation: Operation, folder: &Path) {
        if operation == Operation::Read {
            let file = OpenOptions::new().read(true).write(true).open(folder.join("file.0")).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, 50_000).unwrap();
            file.write_all_at(&[byte[0] ^ 1], 50_000).unwrap();
        }
    }
}

#[test]
fn a_planted_byte_is_found() {
    for depth in [1, 4] {
        let place = tempfile::tempdir().unwrap();
        let mut io = io(FileSharing::Interleaved, Access::Sequential, depth);
        io.operations.truncate(2);
        let loaded = run(&Experiment::Io(io), place.path(), 1, &Planter).unwrap();
        assert_eq!(loaded.measured[1].runs[0].wrong_bytes, 1);
        assert!(
            loaded.notes[0].contains("file.0: wrong byte at offset 50000: expected 0x"),
            "{:?}",
            loaded.notes
        );
        assert!(is_empty(place.path()));
    }
}

/// Stops at once.
struct Stopper;

impl Observer for Stopper {
    fn is_stopped(&self) -> bool {
        true
    }
    fn progress(&self, progress: &Progress) {
        assert!((0.0..=1.0).contains(&progress.share));
    }
}

#[test]
fn a_stop_leaves_nothing_and_is_noted() {
    let place = tempfile::tempdir().unwrap();
    let loaded = run(&Experiment::Meta(meta(TreeShape::SharedDirectory)), place.path(), 5, &Stopper).unwrap();
    assert!(loaded.is_stopped && loaded.notes[0].starts_with("stopped early"));
    assert!(loaded.measured[1].runs.is_empty() && is_empty(place.path()));
}

#[test]
fn impossible_experiments_are_refused_with_a_hint() {
    let place = tempfile::tempdir().unwrap();
    let refused = |change: fn(&mut IoExperiment)| {
        let mut io = io(FileSharing::OwnFiles, Access::Sequential, 1);
        change(&mut io);
        run(&Experiment::Io(io), place.path(), 1, &NoObserver).unwrap_err().to_string()
    };
    assert!(refused(|io| io.threads = 0).contains("use 1 to 1024"));
    assert!(refused(|io| io.threads = 1025).contains("use 1 to 1024"));
    assert!(refused(|io| io.caching = Caching::Direct).contains("use --buffered"));
    assert!(refused(|io| io.record_bytes = 1 << 24).contains("is more than each thread's"));
    assert!(refused(|io| io.thread_bytes = 1 << 60).contains("are free; hint: use fewer threads"));
    assert!(refused(|io| io.operations = vec![Operation::Stat]).contains("use write, read and mixed"));
    let elsewhere = |path: &Path| {
        run(&Experiment::Meta(meta(TreeShape::SharedDirectory)), path, 1, &NoObserver)
            .unwrap_err()
            .to_string()
    };
    assert!(elsewhere(&place.path().join("none")).contains("give a directory that exists"));
    fs::write(place.path().join("file"), "").unwrap();
    assert!(elsewhere(&place.path().join("file")).contains("is not a directory"));
}

/// Puts files in the way, or truncates them.
struct Spoiler(fn(Operation, &Path));

impl Observer for Spoiler {
    fn before_phase(&self, operation: Operation, folder: &Path) {
        (self.0)(operation, folder);
    }
}

#[test]
fn a_failed_sync_is_an_error_of_its_figure_and_what_was_measured_stays() {
    let place = tempfile::tempdir().unwrap();
    // Accepts all writes, and can't sync.
    let spoiler = Spoiler(|operation, folder| {
        if operation == Operation::Write {
            let link =
                |thread| std::os::unix::fs::symlink("/dev/null", folder.join(format!("file.{thread}")));
            (0..3).for_each(|thread| link(thread).unwrap());
        }
    });
    for depth in [1, 4] {
        let experiment = Experiment::Io(io(FileSharing::OwnFiles, Access::Sequential, depth));
        let loaded = run(&experiment, place.path(), 2, &spoiler).unwrap();
        let run = &loaded.measured[0].runs[0];
        assert_eq!((run.operations, run.errors, loaded.measured[0].runs.len()), (60, 3, 1));
        assert!(loaded.notes[0].contains("can't sync") && loaded.notes[0].contains("file."), "{loaded:?}");
        // The files that the read needs can't be created, which ends the load.
        let failure = loaded.failure.unwrap();
        assert!(failure.message.contains("can't sync"), "{failure}");
        assert!(loaded.measured[1].runs.is_empty() && is_empty(place.path()));
    }
}

#[test]
fn too_many_errors_end_a_load_and_what_was_measured_stays() {
    let place = tempfile::tempdir().unwrap();
    let spoiler = Spoiler(|operation, folder| {
        if operation == Operation::Read {
            let file = OpenOptions::new().write(true).open(folder.join("file.1")).unwrap();
            file.set_len(0).unwrap();
        }
    });
    let mut io = io(FileSharing::OwnFiles, Access::Sequential, 1);
    (io.record_bytes, io.thread_bytes) = (4096, 4096 * 150);
    let loaded = run(&Experiment::Io(io), place.path(), 2, &spoiler).unwrap();
    let failure = loaded.failure.unwrap();
    assert!(
        failure.message.contains("100 operations of a thread failed") && failure.message.contains("file.1")
    );
    assert_eq!(loaded.measured.iter().map(|measured| measured.runs.len()).collect::<Vec<_>>(), [1, 0, 0, 0]);
    assert!(is_empty(place.path()));
}

#[test]
fn writes_that_a_cache_has_taken_say_so() {
    let place = tempfile::tempdir().unwrap();
    let mut io = io(FileSharing::OwnFiles, Access::Random, 1);
    (io.caching, io.seconds, io.threads) = (Caching::Cold, Some(1), 1);
    io.operations.truncate(1);
    let loaded = run(&Experiment::Io(io), place.path(), 2, &NoObserver).unwrap();
    assert!(loaded.measured[0].runs[0].bytes > loaded.measured[0].total_bytes);
    let why = "records were written again in the client's cache before they were synced";
    assert_eq!(loaded.measured[0].cached.as_deref(), Some(why), "once for both iterations");
}
