//! Published characterisations as lists of experiments, and their sizes on a smaller machine.

mod builders;
mod fit;
mod published;
mod quick;

pub use fit::{Host, MAX_SCALE, ScaleError, fitted, largest_scale};

use crate::experiment::{Experiment, Operation};

/// A list of related experiments.
#[derive(Clone, PartialEq, Debug)]
pub struct Profile {
    /// Name on the command line.
    pub name: &'static str,
    /// The published system, with its hardware.
    pub system: &'static str,
    /// Small on purpose: caches may answer, and the page says so.
    pub is_small: bool,
    /// In the published order, with the published sizes.
    pub figures: Vec<Figure>,
}

/// One figure: the same load with several thread counts or queue depths.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// Its title.
    pub title: &'static str,
    /// Quantity of the x axis.
    pub x_axis: XAxis,
    /// Quantity of the y axis.
    pub quantity: Quantity,
    /// Results of the published system; empty where nothing was published.
    pub published: &'static str,
    /// One point each, for each of their operations.
    pub experiments: Vec<Experiment>,
    /// Published thread counts that don't fit the scale or the memory.
    pub left_out: Vec<u32>,
}

/// Quantity of the x axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XAxis {
    /// Threads of all clients.
    Threads,
    /// Transfers in flight in each thread.
    QueueDepth,
}

/// Quantity of the y axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quantity {
    /// Bytes per second.
    Bytes,
    /// Operations per second.
    Operations,
}

impl Figure {
    /// Returns the operations of its experiments, in their order.
    pub fn operations(&self) -> Vec<Operation> {
        let mut all = Vec::new();
        for operation in self.experiments.iter().flat_map(Experiment::operations) {
            if !all.contains(operation) {
                all.push(*operation);
            }
        }
        all
    }
}

/// Returns all profiles.
pub fn profiles() -> Vec<Profile> {
    let mut all = published::profiles();
    all.push(quick::profile());
    all
}

/// Returns the profile with this name.
pub fn profile(name: &str) -> Option<Profile> {
    profiles().into_iter().find(|profile| profile.name == name)
}

#[cfg(test)]
mod tests;
