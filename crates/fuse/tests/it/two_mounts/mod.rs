//! Two mounts of one cluster, each with its own client, on the real kernel: a change through one is
//! visible in the other at once.
//!
//! The tests need permission to mount, as weft itself does.

mod aio;
mod busy;
mod hanging;
mod listing;
mod locks;
mod pages;
mod removed;
mod sparse;

use client::{Client, ClientOptions};
use fuse::{MountOptions, Opcode, Session, Transport};
use meta::MetaService;
use net::{Channel, Handler, LocalFuture};
use rt::{CoreConfig, IoBuf};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use storage::StorageService;
use testkit::channel::{Latency, StorageHandler};
use testkit::clients;
use testkit::cluster::ClusterBuilder;
use testkit::map::MapBuilder;
use wire::{StorageOp, StorageReply, StorageRequest};

const TARGETS: u32 = 2;
const LOG_BYTES: u64 = 1 << 20;
/// Longer than the time for which no client gets a lease on what several clients have changed.
const SHARED_LEASE_COOLDOWN: std::time::Duration = std::time::Duration::from_millis(1200);
/// An unprivileged user.
const NOBODY: u32 = 65534;

/// A cluster whose services run on a separate thread, mounted twice.
struct Cluster {
    base: PathBuf,
    clients: Vec<Arc<Client>>,
    meta: Arc<MetaService>,
    storage: Arc<Disks>,
    mounts: Vec<Session>,
    stop: Arc<rt::sync::Event>,
    services: Option<JoinHandle<()>>,
}

/// The storage service. While a test requests it, its disks accept no writes, or its reads don't
/// end.
struct Disks {
    service: Arc<StorageService>,
    are_broken: AtomicBool,
    hang: AtomicBool,
    /// Number of reads that don't end.
    hanging: AtomicUsize,
}

impl Disks {
    async fn read_some_time(
        &self,
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> types::Result<StorageReply> {
        self.hanging.fetch_add(1, Ordering::SeqCst);
        while self.hang.load(Ordering::SeqCst) {
            rt::sleep(std::time::Duration::from_millis(5)).await;
        }
        self.service.handle(request, payload).await
    }
}

impl Handler<StorageRequest, StorageReply> for Disks {
    fn handle(
        &self,
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'_, types::Result<StorageReply>> {
        match request.op {
            StorageOp::Write { .. } if self.are_broken.load(Ordering::SeqCst) => {
                Box::pin(async { Err(types::Errno::EIO.into()) })
            }
            StorageOp::Read { .. } if self.hang.load(Ordering::SeqCst) => {
                Box::pin(self.read_some_time(request, payload))
            }
            _ => self.service.handle(request, payload),
        }
    }
}

impl Cluster {
    fn start(name: &str, transport: Transport) -> Cluster {
        let base = std::env::temp_dir().join(format!("weft-two-mounts-{name}-{}", std::process::id()));
        fs::create_dir_all(&base).unwrap();
        let stop = Arc::new(rt::sync::Event::new());
        let (tell, clients) = channel();
        let (stopped, place) = (stop.clone(), base.clone());
        let config = CoreConfig { name: "services".into(), ..CoreConfig::default() };
        let services = rt::start_core(config, move || async move {
            tell.send(serve(&place).await).unwrap();
            stopped.wait().await;
        });
        let (clients, meta, storage) = clients.recv().unwrap();
        let (mounts, services) = (Vec::new(), Some(services.unwrap()));
        let mut cluster = Cluster { base, clients, meta, storage, mounts, stop, services };
        cluster.mounts = [0, 1].map(|number| cluster.mount(number, transport)).into();
        cluster
    }

    fn mount(&self, number: usize, transport: Transport) -> Session {
        let mountpoint = self.base.join(format!("mnt{number}"));
        fs::create_dir_all(&mountpoint).unwrap();
        let options = MountOptions { transport, depth: 8, ..MountOptions::at(&mountpoint) };
        Session::mount(self.clients[number].clone(), options).unwrap()
    }

