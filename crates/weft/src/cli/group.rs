//! What administrators can type about redundancy groups.

use super::QueryArgs;
use clap::{Args, Subcommand};
use types::Scheme;

/// `weft group`.
#[derive(Subcommand, Debug)]
pub enum GroupCommand {
    /// Show all, with the states of their members
    List(QueryArgs),
    /// Show one
    Show(GroupArgs),
    /// Make the groups of a scheme that a pool should have, as far as they aren't there
    Create(GroupCreateArgs),
}

/// A group and where to ask.
#[derive(Args, Debug)]
pub struct GroupArgs {
    /// Id of the group
    pub group: u32,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// `weft group create`.
#[derive(Args, Debug)]
#[command(
    after_help = "weft entry set-pattern DIR --scheme S makes them as well; they are added to when targets join the pool."
)]
pub struct GroupCreateArgs {
    /// Pool whose targets they are made of
    #[arg(long, value_name = "NAME", default_value = mgmt::DEFAULT_POOL.1)]
    pub pool: String,
    /// Redundancy: mirror:2 or mirror:3
    #[arg(long, value_name = "SCHEME")]
    pub scheme: Scheme,
    #[command(flatten)]
    pub query: QueryArgs,
}
