//! A memory node in a process of its own, for measurements that limit its processor.
//!
//! 1. The measuring process makes a folder for a socket and starts the program again, with what it shall be.
//! 2. The token by which the two know each other goes through the child's standard input; a line on its standard output says
//!    that it answers.
//! 3. The child ends with its parent, or when it is dropped: it is killed, as it keeps nothing.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use base::rt::Stop;
use pool::{MemoryNode, MemoryNodeOptions};
use rma::{HostOptions, NodeId, TOKEN_BYTES, Token};

use super::limiter::{Kind, Limiter};
use crate::error::Error;
use crate::process;
use crate::progress::Measuring;
use crate::state::setup::{OWNER, fabric, failed};
use crate::state::two_sided;

/// What a memory node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// It gives sections, and is passive otherwise.
    Passive,
    /// It is asked for addresses and buffers, as in the paper's section 4.2.
    TwoSided,
}

impl Form {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Form::Passive => "passive",
            Form::TwoSided => "two-sided",
        }
    }
}

/// What the child is told.
#[derive(Clone, Debug)]
pub struct Options {
    pub form: Form,
    /// Its socket.
    pub socket: PathBuf,
    pub bytes: u64,
    pub section_bytes: u64,
}

/// What the child says once it answers.
const READY: &str = "ready";

/// A memory node that runs elsewhere. Dropping it kills it.
pub struct MemoryProcess {
    child: Child,
    pub address: String,
    pub token: Token,
    /// Goes after the child has ended, when nobody is in its group any more.
    limiter: Option<Limiter>,
    _folder: tempfile::TempDir,
}

impl MemoryProcess {
    /// Starts `program` with `arguments`, after which come those of [`Options`], and waits until it answers.
    ///
    /// # Errors
    /// It cannot be started, or ends.
    pub fn start(
        program: &Path,
        arguments: &[&str],
        form: Form,
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

    /// From now on its processor can be limited.
    ///
    /// # Errors
    /// Those of [`Limiter::new`].
    pub fn limit_by(&mut self, kind: Kind) -> Result<&Limiter, Error> {
        let limiter = Limiter::new(kind, self.child.id())?;
        Ok(self.limiter.insert(limiter))
    }

    /// Gives it so many percent of one processor; `None` lifts the limit.
    ///
    /// # Errors
    /// The system refuses.
    ///
    /// # Panics
    /// Without [`MemoryProcess::limit_by`] before.
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
/// Its memory or its socket cannot be had, or the token has not come.
pub fn serve(options: &Options) -> Measuring<'_, ()> {
    Box::pin(serve_until_killed(options))
}

async fn serve_until_killed(options: &Options) -> Result<(), Error> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|error| failed("the parent's end", error))?;
    let mut token = [0; TOKEN_BYTES];
    std::io::Read::read_exact(&mut std::io::stdin(), &mut token).map_err(|error| failed("a token", error))?;
    let token = Token::new(token);
    let owner = move |name: &str| (name == OWNER).then(|| token.clone());
    let host_options = HostOptions { node: NodeId(1), tokens: Arc::new(owner) };
    let host = fabric(None).host(&options.socket.display().to_string(), host_options).await;
    let host = host.map_err(|error| failed("a memory node", error))?;
    let answers = || {
        let mut stdout = std::io::stdout();
        writeln!(stdout, "{READY}").and_then(|()| stdout.flush()).map_err(|error| failed("a memory node", error))
    };
    match options.form {
        Form::Passive => {
            let Options { bytes: budget_bytes, section_bytes, .. } = *options;
            let node = MemoryNode::start(MemoryNodeOptions { host, budget_bytes, section_bytes, stop: Stop::new() });
            let _node = node.await.map_err(|error| failed("a memory node", error))?;
            answers()?;
            std::future::pending().await
        }
        Form::TwoSided => {
            let node = two_sided::Node::start(host, options.bytes).await?;
            answers()?;
            node.serve().await
        }
    }
}
