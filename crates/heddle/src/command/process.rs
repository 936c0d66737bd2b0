//! `heddle node` and `heddle plan`.

use std::collections::BTreeMap;
use std::time::Duration;

use node::{Ended, Network, Placement, Process, ProcessRole};

use super::up;
use crate::cli::exit;
use crate::cli::network::Up;
use crate::cli::node::{Node, Plan, Run};
use crate::failure::Failure;
use crate::output;
use crate::signals::StopSignals;

/// How long a process may take to end in order that has lost a part of itself, or its supervisor. Then it ends as after a
/// crash.
const HASTY_PATIENCE: Duration = Duration::from_secs(1);

/// Runs one process until a signal, or until it fails.
pub async fn run(node: &Node) -> Result<(), Failure> {
    let (role, Run { config, bound }) = match node {
        Node::Memory(run) => (ProcessRole::Memory, run),
        Node::Storage(run) => (ProcessRole::Storage, run),
        Node::Compute(run) => (ProcessRole::Compute, run),
        Node::Orderer(run) => (ProcessRole::Orderer, run),
        Node::Gateway(run) => (ProcessRole::Gateway, run),
    };
    let parent = rustix::process::getppid();
    if *bound {
        super::end_with_parent()?;
    }
    let mut signals = StopSignals::listen()?;
    let process = tokio::select! {
        process = Process::start(role, config) => process?,
        // What it had begun is as after a crash, which it is made for.
        () = signals.received() => return Ok(()),
    };
    let running = async {
        process.ready().await?;
        let ready = process.describe();
        let (name, address, metrics) = (&ready.name, &ready.address, ready.metrics);
        output::print(&format!("{name} is ready at {address}; metrics at http://{metrics}/metrics\n"))?;
        Ok::<_, Failure>(process.failed().await)
    };
    let failed = tokio::select! {
        () = signals.received() => None,
        failed = running => Some(failed?),
    };
    let name = process.describe().name.clone();
    let is_orphan = *bound && rustix::process::getppid() != parent;
    let stopping = async {
        tokio::select! {
            stopped = process.stop() => stopped.map_err(Failure::from),
            () = signals.received() => Err(Failure::interrupted()),
        }
    };
    if is_orphan {
        // Whoever supervised it was killed. All processes end at the same time, so that one that ends in order waits for
        // others in vain, while the next supervisor waits for it.
        let _ = tokio::time::timeout(HASTY_PATIENCE, stopping).await;
        return Err(Failure::new(format!("{name} has ended with the process that started it")));
    }
    match failed {
        None => {
            stopping.await?;
            output::print(&format!("{name} has ended\n"))
        }
        // What is left of it may never end: what it has on disk is as after a crash, which it is made for.
        Some(Ended { reason, is_defect: true }) => {
            let _ = tokio::time::timeout(HASTY_PATIENCE, stopping).await;
            Err(Failure::with_code(exit::DEFECT, format!("{name} has ended: {reason}; see its log for the panic")))
        }
        Some(Ended { reason, .. }) => {
            stopping.await?;
            Err(Failure::new(format!("{name} has ended: {reason}")))
        }
    }
}

/// Makes the files of processes on several hosts.
pub async fn plan(arguments: &Plan) -> Result<(), Failure> {
    let settings = up::settings(&Up {
        directory: arguments.directory.clone(),
        orgs: arguments.orgs,
        policy: arguments.policy,
        channel: arguments.channel.clone(),
        memory_nodes: arguments.memory_nodes,
        compute_nodes: arguments.compute_nodes,
        ordering: arguments.ordering,
        orderers: arguments.orderers,
        config: arguments.config.clone(),
        ports: arguments.ports.clone(),
        ..Up::default()
    })?;
    let network = Network::open_or_create(&arguments.directory.dir, Some(&settings)).await?;
    let by_name: BTreeMap<_, _> = arguments.place.iter().cloned().collect();
    let plan = network.plan(&Placement::Hosts { default: arguments.host, by_name })?;
    network.announce(&plan, (arguments.host, settings.ports.metrics).into(), Vec::new())?;
    let nodes = network.path().join("nodes");
    let mut text = format!("Copy each folder {}/NAME to its host, and run there, in this order:\n\n", nodes.display());
    for process in &plan.processes {
        let role = process.role.name();
        let line = format!("heddle node {role} --config {}/node.toml", process.name);
        text += &format!("{:<16} {line}\n", process.host.to_string());
        for (whom, address) in &process.answers {
            text += &format!("{:<18} answers {whom} at {address}\n", "");
        }
    }
    let over = if network.config().pool.tls { "over mutual TLS" } else { "in clear text, as pool.tls = false says" };
    text += &format!(
        "\ntcp: is remote memory access between the processes of one organisation and memory nodes, {over};\n\
         tls: is links over mutual TLS between organisations and to orderers; an address without either is gRPC for\n\
         clients.\n"
    );
    output::print(&text)
}