    /// Returns a path in each of the two mounts.
    fn paths(&self, name: &str) -> [PathBuf; 2] {
        [0, 1].map(|number: usize| self.mounts[number].mountpoint().join(name))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.mounts.drain(..).for_each(|mount| mount.unmount().unwrap());
        self.stop.set();
        self.services.take().unwrap().join().unwrap();
        fs::remove_dir_all(&self.base).unwrap();
    }
}

async fn serve(base: &Path) -> (Vec<Arc<Client>>, Arc<MetaService>, Arc<Disks>) {
    let map = MapBuilder::new(TARGETS).below(base).single_groups().build();
    let site =
        ClusterBuilder::new(map).on_disk(base).log_bytes(LOG_BYTES).latency(Latency::Zero).create().await;
    let storage = Arc::new(Disks {
        service: site.storage.clone(),
        are_broken: Default::default(),
        hang: Default::default(),
        hanging: Default::default(),
    });
    let cluster = site.serve_with_storage(storage.clone()).await;
    let (meta, to_storage) = (cluster.metadata.service(), storage.clone() as StorageHandler);
    let mut made = Vec::new();
    for _ in 0..2 {
        let options = cluster.options(Channel::in_process(meta.clone()), &to_storage);
        made.push(clients::start(ClientOptions { server_cache: true, ..options }).await);
    }
    (made, meta, storage)
}

fn check_all(name: &str, transport: Transport) {
    let cluster = Cluster::start(name, transport);
    // While there are no additional workers yet.
    hanging::requests_waiting_for_a_disk_do_not_block_others(&cluster);
    names_are_the_same(&cluster);
    locks::a_close_drops_the_locks_of_its_process(&cluster);
    locks::root_of_a_user_namespace_cannot_move_files_of_others(&cluster);
    contents_are_the_same(&cluster);
    sparse::a_file_with_a_hole_has_few_blocks_while_it_is_written(&cluster);
    a_reader_sees_every_round_of_a_writer(&cluster);
    appends_of_both_clients_are_atomic(&cluster);
    one_directory_is_filled_from_both(&cluster);
    listing::listings_show_entries_of_other_clients(&cluster);
    filling_a_directory_sends_no_permission_requests(&cluster);
    directory_changes_of_other_clients_are_visible_at_once(&cluster);
    removed::lookups_in_a_directory_removed_by_another_client_return_enoent(&cluster);
    removed::an_open_directory_has_attributes_when_another_mount_has_removed_it(&cluster);
    removed::two_mounts_remove_a_tree_together(&cluster);
    a_change_of_permissions_counts_at_once(&cluster);
    a_deleted_file_stays_while_it_is_open(&cluster);
    a_failed_write_does_not_truncate_data_of_other_clients(&cluster);
    pages::a_mapping_keeps_its_pages_during_writes(&cluster);
    pages::recently_written_records_are_read_ahead(&cluster);
    writes_waiting_for_the_kernel_do_not_block_its_reads(&cluster);
    busy::continuous_reads_do_not_starve_writers(&cluster);
    // From here on there are enough workers.
    locks::hundreds_of_applications_wait_for_one_lock(&cluster);
}

#[test]
fn two_mounts_over_the_device_agree() {
    check_all("dev", Transport::Dev);
}

#[test]
fn two_mounts_over_io_uring_agree() {
    check_all("auto", Transport::Auto);
}

/// After its mount has ended, a client may take a while to unregister from its servers, and may do
/// so when the next mount exists already.
#[test]
fn unmounting_does_not_touch_a_newer_mount() {
    let mut cluster = Cluster::start("place", Transport::Dev);
    let first = cluster.mounts.remove(0);
    first.unmount().unwrap();
    cluster.mounts.insert(0, cluster.mount(0, Transport::Dev));
    drop(first);
    assert!(fuse::is_mounted(cluster.mounts[0].mountpoint()), "the second mount has gone with the first");
    fs::write(cluster.paths("file")[0].as_path(), "kept").unwrap();
    assert_eq!(fs::read_to_string(&cluster.paths("file")[1]).unwrap(), "kept");
}

fn names_are_the_same(cluster: &Cluster) {
    let [one, two] = cluster.paths("dir");
    assert!(!two.exists());
    fs::create_dir(&one).unwrap();
    assert!(two.is_dir());
    for round in 0..20 {
        let name = format!("f{round}");
        assert!(!two.join(&name).exists(), "the kernel now knows that it is absent");
        File::create(one.join(&name)).unwrap();
        assert!(two.join(&name).exists());
        assert_eq!(fs::read_dir(&two).unwrap().count(), 1);
        fs::rename(two.join(&name), two.join("other")).unwrap();
        assert!(!one.join(&name).exists());
        assert!(one.join("other").exists());
        fs::remove_file(one.join("other")).unwrap();
        assert!(!two.join("other").exists());
        assert_eq!(fs::read_dir(&two).unwrap().count(), 0);
    }
    fs::remove_dir(&two).unwrap();
    assert!(!one.exists());
}

fn contents_are_the_same(cluster: &Cluster) {
    let [one, two] = cluster.paths("content");
    for len in [10, 5000, 300_000, 20, 0, 70_000] {
        fs::write(&one, vec![b'a'; len]).unwrap();
        assert_eq!(fs::metadata(&two).unwrap().len(), len as u64);
        assert_same(&fs::read(&two).unwrap(), &vec![b'a'; len]);
        fs::write(&two, vec![b'b'; len / 2]).unwrap();
        assert_same(&fs::read(&one).unwrap(), &vec![b'b'; len / 2]);
        File::options().write(true).open(&one).unwrap().set_len(len as u64).unwrap();
        let mut expected = vec![b'b'; len / 2];
        expected.resize(len, 0);
        assert_same(&fs::read(&two).unwrap(), &expected);
    }
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    for bits in [0o600, 0o640, 0o644] {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&one, fs::Permissions::from_mode(bits)).unwrap();
        assert_eq!(mode(&two), bits);
    }
    fs::remove_file(&two).unwrap();
}

