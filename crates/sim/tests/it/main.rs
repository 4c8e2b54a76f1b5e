//! Runs of the simulation, small enough for every build.

mod fresh_seeds;
mod hosts;
mod machine;
mod replay;
