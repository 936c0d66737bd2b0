//! A process and its role.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use base::rt::CancellationToken;
use cgroup::{LimitedProcess, ProcessLimits};
use identity::issue::TlsIdentity;
use tokio::task::JoinHandle;

use crate::network::NodeError;
use crate::process::context::{RoleContext, RoleParts};
use crate::process::end::ProcessEnd;
use crate::process::file::{NodeFile, ProcessRole};
use crate::process::links::{self};
use crate::process::ready::Ready;
use crate::services::Services;
#[cfg(debug_assertions)]
use crate::services::{FAULTS_VARIABLE, inject_faults};
use crate::{Boxed, credentials, metrics, ports};

/// A role that runs in this process.
pub struct Process {
    folder: PathBuf,
    ready: Ready,
    kind: RoleParts,
    /// Stops the ports.
    stop: CancellationToken,
    services: Services,
    tasks: Vec<JoinHandle<()>>,
    executors: Option<executors::ExecutorsFile>,
    /// Left when everything else has stopped.
    _limits: LimitedProcess,
}

impl Process {
    /// Starts the role that a file describes.
    ///
    /// # Errors
    /// [`NodeError`], which says what to change.
    pub fn start(role: ProcessRole, path: &Path) -> Boxed<'_, Result<Process, NodeError>> {
        Box::pin(Process::start_role(role, path))
    }

    async fn start_role(role: ProcessRole, path: &Path) -> Result<Process, NodeError> {
        let file = NodeFile::load(role, path)?;
        crate::logging::start(&file.log)?;
        let folder = std::path::absolute(path).map_err(NodeError::file("finding", path))?;
        let folder = folder.parent().map(Path::to_path_buf).unwrap_or_default();
        // Before the role measures how busy it is.
        let percent = file.compute.as_ref().map_or(0, |compute| compute.cpu_percent);
        let limits = ProcessLimits {
            cpu_percent: Some(percent).filter(|percent| *percent > 0),
            memory_bytes: Some(file.memory_limit_bytes).filter(|bytes| *bytes > 0),
        };
        // Named after the process and its folder, so that the next start takes what a killed process left behind.
        let inode = std::fs::metadata(&folder).map_err(NodeError::file("reading", &folder))?.ino();
        let limits = LimitedProcess::enter(&format!("heddle-{}-{inode:x}", file.name), limits);
        let limits = limits.map_err(NodeError::Limits)?;
        file.crypto.use_in_process().map_err(NodeError::Crypto)?;
        let listener = ports::bind(file.metrics, "metrics").await?;
        let metrics_address = ports::local(&listener);
        let stop = CancellationToken::new();
        // The deny list is in force before any client is served.
        let (watching, notes) = credentials::watch(&folder, &folder, stop.clone())?;
        let tcp_tls = match file.tcp_tls {
            Some(true) => Some(links::tcp_tls(&folder, &TlsIdentity::read(&folder, identity::MemberRole::Peer)?)?),
            said => {
                warn_of_clear_text(&file, said);
                None
            }
        };
        let services = Services::new(stop.clone());
        #[cfg(debug_assertions)]
        if let Some(folder) = std::env::var_os(FAULTS_VARIABLE) {
            drop(tokio::spawn(inject_faults(folder.into(), file.name.clone(), stop.clone())));
        }
        let here = RoleContext { file: &file, folder: &folder, stop: &stop, services: &services, tcp_tls };
        let started = match role {
            ProcessRole::Memory => here.memory().await?,
            ProcessRole::Storage => here.storage().await?,
            ProcessRole::Compute => here.compute().await?,
            ProcessRole::Orderer => here.orderer().await?,
            ProcessRole::Gateway => here.gateway().await?,
        };
        metrics::register();
        let mut tasks = started.tasks;
        tasks.push(watching);
        let health = started.health.with_notes(notes).with_services(services.clone());
        tasks.push(services.watch("the page of metrics", metrics::serve(listener, health, stop.clone())));
        let ready = Ready {
            name: file.name.clone(),
            role,
            process: std::process::id(),
            address: started.address,
            metrics: metrics_address,
            is_added: false,
        };
        let executors = file.executors.clone();
        Ok(Process { folder, ready, kind: started.kind, stop, services, tasks, executors, _limits: limits })
    }

    /// Its role and its addresses.
    pub fn describe(&self) -> &Ready {
        &self.ready
    }

    /// The role executors that the program has to run beside this process, if the file says so.
    pub fn executors(&self) -> Option<&executors::ExecutorsFile> {
        self.executors.as_ref()
    }

    /// Waits until other processes can use it, then writes `ready.json`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn ready(&self) -> Result<(), NodeError> {
        match &self.kind {
            // Wait for the peer, not for each of its compute nodes: the gateway uses those once they answer.
            RoleParts::Gateway(peers) => peers[0].reached().await,
            RoleParts::Compute(compute) => compute.ready().await,
            RoleParts::Memory(_) | RoleParts::LogMemory(_) | RoleParts::Storage(_) | RoleParts::Orderer(_) => {}
        }
        self.ready.store(&self.folder)
    }

    /// Completes when it has stopped by itself, with the reason.
    pub async fn failed(&self) -> ProcessEnd {
        let role = async {
            match &self.kind {
                RoleParts::Compute(compute) => compute.failed().await,
                RoleParts::Orderer(ordering) => ordering.failed().await,
                RoleParts::Storage(storage) => storage.failed().await,
                // A gateway reconnects to what it loses; memory ends with its host, which is a service.
                RoleParts::Memory(_) | RoleParts::LogMemory(_) | RoleParts::Gateway(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = role => ended,
            reason = self.services.failed() => ProcessEnd::defect(reason),
        }
    }

    /// Lets calls finish, makes everything durable and stops.
    ///
    /// # Errors
    /// The role's error; it has stopped all the same.
    pub fn stop(self) -> Boxed<'static, Result<(), NodeError>> {
        Box::pin(self.stop_role())
    }

    async fn stop_role(self) -> Result<(), NodeError> {
        if let RoleParts::Compute(compute) = &self.kind {
            // While its ports still answer.
            compute.drain().await;
        }
        self.stop.cancel();
        // The services that watch the hosts end with them.
        match &self.kind {
            RoleParts::Memory(memory) => memory.stop().await,
            RoleParts::LogMemory(memory) => memory.stop().await,
            _ => {}
        }
        for task in self.tasks {
            // A task that panicked has logged it.
            let _ = task.await;
        }
        match &self.kind {
            RoleParts::Storage(storage) => storage.stop().await?,
            RoleParts::Compute(compute) => compute.stop().await?,
            RoleParts::Orderer(ordering) => ordering.stop().await,
            RoleParts::Memory(_) | RoleParts::LogMemory(_) | RoleParts::Gateway(_) => {}
        }
        Ready::remove(&self.folder);
        Ok(())
    }
}

/// Warns if others on the network can read this process's traffic.
fn warn_of_clear_text(file: &NodeFile, said: Option<bool>) {
    let is_loopback = |address: &str| {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        host.trim_matches(['[', ']']).parse().is_ok_and(|host: std::net::IpAddr| host.is_loopback())
    };
    let text = file.to_text();
    let addresses = text.split('"').filter_map(|word| word.strip_prefix("tcp:"));
    if !addresses.clone().any(|address| !is_loopback(address)) {
        return;
    }
    match said {
        None => tracing::warn!(
            "memory, storage and links at tcp: addresses run in clear text: this plan was made by an earlier release; \
             make it again with `heddle plan`, which writes the certificates"
        ),
        Some(_) => tracing::warn!(
            "memory, storage and links at tcp: addresses run in clear text, as tcp_tls = false says: anyone on the network \
             between these hosts can read and change this peer's state"
        ),
    }
}