/// Compares without printing all content.
fn assert_same(found: &[u8], expected: &[u8]) {
    let runs = |bytes: &[u8]| -> Vec<(u8, usize)> {
        bytes.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
    };
    assert_eq!(runs(found), runs(expected));
}

/// More concurrent writes than a processor has workers wait for the kernel to release pages. The
/// kernel waits for a page that it still has to read, on the same processor.
fn writes_waiting_for_the_kernel_do_not_block_its_reads(cluster: &Cluster) {
    const PIECES: u64 = 8;
    const PIECE: usize = 4096;
    let [path, _] = cluster.paths("waiting");
    fs::write(&path, vec![0; PIECES as usize * PIECE]).unwrap();
    let device = fs::metadata(&path).unwrap().dev();
    let goes_on = AtomicBool::new(true);
    let goes_on = &goes_on;
    // Opened before the first write, so its kernel caches pages.
    let reader = File::open(&path).unwrap();
    let writer = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let (done, ended) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            aio::stay_on(0);
            let mut page = [0; PIECE];
            while goes_on.load(Ordering::SeqCst) {
                (0..PIECES).for_each(|piece| reader.read_exact_at(&mut page, piece * PIECE as u64).unwrap());
            }
        });
        for number in 0..24 {
            let (done, writer) = (done.clone(), &writer);
            scope.spawn(move || {
                aio::stay_on(0);
                let data = vec![number as u8; PIECE];
                for round in 0..6 {
                    aio::write_at(writer, &data, (number + round) % PIECES * PIECE as u64).unwrap();
                }
                done.send(()).unwrap();
            });
        }
        let in_time = (0..24).all(|_| ended.recv_timeout(std::time::Duration::from_secs(60)).is_ok());
        goes_on.store(false, Ordering::SeqCst);
        if !in_time {
            // Otherwise the test would never end.
            fs::write(format!("/sys/fs/fuse/connections/{}/abort", libc::minor(device)), "1").unwrap();
        }
        assert!(in_time, "writes and reads of one processor wait for each other");
    });
}

/// The reader keeps its file open, and its kernel keeps the pages.
fn a_reader_sees_every_round_of_a_writer(cluster: &Cluster) {
    let [one, two] = cluster.paths("rounds");
    const LEN: usize = 200_000;
    fs::write(&one, vec![0; LEN]).unwrap();
    let writer = OpenOptions::new().write(true).open(&one).unwrap();
    let mut reader = File::open(&two).unwrap();
    let mut bytes = Vec::new();
    for round in 1..=30u8 {
        writer.write_all_at(&vec![round; LEN], 0).unwrap();
        for _ in 0..2 {
            bytes.clear();
            reader.seek(SeekFrom::Start(0)).unwrap();
            reader.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes.len(), LEN);
            assert!(bytes.iter().all(|&byte| byte == round), "round {round}");
        }
    }
    // An application beside the writer sees the same.
    let beside = File::open(&one).unwrap();
    for round in 40..60u8 {
        writer.write_all_at(&[round; 8192], 4096).unwrap();
        let mut page = [0; 8192];
        beside.read_exact_at(&mut page, 4096).unwrap();
        assert!(page.iter().all(|&byte| byte == round));
    }
}

