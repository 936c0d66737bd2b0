//! Serves the control socket of a process.

use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::rt::CancellationToken;
use base::rt::sync::Semaphore;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

use crate::control::protocol::{
    ControlRequest, ControlResponse, REQUEST_BYTES_MAX, REQUEST_TIMEOUT, SOCKET, socket_path,
};
use crate::control::report::MemoryReport;
use crate::control::storage_report::StorageReport;
use crate::network::NodeError;
use crate::roles::compute::ComputeInstance;

/// Maximum of concurrent connections; one more is closed.
const CONNECTIONS_MAX: usize = 16;

/// The pause after `accept` fails.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A role that answers requests at a control socket.
#[async_trait]
pub(crate) trait ControlHandler: Send + Sync + 'static {
    /// Answers one request.
    async fn handle(&self, request: ControlRequest) -> ControlResponse;
}

#[async_trait]
impl ControlHandler for ComputeInstance {
    async fn handle(&self, request: ControlRequest) -> ControlResponse {
        match request {
            ControlRequest::Memory {} => memory(self.memory_report().await),
            ControlRequest::SetMemory { bytes } => memory(self.set_memory(bytes).await),
            ControlRequest::SetMemoryNode { address, vacated } => memory(self.set_memory_node(&address, vacated).await),
            ControlRequest::AddMemoryNode { file } => memory(self.add_memory_node(&file).await),
            ControlRequest::RemoveMemoryNode { address } => memory(self.remove_memory_node(&address).await),
            ControlRequest::Storage {} => storage(self.storage_report()),
            ControlRequest::AddStorageCopy { name } => storage(self.add_storage_copy(&name)),
            ControlRequest::DropStorageCopy { name } => storage(self.drop_storage_copy(&name)),
            ControlRequest::ForceStorageCopy { name } => storage(self.force_storage_copy(&name).await),
            ControlRequest::Node {} => ControlResponse::Node(self.report()),
            _ => rejected("this is a compute node; ask an orderer for that".to_owned()),
        }
    }
}

/// Listens in the folder of a compute node or an orderer, and creates the folder if it is missing.
///
/// # Errors
/// [`NodeError::File`].
pub(crate) fn start(
    folder: &Path,
    operated: Arc<dyn ControlHandler>,
    stop: CancellationToken,
) -> Result<JoinHandle<()>, NodeError> {
    let socket = folder.join(SOCKET);
    let failed = || NodeError::file("listening at", &socket);
    base::durable::create_folder(folder).map_err(NodeError::file("creating", folder))?;
    let (directory, path) = socket_path(folder).map_err(failed())?;
    // Bind in a folder that only this user can enter, set the mode, then move the socket to its name. It replaces a
    // socket that an earlier process left; this process holds the lock, so the earlier one has ended.
    let hidden = path.with_file_name(format!("{SOCKET}.new"));
    let _ = std::fs::remove_dir_all(&hidden);
    std::fs::DirBuilder::new().mode(0o700).create(&hidden).map_err(failed())?;
    let bound = hidden.join(SOCKET);
    let listener = UnixListener::bind(&bound).map_err(failed())?;
    std::fs::set_permissions(&bound, std::fs::Permissions::from_mode(0o600)).map_err(failed())?;
    base::durable::rename(&bound, &path).map_err(failed())?;
    std::fs::remove_dir(&hidden).map_err(failed())?;
    Ok(tokio::spawn(async move {
        serve(listener, operated, stop).await;
        let _ = std::fs::remove_file(&path);
        drop(directory);
    }))
}

async fn serve(listener: UnixListener, operated: Arc<dyn ControlHandler>, stop: CancellationToken) {
    let connections = Semaphore::new(CONNECTIONS_MAX);
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let Ok((socket, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(permit) = connections.try_acquire() else { continue };
        let operated = Arc::clone(&operated);
        tokio::spawn(async move {
            let _permit = permit;
            // A caller that is too slow or has gone gets no answer.
            let _ = tokio::time::timeout(REQUEST_TIMEOUT, answer(socket, operated.as_ref())).await;
        });
    }
}

pub(super) async fn answer(mut socket: UnixStream, operated: &dyn ControlHandler) -> std::io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let caller = socket.peer_cred()?.uid();
    let reply = match caller == own || caller == 0 {
        false => rejected(format!("user {caller} may not operate this process, which user {own} runs")),
        true => {
            let mut line = String::new();
            BufReader::new((&mut socket).take(REQUEST_BYTES_MAX)).read_line(&mut line).await?;
            match serde_json::from_str(&line) {
                Ok(request) => operated.handle(request).await,
                Err(error) => rejected(format!("this is not a request: {error}; run the same release of both")),
            }
        }
    };
    let line = serde_json::to_string(&reply).expect("a reply has a JSON form") + "\n";
    socket.write_all(line.as_bytes()).await
}

fn storage(report: Result<StorageReport, String>) -> ControlResponse {
    report.map_or_else(rejected, |report| ControlResponse::Storage(Box::new(report)))
}

pub(super) fn memory(report: Result<MemoryReport, String>) -> ControlResponse {
    report.map_or_else(rejected, |report| ControlResponse::Memory(Box::new(report)))
}

pub(super) fn rejected(message: String) -> ControlResponse {
    ControlResponse::Refused { message }
}
