//! `weft client`: the clients of a cluster.

use super::group::parse_seconds;
use super::{PlaceOption, QueryArgs};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `weft client`.
#[derive(Subcommand, Debug)]
pub enum ClientCommand {
    /// Create a client and its cluster file, on the management node
    Add(ClientAddArgs),
    /// Show all clients, and when their certificates expire
    List(QueryArgs),
    /// Revoke a client's certificates, and evict its sessions
    Revoke(ClientRevokeArgs),
}

/// `weft client add`.
#[derive(Args, Debug)]
#[command(
    after_help = "A mount renews its certificate automatically. Copy the file to the client, readable only by root."
)]
pub struct ClientAddArgs {
    /// Name of the client, for example its host name
    pub name: String,
    /// Time after which it can't mount any more, like 12h or 90d [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub expires: Option<u64>,
    /// File to write, which must not exist yet; -: standard output [default: NAME.toml]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Validity of each of its certificates, unless --expires is earlier: for tests of renewals
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, hide = true)]
    pub validity: Option<u64>,
    #[command(flatten)]
    pub dir: PlaceOption,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `weft client revoke`.
#[derive(Args, Debug)]
#[command(after_help = "Its certificates are refused at once; weft client add can use the name again.")]
pub struct ClientRevokeArgs {
    /// Name of the client
    pub name: String,
    #[command(flatten)]
    pub query: QueryArgs,
}
