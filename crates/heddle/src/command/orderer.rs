//! `heddle orderer`: the members of a group of orderers on Raft.
//!
//! 1. Orderers are asked through the sockets in their folders ([`node::control`]); whichever leads does what is asked of it, a step at
//!    a time. Where another one leads by then, that one is asked.
//! 2. To add one: its files ([`node::enlist`]), whereupon whoever supervises the network starts it; then the steps, until it has a vote.
//!    All of it can be broken off anywhere and begun again.
//! 3. To remove one: hand over where it leads, then the change, then its name goes from the files.

use std::fs::{File, TryLockError};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use node::Network;
use node::control::{ControlError, OrderersReport, Request, ask_orderer, orderer_of};
use node::enlist::{self, Enlisted};

use crate::cli::exit;
use crate::cli::orderer::{Add, Asked, Members, Plan, Remove};
use crate::failure::Failure;
use crate::{instance, output};

/// Between two steps.
const POLL: Duration = Duration::from_millis(100);
/// How long nobody may lead, or a step may be of no avail.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a process may take to be started and to answer.
const START_MAX: Duration = Duration::from_secs(60);

/// Where orderers can be asked.
struct Group {
    /// The network's directory, unless one orderer alone is asked.
    dir: Option<PathBuf>,
    folders: Vec<PathBuf>,
}

impl Group {
    fn of(asked: &Asked) -> Result<Group, Failure> {
        if let Some(folder) = &asked.node {
            return Ok(Group { dir: None, folders: vec![folder.clone()] });
        }
        let dir = &asked.directory.dir;
        super::expect_network(dir)?;
        let roster = enlist::roster(dir)?;
        let endpoints = instance::expect_running(dir)?;
        if endpoints.processes.is_empty() {
            return Err(Failure::new(
                "the orderers of this network are one process, and stay those that it was made with; they are processes of \
                 their own, and can be asked and changed, with `heddle up --isolate`",
            ));
        }
        let folders = roster.numbers.iter().map(|number| enlist::folder(dir, *number)).collect();
        Ok(Group { dir: Some(dir.clone()), folders })
    }

    /// What each of them says that answers, and why the last one does not that does not.
    async fn reports(&self) -> (Vec<(&Path, OrderersReport)>, Option<ControlError>) {
        let (mut reports, mut problem) = (Vec::new(), None);
        for folder in &self.folders {
            match ask_orderer(folder, &Request::Orderers {}).await {
                Ok(report) => reports.push((folder.as_path(), report)),
                Err(error) => problem = Some(error),
            }
        }
        reports.sort_by_key(|(_, report)| (report.leads(), report.term));
        (reports, problem)
    }

    /// The one that leads, as soon as one does.
    async fn leader(&self) -> Result<(&Path, OrderersReport), Failure> {
        let start = Instant::now();
        loop {
            let (mut reports, problem) = self.reports().await;
            match reports.pop() {
                Some((folder, report)) if report.leads() => return Ok((folder, report)),
                Some((_, report)) if self.dir.is_none() => return Err(elsewhere(report.leader, address(&report))),
                None if self.dir.is_none() => {
                    return Err(problem.map_or_else(|| Failure::new("no orderer was asked"), failure));
                }
                _ if start.elapsed() < PATIENCE => tokio::time::sleep(POLL).await,
                _ => {
                    let why = problem.map_or_else(String::new, |problem| format!(": {problem}"));
                    return Err(Failure::new(format!("no orderer leads{why}; see that a majority of them runs")));
                }
            }
        }
    }

