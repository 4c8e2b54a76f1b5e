//! Names of experiments, so that results of different systems and programs can be compared.

use crate::experiment::{Access, FileSharing, TreeShape};

/// Returns the name of reads and writes. Records, threads and depths are reported separately.
pub fn io_name(sharing: FileSharing, access: Access) -> &'static str {
    match (sharing, access) {
        (FileSharing::OwnFiles, Access::Sequential) => "sequential N-N",
        (FileSharing::OwnFiles, Access::Random) => "random N-N",
        (FileSharing::Segments, Access::Sequential) => "sequential N-1",
        (FileSharing::Interleaved, Access::Sequential) => "interleaved N-1",
        (_, Access::Random) => "random N-1",
    }
}

/// Returns the name of metadata operations.
pub fn meta_name(shape: TreeShape) -> &'static str {
    match shape {
        TreeShape::OwnDirectories { .. } => "files in own directories",
        TreeShape::SharedDirectory => "files in a shared directory",
    }
}
