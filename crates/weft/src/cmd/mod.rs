//! The commands, one file each.

mod bench;
mod client;
mod cluster;
mod demo;
mod df;
mod doctor;
mod down;
mod entry_info;
mod entry_set_pattern;
mod export;
mod exposure;
mod fsck;
mod group;
mod health;
mod help;
pub mod install_helper;
mod log;
mod manage;
mod meta_backup;
mod meta_backups;
mod meta_restore;
mod migrate;
mod mount;
mod mount_helper;
mod net;
mod orphans;
mod package_files;
mod plan;
mod pool_list;
mod resync;
mod scrub;
mod serve;
mod session_show;
mod status;
mod target_add;
mod target_drain;
mod target_list;
mod target_remove;
mod tree;
mod umount;
mod up;
mod watch;

pub use self::exposure::parse_domain;
use crate::cli::{Command, EntryCommand};
use crate::exit::{Exit, Outcome};
use rustix::fs::Mode;
use rustix::process::umask;

/// Removes permissions of other users on new files, whatever umask the caller has: only their owner
/// may change them. State directories and targets contain data of all users, and only mounts
/// enforce access rights. Reports and results of measurements stay readable.
pub fn restrict_new_files(command: &Command) {
    let taken = match command {
        Command::Bench(_)
        | Command::Plan(_)
        | Command::Doctor(_)
        | Command::InstallHelper(_)
        | Command::PackageFiles(_) => 0o022,
        // Copies are the user's files.
        Command::Cp(_) => 0,
        _ => 0o077,
    };
    let of_caller = umask(Mode::from_raw_mode(0o077));
    umask(of_caller | Mode::from_raw_mode(taken));
}

/// Runs a command. Returns how the process ends.
pub fn run(command: Command) -> Outcome {
    match command {
        Command::Health(args) if !args.exposure => return health::run(&args),
        Command::Fsck(args) => return fsck::run(&args),
        Command::Demo(args) => return demo::run(&args),
        Command::Doctor(args) => return doctor::run(&args),
        Command::Rm(args) => return tree::rm::run(&args),
        Command::Cp(args) => return tree::cp::run(&args),
        Command::Du(args) => tree::du::run(&args)?,
        Command::Find(args) => return tree::find::run(&args),
        Command::MountHelper(args) => return mount_helper::run(&args),
        Command::Up(args) => up::run(&args)?,
        Command::Down(args) => down::run(&args)?,
        Command::Status(args) => return Ok(status::run(&args)?),
        Command::Health(args) => exposure::run(&args)?,
        Command::Df(args) => return Ok(df::run(&args)?),
        Command::Entry(EntryCommand::Info(args)) => entry_info::run(&args)?,
        Command::Entry(EntryCommand::SetPattern(args)) => entry_set_pattern::run(&args)?,
        Command::Entry(EntryCommand::Migrate(args)) | Command::Migrate(args) => migrate::run(&args)?,
        Command::Client(command) => client::run(command)?,
        Command::Cluster(command) => cluster::run(command)?,
        Command::Node(command) => manage::node(command)?,
        Command::Serve(args) => serve::run(&args)?,
        Command::Mount(args) => mount::run(&args)?,
        Command::Umount(args) => umount::run(&args)?,
        Command::Target(command) => manage::target(command)?,
        Command::Group(command) => group::run(command)?,
        Command::Resync(command) => resync::run(command)?,
        Command::Scrub(command) => scrub::run(command)?,
        Command::Pool(command) => manage::pool(command)?,
        Command::Meta(command) => manage::meta(command)?,
        Command::Session(command) => manage::session(command)?,
        Command::Export(command) => export::run(command)?,
        Command::Net(command) => net::run(command)?,
        Command::Bench(command) => bench::run(command)?,
        Command::Plan(args) => plan::run(&args)?,
        Command::Log(command) => log::run(command)?,
        Command::Help(args) => help::run(&args)?,
        Command::InstallHelper(args) => install_helper::run(&args)?,
        Command::PackageFiles(args) => package_files::run(&args)?,
        Command::WatchMount(args) => crate::mount_watch::run(&args)?,
    }
    Ok(Exit::Success)
}
