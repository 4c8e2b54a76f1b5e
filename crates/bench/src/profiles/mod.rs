//! Published characterisations as lists of experiments, and their sizes on a smaller machine.

mod fit;
mod published;
mod quick;
mod shapes;

pub use fit::{Host, MAX_SCALE, Refusal, fitted, largest_scale};

use crate::experiment::{Experiment, Operation};

/// A list of experiments that belong together.
#[derive(Clone, PartialEq, Debug)]
pub struct Profile {
    /// What is typed.
    pub name: &'static str,
    /// The system that was measured, with its hardware.
    pub system: &'static str,
    /// Small on purpose: caches may answer, and the page says so.
    pub is_small: bool,
    /// In the order in which they were published, with the published sizes.
    pub figures: Vec<Figure>,
}

/// One figure: the same load with several numbers of threads or depths.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// What it shows.
    pub title: &'static str,
    /// What changes from point to point.
    pub across: Across,
    /// What is drawn.
    pub quantity: Quantity,
    /// What the published system showed; empty where nothing was published.
    pub published: &'static str,
    /// A point each, for each of their operations.
    pub experiments: Vec<Experiment>,
    /// Thread counts of the publication that don't fit the scale or the memory.
    pub left_out: Vec<u32>,
}

/// What changes from point to point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Across {
    /// Threads of all clients.
    Threads,
    /// Transfers under way in each thread.
    QueueDepth,
}

/// What is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quantity {
    /// Bytes a second.
    Bytes,
    /// Operations a second.
    Operations,
}

impl Figure {
    /// The operations of its experiments, in their order.
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

/// All profiles.
pub fn profiles() -> Vec<Profile> {
    let mut all = published::profiles();
    all.push(quick::profile());
    all
}

/// The one of a name.
pub fn profile(name: &str) -> Option<Profile> {
    profiles().into_iter().find(|profile| profile.name == name)
}

#[cfg(test)]
mod tests;
