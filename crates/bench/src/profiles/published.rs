//! The experiments of four characterisations that vendors published in 2019 and 2020, with the
//! hardware and results.

use super::builders::{Load, doubling, files};
use super::{Figure, Profile, Quantity, XAxis};
use crate::experiment::{Access, Caching, FileSharing, Operation};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Duration of random phases, in seconds; the publications don't state it.
const RANDOM_SECONDS: u64 = 60;

const BOTH: &[Operation] = &[Operation::Write, Operation::Read];

/// Large transfers; each thread uses its own file.
const SEQUENTIAL: Load = Load {
    operations: BOTH,
    sharing: FileSharing::OwnFiles,
    access: Access::Sequential,
    record_bytes: MIB,
    total_bytes: 8_000_000_000_000,
    caching: Caching::Direct,
    seconds: None,
};

/// Small transfers at random offsets of the thread's own file.
const RANDOM: Load = Load {
    access: Access::Random,
    record_bytes: 4 * KIB,
    total_bytes: TIB,
    seconds: Some(RANDOM_SECONDS),
    ..SEQUENTIAL
};

pub fn profiles() -> Vec<Profile> {
    vec![beegfs_nvme(), pixstor_nvme(), fsx_persistent(), weka_4corner()]
}

fn beegfs_nvme() -> Profile {
    let sequential = Figure {
        title: "Sequential N-N, 1 MiB records",
        x_axis: XAxis::Threads,
        quantity: Quantity::Bytes,
        published: "Both rise with the threads until the network of the servers binds: about 3 GB/s with one thread, writes up to 121 GB/s at 256 threads \
                    (89 % of 136.4 GB/s), reads up to 132 GB/s at 1024 (97 %).",
        experiments: doubling(1, 1024).map(|threads| SEQUENTIAL.at(threads, 1)).collect(),
        left_out: Vec::new(),
    };
    let random = Figure {
        title: "Random N-N, 4 KiB records",
        x_axis: XAxis::Threads,
        quantity: Quantity::Operations,
        published: "Writes up to 3.6 M operations a second at 512 threads, reads up to 3.5 M at 1024. The size of the files wasn't published: here 1 TiB in all.",
        experiments: doubling(4, 1024).map(|threads| RANDOM.at(threads, 1)).collect(),
        left_out: Vec::new(),
    };
    Profile {
        name: "beegfs-nvme",
        system: "BeeGFS on NVMe, 2019: 6 servers with 33 storage targets and 11 EDR links of 12.4 GB/s, 32 clients",
        is_small: false,
        figures: vec![sequential, random],
    }
}

fn pixstor_nvme() -> Profile {
    let large = Load { record_bytes: 8 * MIB, total_bytes: 4 * TIB, caching: Caching::Cold, ..SEQUENTIAL };
    let shared = Load { sharing: FileSharing::Segments, ..large };
    let own = Figure {
        title: "Sequential N-N, 8 MiB records",
        x_axis: XAxis::Threads,
        quantity: Quantity::Bytes,
        published: "Writes up to 40.9 GB/s and 40 sustained, reads up to 84.5 GB/s and 81 sustained: a plateau below the 96 GB/s of four links.",
        experiments: doubling(1, 1024).map(|threads| large.at(threads, 1)).collect(),
        left_out: Vec::new(),
    };
    let one = Figure {
        title: "Sequential N-1 (one file of all), 8 MiB records",
        x_axis: XAxis::Threads,
        quantity: Quantity::Bytes,
        published: "Writes up to 34.5 GB/s and 31.5 sustained, reads up to 51.6 GB/s and 50 sustained.",
        experiments: doubling(1, 512).map(|threads| shared.at(threads, 1)).collect(),
        left_out: Vec::new(),
    };
    let random = Figure {
        title: "Random N-N, 4 KiB records, 16 in flight per thread",
        x_axis: XAxis::Threads,
        quantity: Quantity::Operations,
        published: "Writes up to 5.06 M operations a second, reads up to 7.31 M; both stay there. The size of the files wasn't published: here 1 TiB in all.",
        experiments: doubling(1, 1024).map(|threads| RANDOM.at(threads, 16)).collect(),
        left_out: Vec::new(),
    };
    let metadata = Figure {
        title: "Files of 4 KiB, 1024 in a directory",
        x_axis: XAxis::Threads,
        quantity: Quantity::Operations,
        published: "Creates up to 113 k a second and stay there; stats up to 6.88 M at 64 threads, 3.2 M sustained; reads up to 705 k at 128 threads, 500 k sustained; \
                    removals up to 370 k, 265 k sustained.",
        experiments: doubling(1, 512).map(|threads| files(threads, 2 << 20, 2048, 4 * KIB)).collect(),
        left_out: Vec::new(),
    };
    Profile {
        name: "pixstor-nvme",
        system: "PixStor (GPFS) on NVMe, 2020: 4 servers in mirrored pairs with 32 drives and 8 EDR links, 16 clients",
        is_small: false,
        figures: vec![own, one, random, metadata],
    }
}

