//! Several clients of one cluster: each sees what another did.
//!
//! Services, stores and clients are the real ones, on a simulated machine.

mod accessed;
mod appends;
mod behind;
mod closed;
mod cluster;
mod company;
mod directories;
mod drain;
mod evicted;
mod flags;
mod kernel;
mod late;
mod locks;
mod mapped;
mod moves;
mod names;
mod overtaken;
mod power;
mod privileges;
mod promised;
mod ranges;
mod recalls;
mod repeated;
mod reserved;
mod sessions;
mod shortened;
mod silence;
mod sizes;
mod storm;
mod twin;
mod usage;
mod writers;