fn appends_of_both_clients_are_atomic(cluster: &Cluster) {
    let paths = cluster.paths("log");
    File::create(&paths[0]).unwrap();
    const RECORDS: usize = 50;
    const RECORD: usize = 300;
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        for (author, path) in [b'a', b'b'].into_iter().zip(&paths) {
            let start = &start;
            scope.spawn(move || {
                let mut log = OpenOptions::new().append(true).open(path).unwrap();
                start.wait();
                for _ in 0..RECORDS {
                    assert_eq!(log.write(&[author; RECORD]).unwrap(), RECORD);
                }
            });
        }
    });
    for path in &paths {
        let bytes = fs::read(path).unwrap();
        assert_eq!(bytes.len(), 2 * RECORDS * RECORD);
        assert!(bytes.chunks(RECORD).all(|record| record.iter().all(|&byte| byte == record[0])));
        assert_eq!(bytes.iter().filter(|&&byte| byte == b'a').count(), RECORDS * RECORD);
    }
}

/// Each kernel holds the lock of the directory while a change of it waits for the other client.
fn one_directory_is_filled_from_both(cluster: &Cluster) {
    let paths = cluster.paths("busy");
    fs::create_dir(&paths[0]).unwrap();
    const FILES: usize = 100;
    let started = std::time::Instant::now();
    std::thread::scope(|scope| {
        for (number, path) in paths.iter().enumerate() {
            scope.spawn(move || {
                for file in 0..FILES {
                    let name = path.join(format!("{number}-{file}"));
                    OpenOptions::new().write(true).create_new(true).mode(0o644).open(&name).unwrap();
                    assert!(name.exists());
                    if file % 3 == 0 {
                        fs::remove_file(&name).unwrap();
                    }
                }
            });
        }
    });
    eprintln!("{} changes of one directory in {:?}", 2 * FILES, started.elapsed());
    let names = |path: &Path| {
        let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&paths[0]), names(&paths[1]));
    assert_eq!(names(&paths[0]).len(), 2 * (FILES - FILES.div_ceil(3)));
    for name in names(&paths[1]) {
        fs::remove_file(paths[1].join(name)).unwrap();
    }
    fs::remove_dir(&paths[0]).unwrap();
}

/// Before each file creation the kernel requests the attributes of the directory twice.
fn filling_a_directory_sends_no_permission_requests(cluster: &Cluster) {
    const FILES: u64 = 100;
    let paths = cluster.paths("filled");
    fs::create_dir(&paths[0]).unwrap();
    let make = |round: &str, files: u64| {
        for file in 0..files {
            for path in &paths {
                let name = path.join(format!("{round}-{file}-{}", path.display()).replace('/', "_"));
                OpenOptions::new().write(true).create_new(true).open(name).unwrap();
            }
        }
    };
    let asked =
        || -> u64 { cluster.mounts.iter().map(|mount| mount.stats().requests(Opcode::Getattr)).sum() };
    // Both clients have just changed the parent directory: wait until its entries are cached again.
    std::thread::sleep(SHARED_LEASE_COOLDOWN);
    make("before", 2);
    let (commands, questions) = (cluster.meta.stats().commands, asked());
    make("counted", FILES);
    let (commands, questions) = (cluster.meta.stats().commands - commands, asked() - questions);
    eprintln!("{} files: {commands} commands, {questions} questions of the kernel", 2 * FILES);
    assert!(questions >= 3 * FILES, "the kernel hardly asks: {questions}");
    // The lookup and the creation take two commands each; two permission requests would double
    // that.
    assert!(commands < 6 * FILES, "{commands} commands for {} files", 2 * FILES);
    fs::remove_dir_all(&paths[1]).unwrap();
}

