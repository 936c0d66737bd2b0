//! The parent's side: starts the processes, sends them tasks, receives their messages, and kills them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::rt::{self, CancellationToken};
use rma::Token;
use serde::Serialize;

use super::messages::{
    GroupTimeouts, ProcessConfig, ProcessMessage, ProcessRole, ProcessTask, ReceivedMessages, failed, now_ns,
};
use crate::sift::systems::KvGeometry;
use measurement::error::Error;

/// How often the parent checks the reports of its children.
const LOOK: Duration = Duration::from_millis(2);
/// How long a step of a measurement may take.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(300);
/// How processes are started, and the common settings of a store's processes.
#[derive(Clone, Debug)]
pub struct Program {
    /// The program, and the arguments that make it one of these processes.
    pub path: PathBuf,
    /// The arguments that make the program one of these processes.
    pub arguments: Vec<&'static str>,
    /// Clients of each process that serves, with one operation in flight each.
    pub clients: u64,
    /// The exponent of Zipf's law by which clients choose keys; 0 is uniform.
    pub theta: f64,
    /// Fixes the choice of keys.
    pub seed: u64,
}

/// A store's processes: their addresses and their secret.
pub struct ProcessGroup {
    program: Program,
    shape: KvGeometry,
    times: GroupTimeouts,
    token: Token,
    addresses: Vec<String>,
    _folder: tempfile::TempDir,
}

impl ProcessGroup {
    /// Prepares the processes of a store; none runs yet.
    ///
    /// # Errors
    /// No folder for their sockets.
    pub fn new(program: &Program, shape: KvGeometry, times: GroupTimeouts) -> Result<ProcessGroup, Error> {
        let folder = tempfile::Builder::new().prefix("heddle-bench-").tempdir().map_err(failed)?;
        let address = |node| folder.path().join(format!("node-{node}")).display().to_string();
        let addresses = (0..shape.nodes()).map(address).collect();
        let (program, token) = (program.clone(), Token::random());
        Ok(ProcessGroup { program, shape, times, token, addresses, _folder: folder })
    }

    /// Starts one, and waits until it is ready.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start(&self, role: ProcessRole, stop: &CancellationToken) -> Result<ChildProcess, Error> {
        let told = ProcessConfig {
            role,
            shape: self.shape,
            times: self.times,
            addresses: self.addresses.clone(),
            token: *self.token.bytes(),
            clients: self.program.clients,
            theta: self.program.theta,
            seed: self.program.seed,
        };
        let mut command = Command::new(&self.program.path);
        command.args(&self.program.arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let (stdin, stdout) = child.stdin.take().zip(child.stdout.take()).expect("both were asked for");
        let heard: Arc<Mutex<ReceivedMessages>> = Arc::default();
        let mut child = ChildProcess { child, stdin, received: Arc::clone(&heard) };
        child.write(&told)?;
        let hearing = move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // A line that a kill has cut short is ignored.
                if let Ok(said) = serde_json::from_str(&line) {
                    heard.lock().unwrap_or_else(PoisonError::into_inner).receive(said);
                }
            }
            heard.lock().unwrap_or_else(PoisonError::into_inner).is_gone = true;
        };
        std::thread::Builder::new().name("hearing".to_owned()).spawn(hearing).map_err(failed)?;
        child.until(stop, |heard| heard.is_ready.then_some(())).await?;
        Ok(child)
    }

    /// Starts empty memory nodes and the first CPU node, and waits until it serves.
    ///
    /// # Errors
    /// As [`ProcessGroup::start`].
    pub async fn start_serving(&self, stop: &CancellationToken) -> Result<(Vec<ChildProcess>, ChildProcess), Error> {
        let memory = self.start_memory(stop).await?;
        let cpu_node = self.start(ProcessRole::CpuNode(1), stop).await?;
        cpu_node.until(stop, |heard| heard.serves).await?;
        Ok((memory, cpu_node))
    }

    async fn start_memory(&self, stop: &CancellationToken) -> Result<Vec<ChildProcess>, Error> {
        let mut memory = Vec::new();
        for node in 0..self.shape.nodes() {
            memory.push(self.start(ProcessRole::Memory(node), stop).await?);
        }
        let group = self.shape.group(&self.addresses, &self.token, self.times.timing())?;
        sift::format(&group).await.map_err(failed)?;
        Ok(memory)
    }
}

/// A process. Dropping it kills it.
pub struct ChildProcess {
    child: std::process::Child,
    stdin: ChildStdin,
    received: Arc<Mutex<ReceivedMessages>>,
}

impl ChildProcess {
    fn write(&mut self, what: &impl Serialize) -> Result<(), Error> {
        let line = serde_json::to_string(what).expect("it is plain data") + "\n";
        self.stdin.write_all(line.as_bytes()).and_then(|()| self.stdin.flush()).map_err(failed)
    }

    /// Gives it a task.
    ///
    /// # Errors
    /// It has ended.
    pub fn send_task(&mut self, task: ProcessTask) -> Result<(), Error> {
        self.write(&task)
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its reports so far.
    pub fn received(&self) -> MutexGuard<'_, ReceivedMessages> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `look` finds something in its reports.
    ///
    /// # Errors
    /// It reports a failure, or reports nothing for long; or the run was stopped.
    pub async fn until<T>(
        &self,
        stop: &CancellationToken,
        look: impl Fn(&mut ReceivedMessages) -> Option<T>,
    ) -> Result<T, Error> {
        let start = Instant::now();
        loop {
            {
                let mut heard = self.received();
                if let Some(found) = look(&mut heard) {
                    return Ok(found);
                }
                heard.check()?;
            }
            if stop.is_cancelled() {
                return Err(Error::Interrupted);
            }
            if start.elapsed() > PROCESS_TIMEOUT {
                return Err(failed("it says nothing any more"));
            }
            rt::sleep(LOOK).await;
        }
    }

    /// Gives it a task, and waits for its answer.
    ///
    /// # Errors
    /// As [`ChildProcess::until`].
    pub async fn run_task_on_child(
        &mut self,
        task: ProcessTask,
        stop: &CancellationToken,
    ) -> Result<ProcessMessage, Error> {
        self.send_task(task)?;
        self.until(stop, |heard| heard.answers.pop_front()).await
    }

    /// Its answer, if it has answered.
    pub fn answer(&self) -> Option<ProcessMessage> {
        self.received().answers.pop_front()
    }

    /// Whether it serves.
    pub fn is_serving(&self) -> bool {
        self.received().serves.is_some()
    }

    /// Kills it (SIGKILL); returns the time.
    pub fn kill(&mut self) -> u64 {
        let at_ns = now_ns();
        // If this fails, it has ended already.
        let _ = self.child.kill();
        at_ns
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
