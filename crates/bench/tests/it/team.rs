//! Loads that several clients generate together.

use bench::load::{ClientRank, ClientReport, LoadResult, Observer, merge_reports, run};
use bench::{Access, Caching, Experiment, FileSharing, IoExperiment, MetaExperiment, Operation, TreeShape};
use std::fs;
use std::path::Path;
use std::sync::{Barrier, Mutex};
use std::thread;

const CLIENTS: u32 = 3;

/// Number of directory entries before each phase.
type Seen = Vec<(Operation, usize)>;

/// One of the clients, each a thread of the test.
struct Client<'a> {
    rank: ClientRank,
    all: &'a Barrier,
    seen: &'a Mutex<Seen>,
}

impl Observer for Client<'_> {
    fn rank(&self) -> ClientRank {
        self.rank
    }

    fn barrier(&self) -> bool {
        self.all.wait();
        true
    }

    fn before_phase(&self, operation: Operation, folder: &Path) {
        // No client enters the next phase before all have been here.
        let there = fs::read_dir(folder).unwrap().count();
        self.seen.lock().unwrap().push((operation, there));
        self.all.wait();
    }
}

/// Runs a load with all clients; returns their reports, as they are sent, and the directory entries
/// before each phase.
fn together(experiment: &Experiment, place: &Path) -> (Vec<(String, ClientReport)>, Seen) {
    let (all, seen) = (Barrier::new(CLIENTS as usize), Mutex::new(Vec::new()));
    let load = 7;
    fs::create_dir(ClientRank { client: 0, clients: CLIENTS, load }.folder(place)).unwrap();
    let told = thread::scope(|scope| {
        let clients = (0..CLIENTS).map(|client| {
            let rank = ClientRank { client, clients: CLIENTS, load };
            let (all, seen) = (&all, &seen);
            scope.spawn(move || run(experiment, place, 2, &Client { rank, all, seen }).unwrap())
        });
        let loaded: Vec<_> = clients.collect::<Vec<_>>().into_iter().map(|one| one.join().unwrap()).collect();
        loaded.into_iter().map(sent).collect::<Vec<ClientReport>>()
    });
    let names = (0..).map(|client| format!("client-{client}"));
    (names.zip(told).collect(), seen.into_inner().unwrap())
}

fn sent(loaded: LoadResult) -> ClientReport {
    serde_json::from_str(&serde_json::to_string(&ClientReport::from(loaded)).unwrap()).unwrap()
}

fn check(loaded: &LoadResult, bytes: u64, operations: u64) {
    assert_eq!((loaded.failure.as_ref(), loaded.is_stopped, loaded.notes.len()), (None, false, 0));
    for measured in &loaded.measured {
        assert_eq!((measured.clients, measured.threads, measured.runs.len()), (CLIENTS, 2 * CLIENTS, 2));
        for run in &measured.runs {
            assert_eq!((run.errors, run.wrong_bytes), (0, 0), "{measured:?}");
            assert_eq!(run.operations, operations, "{measured:?}");
            assert!(run.bytes == bytes || bytes == 0, "{measured:?}");
            assert!(run.latency.unwrap().max_us > 0.0);
        }
    }
}

#[test]
fn every_byte_of_all_clients_is_written_once_and_read_by_another_one() {
    for sharing in [FileSharing::OwnFiles, FileSharing::Segments, FileSharing::Interleaved] {
        let place = tempfile::tempdir().unwrap();
        let (records, record_bytes) = (8, 47_008);
        let experiment = Experiment::Io(IoExperiment {
            name: "io".into(),
            operations: vec![Operation::Write, Operation::Read],
            threads: 2,
            sharing,
            access: Access::Sequential,
            record_bytes,
            thread_bytes: records * record_bytes,
            queue_depth: 1,
            caching: Caching::Warm,
            seconds: None,
            verify: true,
        });
        let (told, seen) = together(&experiment, place.path());
        let operations = records * u64::from(2 * CLIENTS);
        check(&merge_reports(told), operations * record_bytes, operations);
        let files = if sharing == FileSharing::OwnFiles { 2 * CLIENTS as usize } else { 1 };
        let reads = seen.iter().filter(|(operation, _)| *operation == Operation::Read);
        assert!(
            reads.clone().count() == 2 * CLIENTS as usize && reads.clone().all(|(_, there)| *there <= files)
        );
        assert!(
            fs::read_dir(ClientRank { client: 0, clients: CLIENTS, load: 7 }.folder(place.path()))
                .unwrap()
                .next()
                .is_none()
        );
    }
}