/// Also while the observing client evaluates permissions there by itself.
fn directory_changes_of_other_clients_are_visible_at_once(cluster: &Cluster) {
    let paths = cluster.paths("seen");
    fs::create_dir(&paths[0]).unwrap();
    for turn in 0..60 {
        let (maker, other) = (&paths[turn % 2], &paths[1 - turn % 2]);
        let before = fs::metadata(other).unwrap();
        File::create(other.join(format!("own{turn}"))).unwrap();
        fs::create_dir(maker.join(format!("dir{turn}"))).unwrap();
        let [here, there] = [maker, other].map(|path| fs::metadata(path).unwrap());
        assert_eq!(there.nlink(), before.nlink() + 1);
        let times = |of: &fs::Metadata| (of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec(), of.size());
        assert!(times(&there) > times(&before));
        assert_eq!(times(&there), times(&here));
        fs::remove_file(maker.join(format!("own{turn}"))).unwrap();
        assert!(times(&fs::metadata(other).unwrap()) > times(&there));
    }
    fs::remove_dir_all(&paths[1]).unwrap();
}

/// An unprivileged user, at the mount that has cached the permissions.
fn a_change_of_permissions_counts_at_once(cluster: &Cluster) {
    use std::os::unix::fs::PermissionsExt;
    let paths = cluster.paths("allowed");
    fs::create_dir(&paths[0]).unwrap();
    let made = |path: &Path, name: &str| {
        let mut touch = Command::new("touch");
        touch.arg(path.join(name)).uid(NOBODY).gid(NOBODY).stderr(Stdio::null());
        touch.status().unwrap().success()
    };
    for turn in 0..12 {
        let (changer, other) = (&paths[turn % 2], &paths[1 - turn % 2]);
        let allow = |mode| fs::set_permissions(changer, fs::Permissions::from_mode(mode)).unwrap();
        allow(0o777);
        for name in ["a", "b"] {
            assert!(made(other, &format!("{name}{turn}")) && made(changer, &format!("{name}{name}{turn}")));
        }
        allow(0o755);
        assert!(!made(other, &format!("c{turn}")), "turn {turn}");
        assert!(!made(changer, &format!("d{turn}")), "turn {turn}");
        std::os::unix::fs::chown(changer, Some(NOBODY), None).unwrap();
        assert!(made(other, &format!("e{turn}")), "turn {turn}");
        std::os::unix::fs::chown(changer, Some(0), None).unwrap();
        assert!(!made(other, &format!("f{turn}")), "turn {turn}");
    }
    fs::remove_dir_all(&paths[1]).unwrap();
}

fn a_deleted_file_stays_while_it_is_open(cluster: &Cluster) {
    let [one, two] = cluster.paths("deleted");
    fs::write(&one, vec![7; 100_000]).unwrap();
    let mut open = File::open(&two).unwrap();
    fs::remove_file(&one).unwrap();
    assert!(!two.exists());
    let mut bytes = Vec::new();
    open.read_to_end(&mut bytes).unwrap();
    assert_same(&bytes, &[7; 100_000]);
}

/// When an asynchronous write beyond the known end fails, the kernel truncates the file to that
/// end. It doesn't know what other clients have written meanwhile.
fn a_failed_write_does_not_truncate_data_of_other_clients(cluster: &Cluster) {
    const MIB: usize = 1 << 20;
    let [one, two] = cluster.paths("aio");
    let open = |path: &Path| {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(libc::O_DIRECT)
            .open(path)
            .unwrap()
    };
    let (first, second) = (open(&one), open(&two));
    let piece = vec![7_u8; 4096];
    assert_eq!(aio::write_at(&first, &piece, 0).unwrap(), 4096);
    second.write_all_at(&vec![8; MIB], 4096).unwrap();
    cluster.storage.are_broken.store(true, Ordering::SeqCst);
    aio::write_at(&first, &piece, 4 * MIB as u64).unwrap_err();
    cluster.storage.are_broken.store(false, Ordering::SeqCst);
    assert_eq!(fs::metadata(&two).unwrap().len(), (4096 + MIB) as u64);
    let mut bytes = vec![0; MIB];
    second.read_exact_at(&mut bytes, 4096).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 8), "what was written by others is gone");
    // An intended truncation succeeds, at the latest the second time.
    let _ = first.set_len(100);
    first.set_len(100).unwrap();
    assert_eq!(fs::metadata(&two).unwrap().len(), 100);
}
