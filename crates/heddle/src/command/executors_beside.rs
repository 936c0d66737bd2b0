//! The role executors beside a memory node: `heddle farmem executors` as a child of `heddle node memory`, by the table `[executors]` of the
//! node's file. A process of its own, since a donor runs nothing for its owners and reads nothing of programs.

use std::ffi::OsString;
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use executors::ExecutorsFile;
use tokio::task::JoinHandle;

use crate::failure::CommandError;
use crate::signals::StopSignals;

/// How often it is looked whether it has ended, while this process stops.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The role's process.
pub(super) struct ExecutorsBeside {
    number: u32,
    waiting: JoinHandle<io::Result<ExitStatus>>,
}

impl ExecutorsBeside {
    /// Starts it. It ends with this process.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn start(file: &ExecutorsFile) -> Result<ExecutorsBeside, CommandError> {
        let program = std::env::current_exe().map_err(CommandError::new)?;
        let child = Command::new(program).args(arguments(file)).spawn();
        let child = child.map_err(|error| CommandError::new(format!("the role executors: {error}")))?;
        let number = child.id();
        Ok(ExecutorsBeside { number, waiting: tokio::task::spawn_blocking(move || wait(child)) })
    }

    /// Completes when it has ended by itself, with the reason; never, if there is none.
    pub(super) async fn ended(beside: &mut Option<ExecutorsBeside>) -> String {
        let Some(beside) = beside else { return std::future::pending().await };
        match (&mut beside.waiting).await {
            Ok(Ok(status)) => format!("the role executors beside it has ended, {status}; its message says why"),
            Ok(Err(error)) => format!("the role executors beside it: {error}"),
            Err(error) => format!("the role executors beside it: {error}"),
        }
    }

    /// Has it stop, and waits until it has; another signal ends the waiting.
    pub(super) async fn stop(&mut self, signals: &mut StopSignals) {
        if let Some(process) = rustix::process::Pid::from_raw(self.number.cast_signed())
            && !self.waiting.is_finished()
        {
            // It may end at this moment; it is this process's child until somebody has waited for it.
            let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        }
        while !self.waiting.is_finished() {
            tokio::select! {
                () = tokio::time::sleep(LOOK_AGAIN) => {}
                () = signals.received() => return,
            }
        }
    }
}

#[allow(clippy::needless_pass_by_value)] // It ends here.
fn wait(mut child: Child) -> io::Result<ExitStatus> {
    child.wait()
}

/// The command line of the role.
fn arguments(file: &ExecutorsFile) -> Vec<OsString> {
    let ExecutorsFile { socket, executor, owners, any_owner, storage, .. } = file;
    let mut arguments: Vec<OsString> = ["farmem", "executors", "--bound", "--socket"].map(OsString::from).into();
    arguments.push(socket.into());
    if let Some(executor) = executor {
        arguments.extend(["--executor".into(), executor.into()]);
    }
    if let Some(storage) = storage {
        arguments.extend(["--storage".into(), storage.into()]);
    }
    if *any_owner {
        arguments.push("--any-owner".into());
    }
    for (name, path) in [("--certificate", &file.certificate), ("--key", &file.key)] {
        arguments.extend(path.iter().flat_map(|path| [name.into(), path.into()]));
    }
    for (name, path) in &file.trust {
        let mut named = OsString::from(format!("{name}="));
        named.push(path);
        arguments.extend(["--trust".into(), named]);
    }
    let tenants = file.tenants.iter().map(|(name, user)| ("--tenant", Some(format!("{name}={user}"))));
    let owners = owners.iter().map(|owner| ("--owner", Some(owner.to_string())));
    let numbers = [
        ("--executors-max", file.executors_max.map(|number| number.to_string())),
        ("--per-owner", file.per_owner.map(|number| number.to_string())),
        ("--contexts", file.contexts.map(|number| number.to_string())),
        ("--memory", file.memory_bytes.map(|number| number.to_string())),
        ("--processor", file.processor.map(|number| number.to_string())),
        ("--owner-memory", file.owner_memory_bytes.map(|number| number.to_string())),
        ("--owner-processor", file.owner_processor.map(|number| number.to_string())),
        ("--storage-bytes", file.storage_bytes.map(|number| number.to_string())),
        ("--silence", file.silence_seconds.map(|number| number.to_string())),
        ("--listen", file.listen.clone()),
        ("--per-tenant", file.per_tenant.map(|number| number.to_string())),
        ("--metrics", file.metrics.map(|address| address.to_string())),
    ];
    for (name, value) in owners.chain(numbers).chain(tenants) {
        if let Some(value) = value {
            arguments.extend([name.into(), value.into()]);
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::farmem::FarMemoryCommand;
    use crate::cli::{Cli, Command as CliCommand};

    #[test]
    fn the_table_of_a_memory_node_is_a_command_line_of_the_role() {
        let file = ExecutorsFile {
            socket: "/run/executors".into(),
            owners: vec![1000, 1001],
            memory_bytes: Some(64 << 20),
            processor: Some(0.5),
            owner_memory_bytes: Some(128 << 20),
            owner_processor: Some(1.5),
            storage: Some("/var/lib/heddle".into()),
            storage_bytes: Some(1 << 30),
            contexts: Some(2),
            silence_seconds: Some(3),
            metrics: Some("127.0.0.1:9444".parse().expect("an address")),
            listen: Some("tls:0.0.0.0:7080".to_owned()),
            certificate: Some("node.pem".into()),
            key: Some("node.key".into()),
            trust: [("Org1".to_owned(), "org1.pem".into())].into(),
            tenants: [("Org1".to_owned(), "1000:100".to_owned())].into(),
            ..ExecutorsFile::default()
        };
        let line = [OsString::from("heddle")].into_iter().chain(arguments(&file));
        let CliCommand::Farmem(FarMemoryCommand::Executors(parsed)) = Cli::parse_from(line).command else {
            panic!("it is another command");
        };
        assert_eq!((parsed.owner, parsed.memory, parsed.processor), (vec![1000, 1001], 64 << 20, 50));
        assert_eq!((parsed.owner_memory, parsed.owner_processor), (Some(128 << 20), Some(150)));
        assert_eq!(parsed.storage_bytes, Some(1 << 30));
        assert_eq!(parsed.storage.as_deref(), Some(std::path::Path::new("/var/lib/heddle")));
        assert_eq!((parsed.contexts, parsed.silence, parsed.bound), (2, 3, true));
        assert_eq!(parsed.relay.listen.as_deref(), Some("tls:0.0.0.0:7080"));
        assert_eq!(parsed.relay.tenant, [("Org1".to_owned(), 1000, 100)]);
        assert_eq!(parsed.relay.tls.trust, [("Org1".to_owned(), "org1.pem".into())]);
        assert_eq!(parsed.relay.tls.key.as_deref(), Some(std::path::Path::new("node.key")));
        assert_eq!(parsed.socket, std::path::Path::new("/run/executors"));
    }
}
