//! `weft mount`.

use crate::assembly::{MountProcess, unreachable_error};
use crate::cli::MountArgs;
use crate::node_config::ClusterFile;
use crate::output::{os_error, print_to_stderr};
use crate::{detach, logging, mountpoint, systemd};
use identity::Credentials;
use std::cell::Cell;
use std::path::Path;
use types::{Result, Timestamp};

/// Mounts the cluster. Returns when it is mounted, unless `--foreground`.
pub fn run(args: &MountArgs) -> Result<()> {
    let args = absolute(args)?;
    if args.foreground && !args.detached {
        warn_of_expiry(&ClusterFile::read(&args.cluster)?, &args.cluster)?;
        let mount = start(&args, || ())?;
        systemd::notify_ready(&format!("mounted at {}", args.mountpoint.display()));
        return mount.serve();
    }
    let log = args.log.clone().unwrap_or_else(|| logging::of_mount(&args.mountpoint));
    if args.detached {
        return in_background(&args, &log);
    }
    // Errors that need no second process are reported by this one.
    warn_of_expiry(&ClusterFile::read(&args.cluster)?, &args.cluster)?;
    detach::spawn_quiet(&MountArgs { detached: true, ..args }.to_arguments(), &log)
}

/// Warns on the terminal if the certificate of a cluster file expires soon.
fn warn_of_expiry(file: &ClusterFile, path: &Path) -> Result<()> {
    if let Some(credentials) = file.credentials()?
        && let Some(warning) = expiry_warning(&credentials, path, rt::now().secs)
    {
        print_to_stderr(&warning);
    }
    Ok(())
}

fn expiry_warning(credentials: &Credentials, path: &Path, now_s: i64) -> Option<String> {
    let (identity, validity) = (credentials.identity(), credentials.validity());
    if !identity::expires_soon(
        identity.expires,
        validity.until - validity.from - identity::CLOCK_SKEW_S,
        now_s,
    ) {
        return None;
    }
    let (ends, path) = (Timestamp::new(identity.expires, 0), path.display());
    let verb = if identity.expires <= now_s { "expired on" } else { "expires on" };
    Some(format!(
        "warning: the certificate of {identity} in {path} {verb} {ends}\n\
         hint: a mount renews it unless its expiry is final (weft client list on the management node); weft client \
         add creates another cluster file\n"
    ))
}

fn in_background(args: &MountArgs, log: &Path) -> Result<()> {
    let starter = detach::leave_terminal()?;
    let has_log = Cell::new(false);
    let ready = || {
        logging::redirect(log);
        has_log.set(true);
    };
    match start(args, ready) {
        Ok(mount) => {
            starter.report_done()?;
            mount.serve()
        }
        Err(error) => starter.fail("not mounted", error, has_log.get()),
    }
}

fn start(args: &MountArgs, ready: impl FnOnce()) -> Result<MountProcess> {
    logging::init();
    let file = ClusterFile::read(&args.cluster)?;
    mountpoint::prepare(&args.mountpoint)?;
    ready();
    MountProcess::start(args, file.clone()).map_err(|error| unreachable_error(&file, error))
}

/// Returns the arguments with absolute paths: the process leaves its working directory.
fn absolute(args: &MountArgs) -> Result<MountArgs> {
    let cluster = args.cluster.canonicalize().map_err(|e| {
        os_error(format_args!("cluster file {}", args.cluster.display()), &e)
            .hint("weft client add NAME creates one, on the management node")
    })?;
    let mountpoint = mountpoint::resolve(&args.mountpoint)?;
    let log = args.log.as_ref().map(std::path::absolute).transpose();
    let log = log.map_err(|e| os_error("the log file", &e))?;
    Ok(MountArgs { cluster, mountpoint, log, ..args.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use identity::{Authority, EXPIRY_WARNING_S, Validity};

    #[test]
    fn a_mount_warns_thirty_days_before_its_certificate_ends() {
        let now_s = rt::now().secs;
        let authority = Authority::create("01234567-89ab-4def-8123-456789abcdef", "test", now_s).unwrap();
        let credentials = authority.issue_to_client("a", Validity::of_client(now_s), 1).unwrap();
        let ends_s = credentials.identity().expires;
        let warning = |now_s| expiry_warning(&credentials, Path::new("/c"), now_s);
        assert_eq!(warning(ends_s - EXPIRY_WARNING_S), None);
        let text = warning(ends_s - EXPIRY_WARNING_S + 1).unwrap();
        assert!(text.starts_with("warning: the certificate of client/a in /c expires on "), "{text}");
        assert!(warning(ends_s).unwrap().contains("expired on"));
    }
}
