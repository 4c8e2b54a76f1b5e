//! NUMA zones: of a node that is bound to one, and of targets whose disks are near one.

use crate::node_config::TargetConfig;
use crate::output::os_error;
use rt::NumaZone;
use std::io::ErrorKind;
use types::{Errno, Error, Result};

/// Finds a zone of this machine.
///
/// # Errors
/// `EINVAL` if it doesn't exist or has no CPUs.
pub fn find(zone: u32) -> Result<NumaZone> {
    NumaZone::find(zone).map_err(|cause| match cause.kind() {
        ErrorKind::NotFound => {
            Error::new(Errno::EINVAL, format!("this machine has no NUMA zone {zone}")).hint(known())
        }
        ErrorKind::Unsupported => {
            Error::new(Errno::EINVAL, format!("NUMA zone {zone} has no CPUs")).hint(known())
        }
        _ => os_error(format_args!("NUMA zone {zone}"), &cause),
    })
}

fn known() -> String {
    let zones: Vec<String> = NumaZone::all().iter().map(u32::to_string).collect();
    match &zones[..] {
        [] => "its kernel knows none: leave out --numa, and numa in node.toml".into(),
        [only] => format!("it has zone {only} only; lscpu shows its CPUs"),
        some => format!("it has the zones {}; lscpu shows their CPUs", some.join(", ")),
    }
}

/// Binds this process to a zone. Must be called before it has threads.
pub fn bind(zone: u32) -> Result<()> {
    let zone = find(zone)?;
    let number = zone.number();
    zone.bind_process().map_err(|cause| {
        let error = os_error(format_args!("this process can't be bound to NUMA zone {number}"), &cause);
        match cause.kind() {
            ErrorKind::InvalidInput => error.hint(format!(
                "its container or its service may use none of the CPUs {:?}: see AllowedCPUs, or cpuset of the control group",
                zone.cpus()
            )),
            _ => error.hint("its container must allow the system calls sched_setaffinity and set_mempolicy"),
        }
    })?;
    tracing::info!(zone = number, cpus = ?zone.cpus(), "bound to NUMA zone {number}");
    Ok(())
}

/// Refuses a target of another zone than the one that its node is bound to.
pub fn require_same_zone(node: Option<u32>, target: &TargetConfig) -> Result<()> {
    let (Some(bound), Some(near)) = (node, target.numa) else { return Ok(()) };
    if bound == near {
        return Ok(());
    }
    let path = target.path.display();
    Err(Error::new(
        Errno::EINVAL,
        format!("target {path} is of NUMA zone {near}, and this node is bound to zone {bound}"),
    )
    .hint(format!("serve it by the node of zone {near}: move its lines from one node.toml to the other, and start both again")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_zone_is_refused_with_the_known_ones() {
        let error = find(999).unwrap_err();
        assert!(error.message.contains("no NUMA zone 999") && !error.hint.is_empty(), "{error:?}");
    }

    #[test]
    fn a_bound_node_has_the_targets_of_its_zone_and_those_of_none() {
        let target = |numa| TargetConfig { path: "/disk".into(), pool: "default".into(), numa, new: false };
        for (node, near) in [(None, None), (None, Some(1)), (Some(1), None), (Some(1), Some(1))] {
            require_same_zone(node, &target(near)).unwrap();
        }
        let error = require_same_zone(Some(0), &target(Some(1))).unwrap_err();
        assert!(error.message.contains("/disk is of NUMA zone 1"), "{error:?}");
    }
}
