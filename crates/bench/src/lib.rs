//! Benchmarks: experiments, the load that they put on a directory, results, and which limit binds.
//!
//! An [`Experiment`] defines what is measured. [`Results`] contain the measurements, and the
//! [`Ceiling`]s that were measured on the same machine. Reports, comparisons and importers of other
//! programs' output share them. Knows nothing of services and of the command line; the caller
//! provides a directory.
//!
//! Invariants:
//! - A rate is bytes or operations divided by the duration of the whole phase, from the start of
//!   the first thread to the end of the last.
//! - A result that a cache has answered is marked so.
//! - Files of an experiment are removed, however it ends.

pub mod characterize;
pub mod compare;
mod experiment;
pub mod figure_parts;
pub mod host;
pub mod import;
pub mod load;
mod names;
pub mod profiles;
mod requirements;
mod results;
mod roofline;
pub mod text;
mod time_format;

pub use ceilings::{Limit, median};
pub use experiment::{
    Access, Caching, Experiment, FileSharing, IoExperiment, MetaExperiment, Operation, Through, TreeShape,
};
pub use names::{io_name, meta_name};
pub use results::{Ceiling, FORMAT, Latency, Machine, Measured, Results, Run};
pub use roofline::{Binding, Workload, binding, binding_of, exceeded};
pub use time_format::rfc3339;
