//! `heddle node` and `heddle plan`.

use std::collections::BTreeMap;
use std::time::Duration;

use node::{Network, Placement, Process, ProcessEnd, ProcessRole};

use super::executors_beside::ExecutorsBeside;
use super::up;
use crate::cli::exit;
use crate::cli::network::UpArguments;
use crate::cli::node::{NodeCommand, NodeRunArguments, PlanArguments};
use crate::failure::CommandError;
use crate::output;
use crate::signals::StopSignals;

/// Time limit for an orderly end of a process that has lost an essential part, or its supervisor. After that it ends as
/// in a crash.
const DEFECT_STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs one process until a signal, or until it fails.
pub async fn run(node: &NodeCommand) -> Result<(), CommandError> {
    let (role, NodeRunArguments { config, bound }) = match node {
        NodeCommand::Memory(run) => (ProcessRole::Memory, run),
        NodeCommand::Storage(run) => (ProcessRole::Storage, run),
        NodeCommand::Compute(run) => (ProcessRole::Compute, run),
        NodeCommand::Orderer(run) => (ProcessRole::Orderer, run),
        NodeCommand::Gateway(run) => (ProcessRole::Gateway, run),
    };
    let parent = rustix::process::getppid();
    if *bound {
        super::end_with_parent()?;
    }
    let mut signals = StopSignals::listen()?;
    let process = tokio::select! {
        process = Process::start(role, config) => process?,
        // The interrupted start leaves data as after a crash, from which the next start recovers.
        () = signals.received() => return Ok(()),
    };
    let mut beside = process.executors().map(ExecutorsBeside::start).transpose()?;
    let announcing = async {
        process.ready().await?;
        let ready = process.describe();
        let (name, address, metrics) = (&ready.name, &ready.address, ready.metrics);
        output::print(&format!("{name} is ready at {address}; metrics at http://{metrics}/metrics\n"))?;
        std::future::pending::<Result<ProcessEnd, CommandError>>().await
    };
    let failed = tokio::select! {
        () = signals.received() => None,
        // It may fail before it is ready.
        failed = process.failed() => Some(failed),
        failed = announcing => Some(failed?),
        reason = ExecutorsBeside::ended(&mut beside) => Some(ProcessEnd { reason, is_defect: false }),
    };
    // Before the memory node: functions may go on for a while.
    if let Some(beside) = &mut beside {
        beside.stop(&mut signals).await;
    }
    let name = process.describe().name.clone();
    let is_orphan = *bound && rustix::process::getppid() != parent;
    let stopping = async {
        tokio::select! {
            stopped = process.stop() => stopped.map_err(CommandError::from),
            () = signals.received() => Err(CommandError::interrupted()),
        }
    };
    if is_orphan {
        // The supervisor was killed, so all processes end at the same time: one that ends in order would wait in vain
        // for others, while the next supervisor waits for it.
        let _ = tokio::time::timeout(DEFECT_STOP_TIMEOUT, stopping).await;
        return Err(CommandError::new(format!("{name} has ended with its supervisor")));
    }
    match failed {
        None => {
            stopping.await?;
            output::print(&format!("{name} has ended\n"))
        }
        // The remaining parts may never end; the data on disk is as after a crash, from which the next start recovers.
        Some(ProcessEnd { reason, is_defect: true }) => {
            let _ = tokio::time::timeout(DEFECT_STOP_TIMEOUT, stopping).await;
            Err(CommandError::with_code(exit::DEFECT, format!("{name} has ended: {reason}; see its log for the panic")))
        }
        Some(ProcessEnd { reason, .. }) => {
            stopping.await?;
            Err(CommandError::new(format!("{name} has ended: {reason}")))
        }
    }
}

/// Makes the files of processes on several hosts.
pub async fn plan(arguments: &PlanArguments) -> Result<(), CommandError> {
    let settings = up::settings(&UpArguments {
        directory: arguments.directory.clone(),
        network: arguments.network.clone(),
        ..UpArguments::default()
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
         clients and chaincodes.\n"
    );
    output::print(&text)
}