fn fsx_persistent() -> Profile {
    // Four clients with eight threads each.
    let figure = |title, operation: Operation, total_bytes, published| Figure {
        title,
        x_axis: XAxis::Threads,
        quantity: Quantity::Bytes,
        published,
        experiments: vec![Load { operations: &[operation], total_bytes, ..SEQUENTIAL }.at(32, 1)],
        left_out: Vec::new(),
    };
    Profile {
        name: "fsx-persistent",
        system: "FSx for Lustre persistent-50, 2.4 TiB, 2020: 117 MB/s of the disks and 586 MB/s of the network are sold, 4 clients",
        is_small: false,
        figures: vec![
            figure(
                "Write, 512 GiB in all",
                Operation::Write,
                512 * GIB,
                "604 MB/s while credits last, 149 MB/s after they have run out: 27 % above what was sold.",
            ),
            figure(
                "Read, 64 GiB in all",
                Operation::Read,
                64 * GIB,
                "638 MB/s while credits last, 153 MB/s after they have run out: 31 % above what was sold.",
            ),
            figure(
                "Read, 5.28 GiB in all",
                Operation::Read,
                // Rounded to whole records of each thread.
                528 * GIB / 100,
                "3170 MB/s while credits last, 625 MB/s after they have run out: everything lay in the memory of the servers there.",
            ),
        ],
    }
}

fn weka_4corner() -> Profile {
    let depths = |load: Load| doubling(1, 32).map(|depth| load.at(72, depth)).collect::<Vec<_>>();
    let small = |title, operations, published| Figure {
        title,
        x_axis: XAxis::QueueDepth,
        quantity: Quantity::Operations,
        published,
        experiments: depths(Load { operations, ..RANDOM }),
        left_out: Vec::new(),
    };
    let large = |title, operations, published| Figure {
        title,
        x_axis: XAxis::QueueDepth,
        quantity: Quantity::Bytes,
        published,
        experiments: depths(Load {
            operations,
            record_bytes: 128 * KIB,
            total_bytes: TIB,
            seconds: Some(RANDOM_SECONDS),
            ..SEQUENTIAL
        }),
        left_out: Vec::new(),
    };
    Profile {
        name: "weka-4corner",
        system: "WekaFS, 2020: 6 servers with 6 NVMe and one 100 GbE link each, erasure coding 4+2, 9 clients with 8 jobs each",
        is_small: false,
        figures: vec![
            small(
                "Random reads of 4 KiB",
                &[Operation::Read],
                "4.6 M operations a second at depth 32, 487 us each.",
            ),
            small(
                "Random writes of 4 KiB",
                &[Operation::Write],
                "626 k operations a second at depth 4, 696 k at depth 16: a plateau where depth only adds latency, 830 us at depth 8 and 1.6 ms at 16.",
            ),
            small(
                "Random, 70 % reads and 30 % writes of 4 KiB",
                &[Operation::Mixed],
                "1.6 M operations a second at depth 16, 467 us for reads and 3.6 ms for writes.",
            ),
            large("Sequential reads of 128 KiB", &[Operation::Read], "62 GB/s at depth 16, 2.3 ms each."),
            large(
                "Sequential writes of 128 KiB",
                &[Operation::Write],
                "The most at depth 16, with 86 % more latency than at depth 8.",
            ),
        ],
    }
}
