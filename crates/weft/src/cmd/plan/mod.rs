//! `weft plan`: predicts what a configuration achieves, or finds the smallest one that reaches
//! given goals.

mod page;
mod rows;
mod simulate;
mod text;

use crate::cli::PlanArgs;
use crate::exit::{ArgumentCheck, Failure};
use crate::output::{os_error, print, print_json};
use layout::plan::{
    Clients, DEPLOYMENTS, DRIVES, Description, ExpectedPerformance, LINKS, Plan, Requirement, SearchResult,
    Server, plan, search,
};
use serde::Serialize;
use std::path::Path;
use types::{Errno, Error, Result};

/// Longest description that is read, in bytes: one of thousands of kinds of servers is shorter.
const MAX_DESCRIPTION: u64 = 1 << 20;

/// Results to print and write.
#[derive(Serialize)]
struct Answer {
    /// Description that was planned, with the counts that a search found.
    description: Description,
    plan: Option<Plan>,
    /// Promised figures of a file system that is sold by throughput.
    promised: Option<ExpectedPerformance>,
    /// Goals of the search.
    targets: Vec<Requirement>,
    /// The goal that one server less would miss.
    decides: Option<Requirement>,
    /// Results of the simulation.
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated: Option<simulate::Simulated>,
}

/// Runs the command.
pub fn run(args: &PlanArgs) -> Result<(), Failure> {
    if args.kinds {
        return Ok(kinds(args.json)?);
    }
    require_servers(args).or_usage()?;
    let mut answer = answer(args)?;
    if args.simulate {
        answer.simulated = Some(simulate::simulate(&answer.description, simulate::MAX_SERVERS)?);
    }
    if let Some(out) = &args.html {
        let page = page::page(&answer)?;
        std::fs::write(out, page).map_err(|e| os_error(out.display(), &e))?;
    }
    match (args.json, args.csv) {
        (true, _) => print_json(&answer)?,
        (false, true) => print(&rows::csv(&answer)),
        (false, false) => print(&text::screen(&answer)),
    }
    Ok(())
}

fn answer(args: &PlanArgs) -> Result<Answer> {
    let description = described(args)?;
    let promised = match &description.provision {
        Some(provision) => Some(provision.expected_performance(&description.model)?),
        None => None,
    };
    let targets = args.target.clone();
    if !targets.is_empty() {
        let SearchResult { description, plan, decides } = search(&description, &targets)?;
        return Ok(Answer { description, plan: Some(plan), promised, targets, decides, simulated: None });
    }
    // The description may contain only a sold file system, without servers.
    let is_deployment_only = promised.is_some() && description.server.is_empty();
    let plan = if is_deployment_only { None } else { Some(plan(&description)?) };
    Ok(Answer { description, plan, promised, targets, decides: None, simulated: None })
}

/// Returns the description in the file, changed by the options.
fn described(args: &PlanArgs) -> Result<Description> {
    let mut description = match &args.file {
        Some(file) => read(file)?,
        None => {
            require_servers(args)?;
            Description { server: vec![Server::of("")], ..Description::default() }
        }
    };
    if let Some(server) = description.server.last_mut() {
        change(server, args);
    }
    description.pool.scheme = args.scheme.unwrap_or(description.pool.scheme);
    description.pool.spare_percent = args.spare.unwrap_or(description.pool.spare_percent);
    if let Some(count) = args.clients {
        let link = description.server.last().map(|server| server.link.clone()).unwrap_or_default();
        let others = Clients { count, links: 1, link, threads: None, outstanding: None };
        description.clients = Some(Clients { count, ..description.clients.unwrap_or(others) });
    }
    Ok(description)
}

fn read(file: &Path) -> Result<Description> {
    let size = std::fs::metadata(file).map_err(|e| os_error(file.display(), &e))?.len();
    if size > MAX_DESCRIPTION {
        let message = format!("{}: {size} bytes are too many for a description of servers", file.display());
        return Err(Error::new(Errno::EINVAL, message).hint("write one as docs/planning.md shows"));
    }
    let text = std::fs::read_to_string(file).map_err(|e| os_error(file.display(), &e))?;
    toml::from_str(&text).map_err(|e| {
        let message = format!("{}: {}", file.display(), e.to_string().trim_end());
        Error::new(Errno::EINVAL, message).hint("docs/planning.md shows a description and all its fields")
    })
}

/// Checks that there is a description, or the options that replace it.
fn require_servers(args: &PlanArgs) -> Result<()> {
    if args.file.is_some() {
        return Ok(());
    }
    let missing = [
        (args.drives.is_none(), "--drives"),
        (args.drive.is_none(), "--drive"),
        (args.link.is_none(), "--link"),
        // A search finds this number itself.
        (args.servers.is_none() && args.target.is_empty(), "--servers"),
    ];
    let missing: Vec<&str> = missing.iter().filter(|(missing, _)| *missing).map(|(_, name)| *name).collect();
    if !missing.is_empty() {
        let message = format!("without a description {} must be given", missing.join(" and "));
        return Err(Error::new(Errno::EINVAL, message).hint("weft plan FILE, or for example weft plan --servers 6 --drives 12 --drive nvme-gen4-7.68tb --link 100gbe"));
    }
    Ok(())
}

fn change(server: &mut Server, args: &PlanArgs) {
    server.count = args.servers.unwrap_or(server.count);
    server.drives = args.drives.unwrap_or(server.drives);
    server.links = args.links.unwrap_or(server.links);
    server.cores = args.cores.or(server.cores);
    for (given, field) in [(&args.drive, &mut server.drive), (&args.link, &mut server.link)] {
        if let Some(given) = given {
            field.clone_from(given);
        }
    }
}

fn kinds(json: bool) -> Result<()> {
    if json {
        let map = |of: Result<serde_json::Value, serde_json::Error>| {
            of.map_err(|e| Error::new(Errno::EPROTO, format!("the kinds can't be written as JSON: {e}")))
        };
        let drives =
            DRIVES.iter().map(|(name, kind)| Ok((name.to_string(), map(serde_json::to_value(kind))?)));
        let links = LINKS.iter().map(|(name, kind)| Ok((name.to_string(), map(serde_json::to_value(kind))?)));
        let deployments =
            DEPLOYMENTS.iter().map(|(name, kind)| Ok((name.to_string(), map(serde_json::to_value(kind))?)));
        let collect = |of: &mut dyn Iterator<Item = Result<(String, serde_json::Value)>>| {
            of.collect::<Result<serde_json::Map<_, _>>>()
        };
        return print_json(&serde_json::json!({
            "drives": collect(&mut drives.into_iter())?,
            "links": collect(&mut links.into_iter())?,
            "deployments": collect(&mut deployments.into_iter())?,
        }));
    }
    print(&text::kinds());
    Ok(())
}

#[cfg(test)]
mod tests;
