//! `heddle orderer`: shows, adds and removes the members of an ordering group on Raft.
//!
//! 1. The command reaches orderers through the sockets in their folders ([`node::control`]). The leader carries out a
//!    request, one step at a time. If another orderer has become leader, the command sends the request to the new
//!    leader.
//! 2. To add an orderer, make its files ([`node::membership`]); the network's supervisor then starts it. Then request
//!    step after step until the orderer has a vote. The command may be interrupted at any point and run again.
//! 3. To remove an orderer, let it hand over leadership if it is the leader, then change the membership, then delete
//!    its name from the files.

use std::fs::{File, TryLockError};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use node::Network;
use node::control::{ControlError, ControlRequest, OrderersReport, orderer_of, request_orderer};
use node::membership::{self, AddedOrderer};

use crate::cli::exit;
use crate::cli::orderer::{
    OrdererAddArguments, OrdererMembersArguments, OrdererPlanArguments, OrdererRemoveArguments, OrdererTarget,
};
use crate::failure::CommandError;
use crate::{instance, output};

/// The pause between two steps.
const POLL: Duration = Duration::from_millis(100);
/// How long the group may have no leader, or a step may make no progress.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for a process to be started and to answer.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The orderers that can be asked.
struct OrdererGroup {
    /// The network's directory, unless a single orderer is asked.
    network_dir: Option<PathBuf>,
    folders: Vec<PathBuf>,
}

impl OrdererGroup {
    fn of(asked: &OrdererTarget) -> Result<OrdererGroup, CommandError> {
        if let Some(folder) = &asked.node {
            return Ok(OrdererGroup { network_dir: None, folders: vec![folder.clone()] });
        }
        let dir = &asked.directory.dir;
        instance::expect_network(dir)?;
        let orderer_set = membership::orderer_set(dir)?;
        let endpoints = instance::expect_running(dir)?;
        if endpoints.processes.is_empty() {
            return Err(CommandError::new(
                "the orderers of this network are one process and cannot be changed; with `heddle up --isolate` they are \
                 processes of their own, which can be asked and changed",
            ));
        }
        let folders = orderer_set.numbers.iter().map(|number| membership::folder(dir, *number)).collect();
        Ok(OrdererGroup { network_dir: Some(dir.clone()), folders })
    }

    /// The reports of the orderers that answer, and the error of the last one that does not.
    async fn reports(&self) -> (Vec<(&Path, OrderersReport)>, Option<ControlError>) {
        let (mut reports, mut problem) = (Vec::new(), None);
        for folder in &self.folders {
            match request_orderer(folder, &ControlRequest::Orderers {}).await {
                Ok(report) => reports.push((folder.as_path(), report)),
                Err(error) => problem = Some(error),
            }
        }
        reports.sort_by_key(|(_, report)| (report.is_leader(), report.term));
        (reports, problem)
    }

    /// The leader, as soon as there is one.
    async fn leader(&self) -> Result<(&Path, OrderersReport), CommandError> {
        let start = Instant::now();
        loop {
            let (mut reports, problem) = self.reports().await;
            match reports.pop() {
                Some((folder, report)) if report.is_leader() => return Ok((folder, report)),
                Some((_, report)) if self.network_dir.is_none() => {
                    return Err(leader_on_other_host(report.leader, address(&report)));
                }
                None if self.network_dir.is_none() => {
                    return Err(problem.map_or_else(|| CommandError::new("no orderer was asked"), failure));
                }
                _ if start.elapsed() < PROGRESS_TIMEOUT => tokio::time::sleep(POLL).await,
                _ => {
                    let why = problem.map_or_else(String::new, |problem| format!(": {problem}"));
                    return Err(CommandError::new(format!(
                        "no orderer leads{why}; make sure that a majority of them runs"
                    )));
                }
            }
        }
    }

