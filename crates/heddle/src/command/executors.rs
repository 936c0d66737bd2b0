//! `heddle farmem executors`: the role in this process, until a signal.

use std::time::Duration;

use executors::{ExecutorsSettings, OwnersAllowed, StorageSettings};
use heddle_cli::beside;

use super::executors_node::ExecutorsNode;
use super::executors_relay;
use crate::cli::executors::FarMemoryExecutorsArguments;
use crate::failure::CommandError;
use crate::output;
use crate::signals::StopSignals;

/// The program of executors, and the package that has it.
pub(super) const PROGRAM: &str = "heddle-executor";
pub(super) const PACKAGE: &str = "heddle-pushdown-executor";
/// How many times its memory an executor may store, if nothing else is said.
const STORAGE_TIMES_MEMORY: u64 = 8;

/// Runs the role.
pub async fn run(arguments: &FarMemoryExecutorsArguments) -> Result<(), CommandError> {
    node::logging::start("info").map_err(CommandError::new)?;
    if arguments.bound {
        super::end_with_parent()?;
    }
    let mut signals = StopSignals::listen()?;
    let role = ExecutorsNode::start(settings(arguments)?, arguments.metrics).await?;
    let mut relay = executors_relay::start_executors_end(&arguments.relay, &arguments.socket).await?;
    let listening = relay.as_ref().map_or(String::new(), |relay| format!(" and {}", relay.address()));
    let metrics = role.metrics().map_or(String::new(), |address| format!("; metrics at http://{address}/metrics"));
    output::print(&format!("executors are ready at {}{listening}{metrics}\n", arguments.socket.display()))?;
    tokio::select! {
        () = signals.received() => {}
        () = executors_relay::ended(&mut relay) => {
            return Err(CommandError::new("the relay has ended by a panic; see its log"));
        }
        reason = role.ended() => return Err(CommandError::new(reason)),
    }
    role.begin_stop();
    tokio::select! {
        () = role.stopped() => output::print("executors have ended\n"),
        // The kernel ends executors with this process.
        () = signals.received() => Err(CommandError::interrupted()),
    }
}

fn settings(arguments: &FarMemoryExecutorsArguments) -> Result<ExecutorsSettings, CommandError> {
    let program = match &arguments.executor {
        Some(program) => program.clone(),
        None => beside::program(PROGRAM, PACKAGE)?,
    };
    // Tenants of other hosts are owners too.
    let tenants = arguments.relay.tenant.iter().map(|(_, user, _)| *user);
    let named = arguments.owner.iter().copied().chain(tenants);
    let is_limited = !arguments.without_limits;
    Ok(ExecutorsSettings {
        owners: OwnersAllowed::new(arguments.any_owner, named),
        executors_max: arguments.executors_max,
        per_owner_max: arguments.per_owner,
        contexts_max: arguments.contexts,
        memory_bytes: is_limited.then_some(arguments.memory),
        processor_percent: is_limited.then_some(arguments.processor),
        owner_memory_bytes: arguments.owner_memory,
        owner_processor_percent: arguments.owner_processor,
        storage: arguments.storage.clone().map(|folder| StorageSettings {
            folder,
            bytes: arguments.storage_bytes.unwrap_or_else(|| arguments.memory.saturating_mul(STORAGE_TIMES_MEMORY)),
        }),
        silence: Duration::from_secs(arguments.silence),
        grace: Duration::from_secs(arguments.grace),
        has_namespaces: !arguments.without_namespaces,
        ..ExecutorsSettings::new(arguments.socket.clone(), program)
    })
}
