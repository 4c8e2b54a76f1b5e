//! The commands, one file each.

mod df;
mod down;
mod entry_info;
mod entry_set_pattern;
mod fsck;
pub mod install_helper;
mod mount_helper;
mod pool_list;
mod status;
mod target_list;
mod up;

use crate::cli::{Command, EntryCommand, ListCommand};
use types::Result;

/// Carries out a command.
pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Up(args) => up::run(&args),
        Command::Down(args) => down::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Df(args) => df::run(&args),
        Command::Entry(EntryCommand::Info(args)) => entry_info::run(&args),
        Command::Entry(EntryCommand::SetPattern(args)) => entry_set_pattern::run(&args),
        Command::Target(ListCommand::List(args)) => target_list::run(&args),
        Command::Pool(ListCommand::List(args)) => pool_list::run(&args),
        Command::Fsck(args) => fsck::run(&args),
        Command::InstallHelper(args) => install_helper::run(&args),
        Command::MountHelper(args) => mount_helper::run(&args),
    }
}