    /// Has the leader go step after step until a report is as wanted, or `tell` gives up.
    async fn until(
        &self,
        request: &Request,
        mut tell: impl FnMut(&OrderersReport) -> Result<(), Failure>,
        is_done: impl Fn(&OrderersReport) -> bool,
    ) -> Result<OrderersReport, Failure> {
        let (mut since, mut doubt) = (Instant::now(), None);
        loop {
            let (folder, _) = self.leader().await?;
            match ask_orderer(folder, request).await {
                Ok(report) if is_done(&report) => return Ok(report),
                Ok(report) => {
                    (since, doubt) = (Instant::now(), None);
                    tell(&report)?;
                }
                Err(ControlError::NotLeading { leader, address }) if self.dir.is_none() => {
                    return Err(elsewhere(leader, address));
                }
                // Whoever leads now is asked for the same, and knows whether it was done.
                Err(error @ (ControlError::Ambiguous(_) | ControlError::Absent { .. })) => doubt = Some(error),
                Err(ControlError::NotLeading { .. } | ControlError::Busy) => {}
                Err(error) => return Err(failure(error)),
            }
            if since.elapsed() > PATIENCE {
                let message = match doubt {
                    Some(doubt) => format!("it may have been done: {doubt}"),
                    None => {
                        "the orderers do not get it done; it may be done later. See `heddle orderer members`".to_owned()
                    }
                };
                return Err(Failure::new(message));
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

/// One change of a network's orderers at a time, as long as this is held.
fn changing(dir: &Path) -> Result<File, Failure> {
    let path = dir.join("orderers.lock");
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", path.display()));
    let file = File::options().write(true).create(true).truncate(false).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let dir = dir.display();
            Err(Failure::new(format!("another `heddle orderer` changes the orderers of {dir}; wait until it is done")))
        }
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

fn address(report: &OrderersReport) -> Option<String> {
    Some(report.orderer(report.leader?)?.address.clone())
}

fn elsewhere(leader: Option<u64>, address: Option<String>) -> Failure {
    Failure::new(match leader {
        Some(leader) => {
            let (name, address) = (orderer_of(leader), address.unwrap_or_default());
            format!("{name} at {address} leads: run this on its host, with --node and its folder")
        }
        None => "no orderer leads for now; try again".to_owned(),
    })
}

fn failure(error: ControlError) -> Failure {
    match error {
        ControlError::Absent { .. } => Failure::with_code(exit::NOT_RUNNING, error),
        error => Failure::new(error),
    }
}

pub async fn members(arguments: &Members) -> Result<(), Failure> {
    let group = Group::of(&arguments.asked)?;
    let (mut reports, problem) = group.reports().await;
    let Some((_, report)) = reports.pop() else {
        return Err(problem.map_or_else(|| Failure::new("no orderer was asked"), failure));
    };
    if arguments.json {
        return output::print_json(&serde_json::to_value(&report).map_err(Failure::new)?);
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
            (Some(_), None) => ", not heard of".to_owned(),
            (Some(behind), Some(ms)) => format!(", {behind} entries behind, heard of {ms} ms ago"),
        };
        text += &format!("{:<12} {role:<7} {}{heard}\n", orderer_of(orderer.number), orderer.address);
    }
    if !report.leads() {
        text += &match report.leader {
            Some(leader) => format!("{} says so; {} leads, and knows more\n", report.name, orderer_of(leader)),
            None => format!("{} says so; it knows of no leader\n", report.name),
        };
    }
    text
}

pub async fn add(arguments: &Add) -> Result<(), Failure> {
    let group = Group::of(&arguments.asked)?;
    let _alone = group.dir.as_deref().map(changing).transpose()?;
    let (_, report) = group.leader().await?;
    let new = match (&group.dir, arguments.number, &arguments.address) {
        (_, Some(number), Some(address)) => Added { number, address: address.clone() },
        (Some(dir), ..) => {
            let new = started(dir, &report).await?;
            Added { number: new.number, address: new.address }
        }
        (None, ..) => return Err(Failure::new("say which one is to be added: --number and --address")),
    };
    let Added { number, address } = new;
    let name = orderer_of(number);
    let (start, mut told) = (Instant::now(), Instant::now());
    let tell = |report: &OrderersReport| {
        let behind = report.orderer(number).and_then(|orderer| orderer.behind);
        let behind = behind.map_or_else(String::new, |behind| format!(", {behind} entries behind"));
        if start.elapsed() > Duration::from_secs(arguments.timeout) {
            return Err(late(&name, &behind, arguments.timeout));
        }
        if told.elapsed() > Duration::from_secs(1) {
            told = Instant::now();
            eprintln!("{name} learns{behind}");
        }
        Ok(())
    };
    let request = Request::AdmitOrderer { number, address };
    let votes = |report: &OrderersReport| report.orderer(number).is_some_and(|orderer| orderer.votes);
    let report = group.until(&request, tell, votes).await?;
    output::print(&text(&report))
}

/// An orderer that is to be a member has not caught up in time.
fn late(name: &str, behind: &str, seconds: u64) -> Failure {
    Failure::new(format!(
        "{name} has no vote after {seconds} s{behind}: see that it runs and that the orderers reach it; \
         `heddle orderer members` says how far it is. The same command goes on with it, longer with --timeout, and \
         `heddle orderer remove {name}` gives it up"
    ))
}

/// What is to be a member.
struct Added {
    number: u64,
    address: String,
}

/// One orderer more, which runs: one whose files there are and that has no vote yet, or a new one.
async fn started(dir: &Path, report: &OrderersReport) -> Result<Enlisted, Failure> {
    let begun = enlist::roster(dir)?.numbers.into_iter();
    let begun = begun.into_iter().find(|number| report.orderer(*number).is_none_or(|orderer| !orderer.votes));
    let new = match begun {
        Some(number) => enlist::enlisted(dir, number)?,
        None => enlist::enlist(dir, None)?,
    };
    let start = Instant::now();
    while ask_orderer(&new.folder, &Request::Orderers {}).await.is_err() {
        if start.elapsed() > START_MAX {
            let (name, seconds) = (&new.name, START_MAX.as_secs());
            let log = new.folder.join("heddle.log");
            let message = format!("{name} does not answer after {seconds} s; see {}, and try again", log.display());
            return Err(Failure::new(message));
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(new)
}

pub async fn plan(arguments: &Plan) -> Result<(), Failure> {
    let dir = &arguments.directory.dir;
    super::expect_network(dir)?;
    let _alone = changing(dir)?;
    // Where a network is supervised here, its supervisor says which orderers there are.
    let planned = match instance::is_planned(dir) {
        true => Some(Network::open(dir).await?),
        false => None,
    };
    let announce = || planned.as_ref().map_or(Ok(()), Network::announce_orderers);
    let (host, port) = match (arguments.removed, arguments.host, arguments.port) {
        (Some(number), ..) => {
            let name = orderer_of(number);
            if !enlist::roster(dir)?.numbers.contains(&number) {
                return Err(Failure::new(format!("{} plans no {name}", dir.display())));
            }
            enlist::strike(dir, number)?;
            announce()?;
            let nodes = dir.join("nodes");
            let text = format!(
                "Copy node.toml of gateways and compute nodes from {} again: none names {name}.\n",
                nodes.display()
            );
            return output::print(&text);
        }
        (None, Some(host), Some(port)) => (host, port),
        _ => return Err(Failure::new("say where the orderer is to run: --host and --port")),
    };
    let new = enlist::enlist(dir, Some(SocketAddr::new(host, port)))?;
    announce()?;
    let Enlisted { number, name, folder, address, answers: [blocks, intake, clients] } = &new;
    output::print(&format!(
        "Copy {folder} to {host}, and run there:\n\n  heddle node orderer --config {name}/node.toml\n\n\
         Then, on the host of the orderer that leads (`heddle orderer members` says which), with its folder:\n\n  \
         heddle orderer add --node FOLDER --number {number} --address {address}\n\n\
         It answers compute nodes at {blocks}, gateways at {intake}, clients at {clients}, orderers at {address}.\n\
         Copy node.toml of gateways and compute nodes from {nodes} again: it names this orderer now.\n",
        folder = folder.display(),
        nodes = dir.join("nodes").display(),
    ))
}

pub async fn remove(arguments: &Remove) -> Result<(), Failure> {
    let group = Group::of(&arguments.asked)?;
    let _alone = group.dir.as_deref().map(changing).transpose()?;
    let (number, name) = (arguments.orderer, orderer_of(arguments.orderer));
    let start = Instant::now();
    loop {
        let (folder, report) = group.leader().await?;
        let is_listed = group.folders.iter().any(|folder| folder.ends_with(&name));
        if report.orderer(number).is_none() && !(group.dir.is_some() && is_listed) {
            return Err(Failure::new(format!("there is no {name}; see `heddle orderer members`")));
        }
        if report.number != number {
            break;
        }
        eprintln!("{name} leads, and hands over");
        match ask_orderer(folder, &Request::HandOver {}).await {
            // It is asked again if it leads again.
            Ok(_) | Err(ControlError::Busy | ControlError::NotLeading { .. } | ControlError::Absent { .. }) => {}
            Err(error) => return Err(failure(error)),
        }
        if start.elapsed() > PATIENCE {
            let message = format!("{name} leads, and no other orderer takes over; see `heddle orderer members`");
            return Err(Failure::new(message));
        }
        tokio::time::sleep(POLL).await;
    }
    let is_gone = |report: &OrderersReport| report.orderer(number).is_none();
    let report = group.until(&Request::RemoveOrderer { number }, |_| Ok(()), is_gone).await?;
    if let Some(dir) = &group.dir {
        enlist::strike(dir, number)?;
    }
    output::print(&text(&report))
}
