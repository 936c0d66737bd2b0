//! A memory node in a separate process, for measurements that limit its processor.
//!
//! 1. The measuring process makes a folder for a socket and starts the same program as a child, with its role in the arguments.
//! 2. Parent and child authenticate each other with a token, which the parent writes to the child's standard input. A line on
//!    the child's standard output reports that it is ready.
//! 3. The child is killed when its parent ends or drops it; it has no data to save.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use base::rt::CancellationToken;
use pool::{MemoryNode, MemoryNodeConfig};
use rma::{HostConfig, NodeId, TOKEN_BYTES, Token};

use super::limiter::{CpuLimiter, LimiterKind};
use crate::state::setup::{OWNER, failed, provider};
use crate::state::two_sided;
use measurement::error::Error;
use measurement::process;
use measurement::progress::MeasurementFuture;

/// The kind of a memory node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryNodeMode {
    /// It gives sections, and is otherwise passive.
    Passive,
    /// It is asked for addresses and buffers, as in the paper's section 4.2.
    TwoSided,
}

impl MemoryNodeMode {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            MemoryNodeMode::Passive => "passive",
            MemoryNodeMode::TwoSided => "two-sided",
        }
    }
}

/// The child's configuration.
#[derive(Clone, Debug)]
pub struct MemoryProcessConfig {
    /// The kind of memory node.
    pub mode: MemoryNodeMode,
    /// Its socket.
    pub socket: PathBuf,
    /// Bytes of memory that it gives.
    pub bytes: u64,
    /// Bytes of one section.
    pub section_bytes: u64,
}

/// The child's line once it is ready.
const READY: &str = "ready";

/// A memory node in another process. Dropping it kills it.
pub struct MemoryProcess {
    child: Child,
    /// The address at which it answers.
    pub address: String,
    /// The token that it requires.
    pub token: Token,
    /// Dropped after the child has ended, when its group is empty.
    limiter: Option<CpuLimiter>,
    _folder: tempfile::TempDir,
}

impl MemoryProcess {
    /// Starts `program` with `arguments`, followed by those of [`MemoryProcessConfig`], and waits until it is ready.
    ///
    /// # Errors
    /// It cannot be started, or it ends.
    pub fn start(
        program: &Path,
        arguments: &[&str],
        form: MemoryNodeMode,
        bytes: u64,
        section_bytes: u64,
    ) -> Result<MemoryProcess, Error> {
        let failed = |reason: std::io::Error| failed("a memory node's process", reason);
        let folder = tempfile::Builder::new().prefix("heddle-bench-").tempdir().map_err(failed)?;
        let socket = folder.path().join("memory");
        let mut command = Command::new(program);
        command.args(arguments).arg(form.name()).arg(&socket).args([bytes.to_string(), section_bytes.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let token = Token::random();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let address = socket.display().to_string();
        let mut process = MemoryProcess { child, address, token, limiter: None, _folder: folder };
        let (mut stdin, stdout) = stdin.zip(stdout).expect("both were asked for");
        stdin.write_all(process.token.bytes()).map_err(failed)?;
        drop(stdin);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).map_err(failed)?;
        if line.trim() != READY {
            let ended = process.child.wait().map_err(failed)?;
            return Err(Error::Part { what: "a memory node's process", reason: format!("it did not start: {ended}") });
        }
        Ok(process)
    }

    /// Prepares the limiting of its processor time.
    ///
    /// # Errors
    /// Those of [`CpuLimiter::new`].
    pub fn limit_by(&mut self, kind: LimiterKind) -> Result<&CpuLimiter, Error> {
        let limiter = CpuLimiter::new(kind, self.child.id())?;
        Ok(self.limiter.insert(limiter))
    }

    /// Limits it to this percentage of one core; `None` lifts the limit.
    ///
    /// # Errors
    /// The system refuses.
    ///
    /// # Panics
    /// If [`MemoryProcess::limit_by`] was not called before.
    pub fn limit(&self, percent: Option<u32>) -> Result<(), Error> {
        self.limiter.as_ref().expect("what limits it was chosen").set(percent)
    }

    /// Processor time that it has used, in microseconds.
    ///
    /// # Errors
    /// It has ended.
    pub fn cpu_us(&self) -> Result<u64, Error> {
        process::usage(Some(self.child.id())).map(|usage| usage.cpu_us).map_err(Error::ServerGone)
    }
}

impl Drop for MemoryProcess {
    fn drop(&mut self) {
        if let Some(limiter) = &self.limiter {
            limiter.end();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The child's side: serves until the process is killed.
///
/// # Errors
/// There is no memory or no socket for it, or the token has not arrived.
pub fn serve(options: &MemoryProcessConfig) -> MeasurementFuture<'_, ()> {
    Box::pin(serve_until_killed(options))
}

async fn serve_until_killed(options: &MemoryProcessConfig) -> Result<(), Error> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|error| failed("the parent's end", error))?;
    let mut token = [0; TOKEN_BYTES];
    std::io::Read::read_exact(&mut std::io::stdin(), &mut token).map_err(|error| failed("a token", error))?;
    let token = Token::new(token);
    let owner = move |name: &str| (name == OWNER).then(|| token.clone());
    let host_options = HostConfig { node: NodeId(1), tokens: Arc::new(owner) };
    let host = provider(None).host(&options.socket.display().to_string(), host_options).await;
    let host = host.map_err(|error| failed("a memory node", error))?;
    let answers = || {
        let mut stdout = std::io::stdout();
        writeln!(stdout, "{READY}").and_then(|()| stdout.flush()).map_err(|error| failed("a memory node", error))
    };
    match options.mode {
        MemoryNodeMode::Passive => {
            let MemoryProcessConfig { bytes: budget_bytes, section_bytes, .. } = *options;
            let node = MemoryNode::start(MemoryNodeConfig {
                host,
                budget_bytes,
                section_bytes,
                stop: CancellationToken::new(),
            });
            let _node = node.await.map_err(|error| failed("a memory node", error))?;
            answers()?;
            std::future::pending().await
        }
        MemoryNodeMode::TwoSided => {
            let node = two_sided::TwoSidedNode::start(host, options.bytes).await?;
            answers()?;
            node.serve().await
        }
    }
}
