//! An overview of all kinds of load within five minutes on two cores.

use super::builders::{Load, doubling, files};
use super::{Figure, Profile, Quantity, XAxis};
use crate::experiment::{Access, Caching, FileSharing, Operation};

const MIB: u64 = 1 << 20;
/// Unaligned records: those of IO500's hard form.
const ODD_RECORD: u64 = 47_008;

pub fn profile() -> Profile {
    let both: &[Operation] = &[Operation::Write, Operation::Read];
    let sequential = Load {
        operations: both,
        sharing: FileSharing::OwnFiles,
        access: Access::Sequential,
        record_bytes: MIB,
        total_bytes: 256 * MIB,
        caching: Caching::Direct,
        seconds: Some(5),
    };
    let shared = Load { sharing: FileSharing::Segments, ..sequential };
    let odd = Load {
        sharing: FileSharing::Interleaved,
        record_bytes: ODD_RECORD,
        total_bytes: 64 * MIB,
        caching: Caching::Cold,
        ..sequential
    };
    let all: &[Operation] = &[Operation::Write, Operation::Read, Operation::Mixed];
    let random =
        Load { operations: all, access: Access::Random, record_bytes: 4096, seconds: Some(1), ..sequential };
    let figure = |title, across, quantity, experiments| Figure {
        title,
        x_axis: across,
        quantity,
        published: "",
        experiments,
        left_out: Vec::new(),
    };
    use {Quantity::Bytes, Quantity::Operations, XAxis::Threads};
    Profile {
        name: "quick",
        system: "",
        is_small: true,
        figures: vec![
            figure(
                "Sequential N-N, 1 MiB records",
                Threads,
                Bytes,
                doubling(1, 16).map(|n| sequential.at(n, 1)).collect(),
            ),
            figure(
                "Sequential N-1 (one file of all), 1 MiB records",
                Threads,
                Bytes,
                doubling(1, 16).map(|n| shared.at(n, 1)).collect(),
            ),
            figure(
                "Interleaved N-1, records of 47,008 bytes",
                Threads,
                Bytes,
                doubling(1, 8).map(|n| odd.at(n, 1)).collect(),
            ),
            figure(
                "Random N-N, 4 KiB records",
                Threads,
                Operations,
                doubling(1, 32).map(|n| random.at(n, 1)).collect(),
            ),
            figure(
                "Files of 4 KiB",
                Threads,
                Operations,
                doubling(1, 16).map(|n| files(n, 1024, 16, 4096)).collect(),
            ),
        ],
    }
}