#[test]
fn files_of_all_clients_are_made_once_and_looked_at_by_another_one() {
    for shape in [TreeShape::OwnDirectories { directories: 2 }, TreeShape::SharedDirectory] {
        let place = tempfile::tempdir().unwrap();
        let experiment = Experiment::Meta(MetaExperiment {
            name: "meta".into(),
            operations: vec![Operation::Create, Operation::Stat, Operation::ReadFile, Operation::Remove],
            threads: 2,
            thread_files: 15,
            file_bytes: 100,
            shape,
            caching: Caching::Warm,
        });
        let (told, _) = together(&experiment, place.path());
        check(&merge_reports(told), 0, u64::from(2 * CLIENTS) * 15);
    }
}

/// The only client of a load with a leader.
struct Led;

impl Observer for Led {
    fn rank(&self) -> ClientRank {
        ClientRank { client: 0, clients: 1, load: 7 }
    }

    fn before_phase(&self, _operation: Operation, folder: &Path) {
        // In the directory that the leader removes if this client dies.
        let place = folder.parent().and_then(Path::parent).unwrap();
        assert_eq!(folder.parent().unwrap(), self.rank().folder(place));
    }
}

#[test]
fn a_single_client_works_in_the_directory_of_its_leader_too() {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(Led.rank().folder(place.path())).unwrap();
    let experiment = Experiment::Meta(MetaExperiment {
        name: "meta".into(),
        operations: vec![Operation::Create],
        threads: 1,
        thread_files: 5,
        file_bytes: 0,
        shape: TreeShape::SharedDirectory,
        caching: Caching::Warm,
    });
    let loaded = run(&experiment, place.path(), 1, &Led).unwrap();
    assert_eq!((loaded.failure, loaded.measured[0].runs.len()), (None, 1));
}

/// Leaves at the second meeting.
struct Leaver(Mutex<u32>);

impl Observer for Leaver {
    fn rank(&self) -> ClientRank {
        ClientRank { client: 1, clients: 2, load: 7 }
    }

    fn barrier(&self) -> bool {
        let mut met = self.0.lock().unwrap();
        *met += 1;
        *met < 2
    }
}

#[test]
fn results_before_a_client_left_are_kept() {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(Leaver(Mutex::new(0)).rank().folder(place.path())).unwrap();
    let experiment = Experiment::Meta(MetaExperiment {
        name: "meta".into(),
        operations: vec![Operation::Create, Operation::Remove],
        threads: 2,
        thread_files: 5,
        file_bytes: 0,
        shape: TreeShape::SharedDirectory,
        caching: Caching::Warm,
    });
    let loaded = run(&experiment, place.path(), 1, &Leaver(Mutex::new(0))).unwrap();
    assert!(loaded.is_stopped);
    assert_eq!(loaded.measured.iter().map(|one| one.runs.len()).collect::<Vec<_>>(), [1, 0]);
    // The other client has reported nothing.
    let nothing = ClientReport::from(types::Error::new(types::Errno::ENOTCONN, "it has gone"));
    let together = merge_reports(vec![("here".into(), sent(loaded)), ("there".into(), nothing)]);
    assert!(together.failure.unwrap().message.contains("there"));
    assert_eq!(together.measured.iter().map(|one| one.runs.len()).sum::<usize>(), 0);
}
