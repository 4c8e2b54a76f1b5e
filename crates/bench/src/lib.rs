//! Benchmarks: which experiments there are, the load that they put on a directory, what was
//! measured, and which limit binds.
//!
//! An [`Experiment`] says what is done; [`Results`] hold what came of it, beside the [`Ceiling`]s
//! that were measured on the same machine, and are what reports, comparisons and importers of other
//! programs' output have in common. Knows nothing of services and of the command line; whoever
//! calls it gives a directory.
//!
//! Invariants: a rate is bytes or operations by the time of the whole phase, from when the first
//! thread begins until the last has ended; a figure that a cache has answered says so; what an
//! experiment has written is removed, however it ends.

pub mod ceilings;
pub mod characterize;
pub mod compare;
pub mod draw;
mod experiment;
pub mod host;
pub mod import;
pub mod load;
mod names;
mod needs;
pub mod profiles;
mod results;
mod roofline;
pub mod text;
mod when;

pub use experiment::{
    Access, Caching, Experiment, FileSharing, IoExperiment, MetaExperiment, Operation, Through, TreeShape,
};
pub use names::{io_name, meta_name};
pub use results::{Ceiling, FORMAT, Latency, Limit, Machine, Measured, Results, Run, median};
pub use roofline::{Binding, Workload, binding, binding_of, exceeded};
pub use when::rfc3339;