    /// Has the leader take step after step until a report is as wanted, or `tell` gives up.
    async fn repeat_until(
        &self,
        request: &ControlRequest,
        mut tell: impl FnMut(&OrderersReport) -> Result<(), CommandError>,
        is_done: impl Fn(&OrderersReport) -> bool,
    ) -> Result<OrderersReport, CommandError> {
        let (mut since, mut doubt) = (Instant::now(), None);
        loop {
            let (folder, _) = self.leader().await?;
            match request_orderer(folder, request).await {
                Ok(report) if is_done(&report) => return Ok(report),
                Ok(report) => {
                    (since, doubt) = (Instant::now(), None);
                    tell(&report)?;
                }
                Err(ControlError::NotLeading { leader, address }) if self.network_dir.is_none() => {
                    return Err(leader_on_other_host(leader, address));
                }
                // The same request goes to the current leader, which knows whether the step took effect.
                Err(error @ (ControlError::Ambiguous(_) | ControlError::Unreachable { .. })) => doubt = Some(error),
                Err(ControlError::NotLeading { .. } | ControlError::Busy) => {}
                Err(error) => return Err(failure(error)),
            }
            if since.elapsed() > PROGRESS_TIMEOUT {
                let message = match doubt {
                    Some(doubt) => format!("it may or may not have taken effect: {doubt}"),
                    None => "the orderers make no progress; it may take effect later. See `heddle orderer members`"
                        .to_owned(),
                };
                return Err(CommandError::new(message));
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

/// The lock under which a network's orderers are changed, one change at a time.
fn changing(dir: &Path) -> Result<File, CommandError> {
    let path = dir.join("orderers.lock");
    let failed = |error: std::io::Error| CommandError::new(format!("{}: {error}", path.display()));
    let file = File::options().write(true).create(true).truncate(false).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let dir = dir.display();
            Err(CommandError::new(format!(
                "another `heddle orderer` changes the orderers of {dir}; wait until it has ended"
            )))
        }
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

fn address(report: &OrderersReport) -> Option<String> {
    Some(report.orderer(report.leader?)?.address.clone())
}

fn leader_on_other_host(leader: Option<u64>, address: Option<String>) -> CommandError {
    CommandError::new(match leader {
        Some(leader) => {
            let (name, address) = (orderer_of(leader), address.unwrap_or_default());
            format!("{name} at {address} leads: run this on its host, with --node and its folder")
        }
        None => "no orderer leads for now; try again".to_owned(),
    })
}

fn failure(error: ControlError) -> CommandError {
    match error {
        ControlError::Unreachable { .. } => CommandError::with_code(exit::NOT_RUNNING, error),
        error => CommandError::new(error),
    }
}

pub async fn members(arguments: &OrdererMembersArguments) -> Result<(), CommandError> {
    let group = OrdererGroup::of(&arguments.asked)?;
    let (mut reports, problem) = group.reports().await;
    let Some((_, report)) = reports.pop() else {
        return Err(problem.map_or_else(|| CommandError::new("no orderer was asked"), failure));
    };
    if arguments.json {
        return output::print_json(&serde_json::to_value(&report).map_err(CommandError::new)?);
    }
    output::print(&text(&report))
}

fn text(report: &OrderersReport) -> String {
    let mut text = String::new();
    for orderer in &report.orderers {
        let leads = report.leader == Some(orderer.number);
        let role = match (leads, orderer.votes) {
            (true, _) => "leads",
            (false, true) => "votes",
            (false, false) => "learns",
        };
        let heard = match (orderer.behind, orderer.heard_ms) {
            (None, _) => String::new(),
            _ if leads => String::new(),
            (Some(_), None) => ", never heard from".to_owned(),
            (Some(behind), Some(ms)) => format!(", {behind} entries behind, heard from {ms} ms ago"),
        };
        text += &format!("{:<12} {role:<7} {}{heard}\n", orderer_of(orderer.number), orderer.address);
    }
    if !report.is_leader() {
        text += &match report.leader {
            Some(leader) => format!("reported by {}; the leader, {}, knows more\n", report.name, orderer_of(leader)),
            None => format!("reported by {}, which knows no leader\n", report.name),
        };
    }
    text
}

pub async fn add(arguments: &OrdererAddArguments) -> Result<(), CommandError> {
    let group = OrdererGroup::of(&arguments.asked)?;
    let _alone = group.network_dir.as_deref().map(changing).transpose()?;
    let (_, report) = group.leader().await?;
    let new = match (&group.network_dir, arguments.number, &arguments.address) {
        (_, Some(number), Some(address)) => AddedMember { number, address: address.clone() },
        (Some(dir), ..) => {
            let new = started(dir, &report).await?;
            AddedMember { number: new.number, address: new.address }
        }
        (None, ..) => return Err(CommandError::new("name the orderer to be added with --number and --address")),
    };
    let AddedMember { number, address } = new;
    let name = orderer_of(number);
    let (start, mut told) = (Instant::now(), Instant::now());
    let tell = |report: &OrderersReport| {
        let behind = report.orderer(number).and_then(|orderer| orderer.behind);
        let behind = behind.map_or_else(String::new, |behind| format!(", {behind} entries behind"));
        if start.elapsed() > Duration::from_secs(arguments.timeout) {
            return Err(catch_up_timeout(&name, &behind, arguments.timeout));
        }
        if told.elapsed() > Duration::from_secs(1) {
            told = Instant::now();
            eprintln!("{name} learns{behind}");
        }
        Ok(())
    };
    let request = ControlRequest::AdmitOrderer { number, address };
    let votes = |report: &OrderersReport| report.orderer(number).is_some_and(|orderer| orderer.votes);
    let report = group.repeat_until(&request, tell, votes).await?;
    output::print(&text(&report))
}

/// The failure of an orderer that has not caught up in time.
fn catch_up_timeout(name: &str, behind: &str, seconds: u64) -> CommandError {
    CommandError::new(format!(
        "{name} has no vote after {seconds} s{behind}: check that it runs and that the orderers reach it; \
         `heddle orderer members` shows how far behind it is. Run the same command again to continue, longer with \
         --timeout, or `heddle orderer remove {name}` to give it up"
    ))
}

/// An orderer that is to become a member.
struct AddedMember {
    number: u64,
    address: String,
}

/// A running orderer that is to be added: one that has files but no vote yet, or a new one.
async fn started(dir: &Path, report: &OrderersReport) -> Result<AddedOrderer, CommandError> {
    let begun = membership::orderer_set(dir)?.numbers.into_iter();
    let begun = begun.into_iter().find(|number| report.orderer(*number).is_none_or(|orderer| !orderer.votes));
    let new = match begun {
        Some(number) => membership::added_orderer(dir, number)?,
        None => membership::add_orderer(dir, None)?,
    };
    let start = Instant::now();
    while request_orderer(&new.folder, &ControlRequest::Orderers {}).await.is_err() {
        if start.elapsed() > START_TIMEOUT {
            let (name, seconds) = (&new.name, START_TIMEOUT.as_secs());
            let log = new.folder.join("heddle.log");
            let message = format!("{name} does not answer after {seconds} s; see {}, and try again", log.display());
            return Err(CommandError::new(message));
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(new)
}

pub async fn plan(arguments: &OrdererPlanArguments) -> Result<(), CommandError> {
    let dir = &arguments.directory.dir;
    instance::expect_network(dir)?;
    let _alone = changing(dir)?;
    // In a supervised network the supervisor publishes the orderers.
    let planned = match instance::is_planned(dir) {
        true => Some(Network::open(dir).await?),
        false => None,
    };
    let announce = || planned.as_ref().map_or(Ok(()), Network::announce_orderers);
    let (host, port) = match (arguments.removed, arguments.host, arguments.port) {
        (Some(number), ..) => {
            let name = orderer_of(number);
            if !membership::orderer_set(dir)?.numbers.contains(&number) {
                return Err(CommandError::new(format!("{} has no plan for {name}", dir.display())));
            }
            membership::remove_orderer(dir, number)?;
            announce()?;
            let nodes = dir.join("nodes");
            let text = format!(
                "Copy node.toml of gateways and compute nodes from {} again: none of them names {name} any more.\n",
                nodes.display()
            );
            return output::print(&text);
        }
        (None, Some(host), Some(port)) => (host, port),
        _ => return Err(CommandError::new("name the host and the first port of the orderer with --host and --port")),
    };
    let new = membership::add_orderer(dir, Some(SocketAddr::new(host, port)))?;
    announce()?;
    let AddedOrderer { number, name, folder, address, answers: [blocks, intake, clients] } = &new;
    output::print(&format!(
        "Copy {folder} to {host}, and run there:\n\n  heddle node orderer --config {name}/node.toml\n\n\
         Then, on the host of the leading orderer (see `heddle orderer members`), with that orderer's folder:\n\n  \
         heddle orderer add --node FOLDER --number {number} --address {address}\n\n\
         It answers compute nodes at {blocks}, gateways at {intake}, clients at {clients}, orderers at {address}.\n\
         Copy node.toml of gateways and compute nodes from {nodes} again: it names this orderer now.\n",
        folder = folder.display(),
        nodes = dir.join("nodes").display(),
    ))
}

pub async fn remove(arguments: &OrdererRemoveArguments) -> Result<(), CommandError> {
    let group = OrdererGroup::of(&arguments.asked)?;
    let _alone = group.network_dir.as_deref().map(changing).transpose()?;
    let (number, name) = (arguments.orderer, orderer_of(arguments.orderer));
    let start = Instant::now();
    loop {
        let (folder, report) = group.leader().await?;
        let is_listed = group.folders.iter().any(|folder| folder.ends_with(&name));
        if report.orderer(number).is_none() && !(group.network_dir.is_some() && is_listed) {
            return Err(CommandError::new(format!("there is no {name}; see `heddle orderer members`")));
        }
        if report.number != number {
            break;
        }
        eprintln!("{name} leads, and hands over leadership");
        match request_orderer(folder, &ControlRequest::HandOver {}).await {
            // The request is repeated if it leads again.
            Ok(_) | Err(ControlError::Busy | ControlError::NotLeading { .. } | ControlError::Unreachable { .. }) => {}
            Err(error) => return Err(failure(error)),
        }
        if start.elapsed() > PROGRESS_TIMEOUT {
            let message = format!("{name} leads, and no other orderer takes over; see `heddle orderer members`");
            return Err(CommandError::new(message));
        }
        tokio::time::sleep(POLL).await;
    }
    let is_gone = |report: &OrderersReport| report.orderer(number).is_none();
    let report = group.repeat_until(&ControlRequest::RemoveOrderer { number }, |_| Ok(()), is_gone).await?;
    if let Some(dir) = &group.network_dir {
        membership::remove_orderer(dir, number)?;
    }
    output::print(&text(&report))
}
