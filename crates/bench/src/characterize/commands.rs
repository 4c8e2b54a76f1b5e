//! The command that repeats one experiment.

use crate::{Access, Caching, Experiment, FileSharing, IoExperiment, MetaExperiment, Operation, TreeShape};

/// Returns the value of `--operations` for `weft bench io` and `weft bench meta`.
fn words(operations: &[Operation]) -> String {
    operations.iter().map(crate::figure_parts::serde_name).collect::<Vec<_>>().join(",")
}

/// Returns the equivalent `weft bench io ...` or `weft bench meta ...`.
pub fn command(experiment: &Experiment, place: &str, iterations: u32) -> String {
    let (kind, mut options) = match experiment {
        Experiment::Io(io) => ("io", of_io(io)),
        Experiment::Meta(meta) => ("meta", of_meta(meta)),
    };
    options.push(format!("--iterations {iterations}"));
    format!("weft bench {kind} {place} {}", options.join(" "))
}

fn of_io(io: &IoExperiment) -> Vec<String> {
    let sharing = match io.sharing {
        FileSharing::OwnFiles => "own",
        FileSharing::Segments => "segments",
        FileSharing::Interleaved => "interleaved",
    };
    let access = if io.access == Access::Random { "random" } else { "seq" };
    let mut options = vec![
        format!("--operations {}", words(&io.operations)),
        format!("--threads {}", io.threads),
        format!("--sharing {sharing}"),
        format!("--access {access}"),
        format!("--record {}", io.record_bytes),
        format!("--size {}", io.thread_bytes),
        format!("--depth {}", io.queue_depth),
        match io.caching {
            Caching::Direct => "--direct".into(),
            Caching::Cold => "--buffered".into(),
            Caching::Warm => "--warm".into(),
        },
    ];
    options.extend(io.seconds.map(|seconds| format!("--seconds {seconds}")));
    options
}

fn of_meta(meta: &MetaExperiment) -> Vec<String> {
    let shape = match meta.shape {
        TreeShape::OwnDirectories { directories } => format!("--directories {directories}"),
        TreeShape::SharedDirectory => "--shared".into(),
    };
    vec![
        format!("--operations {}", words(&meta.operations)),
        format!("--threads {}", meta.threads),
        format!("--files {}", meta.thread_files),
        format!("--size {}", meta.file_bytes),
        shape,
    ]
}
