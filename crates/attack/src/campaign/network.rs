//! A network to be attacked, in one of its forms.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::target::{TargetKind, TargetNetwork};
use crate::wire::random;

/// The forms in which a network runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetworkMode {
    /// `heddle up`: one process.
    Up,
    /// `heddle up --isolate`: processes that reach one another's memory over TCP.
    Isolate,
    /// `heddle plan`: processes on several hosts, here addresses of one.
    Plan,
    /// `heddle kv up`.
    Kv,
}

impl NetworkMode {
    pub const ALL: [NetworkMode; 4] = [NetworkMode::Up, NetworkMode::Isolate, NetworkMode::Plan, NetworkMode::Kv];

    fn name(self) -> &'static str {
        match self {
            NetworkMode::Up => "up",
            NetworkMode::Isolate => "isolate",
            NetworkMode::Plan => "plan",
            NetworkMode::Kv => "kv",
        }
    }

    /// Whether a network of this form has such a port.
    pub fn has(self, kind: TargetKind) -> bool {
        match self {
            NetworkMode::Up => matches!(kind, TargetKind::Gateway | TargetKind::Orderer | TargetKind::Metrics),
            NetworkMode::Isolate | NetworkMode::Plan => kind != TargetKind::Kv,
            NetworkMode::Kv => kind == TargetKind::Kv,
        }
    }
}

impl fmt::Display for NetworkMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for NetworkMode {
    type Err = String;

    fn from_str(text: &str) -> Result<NetworkMode, String> {
        let found = NetworkMode::ALL.into_iter().find(|form| form.name() == text);
        found.ok_or_else(|| format!("no form of network: {text}"))
    }
}

/// The first two are the newcomers', the last one is the attackers'.
const ORGANIZATIONS: usize = 3;
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);

const CONFIG: &str = "[pool]\nprovider = \"tcp\"\ncompute_nodes = 2\noffload = \"always\"\nmemory_bytes = 268435456\n\
                      peer_bytes = 67108864\n";

/// A running network, ended when this is dropped.
pub struct AttackedNetwork {
    pub form: NetworkMode,
    children: Vec<(String, Child)>,
    folder: tempfile::TempDir,
}

impl AttackedNetwork {
    /// Starts a network and waits until it is ready.
    ///
    /// # Errors
    /// The network does not start; the error ends with its output.
    pub fn start(heddle: &Path, form: NetworkMode) -> io::Result<AttackedNetwork> {
        let folder = tempfile::Builder::new().prefix("heddle-attack-").tempdir()?;
        let mut network = AttackedNetwork { form, children: Vec::new(), folder };
        let config = network.folder.path().join("config.toml");
        std::fs::write(&config, CONFIG)?;
        let organizations = ORGANIZATIONS.to_string();
        let config = config.display().to_string();
        let up = ["up", "--bound", "--any-ports", "--orgs", &organizations];
        match form {
            NetworkMode::Up => network.spawn(heddle, "heddle", &up)?,
            NetworkMode::Isolate => {
                network.spawn(heddle, "heddle", &[&up[..], &["--isolate", "--config", &config]].concat())?;
            }
            NetworkMode::Kv => {
                network.spawn(heddle, "heddle", &["kv", "up", "--listen", "127.0.0.1:0", "--keys", "10000"])?
            }
            NetworkMode::Plan => network.plan(heddle, &organizations, &config)?,
        }
        let start = Instant::now();
        while !network.is_ready() {
            if start.elapsed() > READY_TIMEOUT || network.has_ended() {
                return Err(io::Error::other(format!("the network did not start:\n{}", network.log())));
            }
            std::thread::sleep(POLL);
        }
        Ok(network)
    }

    /// Its directory.
    pub fn dir(&self) -> PathBuf {
        self.folder.path().join("network")
    }

    /// Names and ids of its processes, without those of the attackers' organisation.
    ///
    /// # Errors
    /// The network's description cannot be read.
    pub fn processes(&self) -> io::Result<Vec<(String, u32)>> {
        let own = format!("org{ORGANIZATIONS}");
        let processes = match self.form {
            NetworkMode::Plan => self.children.iter().map(|(name, child)| (name.clone(), child.id())).collect(),
            _ => TargetNetwork::read(&self.dir())?.processes(),
        };
        Ok(processes.into_iter().filter(|(name, _)| !name.contains(&own)).collect())
    }

    fn spawn(&mut self, heddle: &Path, name: &str, arguments: &[&str]) -> io::Result<()> {
        let log = File::create(self.folder.path().join(format!("{name}.log")))?;
        let mut command = Command::new(heddle);
        command.args(arguments);
        if arguments.first() != Some(&"node") {
            command.arg("--dir").arg(self.dir());
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?;
        self.children.push((name.to_owned(), child));
        Ok(())
    }

    /// Plans a network on three addresses, and starts the processes of all organisations except the attackers', which only
    /// has credentials.
    fn plan(&mut self, heddle: &Path, organizations: &str, config: &str) -> io::Result<()> {
        let base = 12_000 + u32::from(u16::from_le_bytes(random())) % 15_000;
        let [gateway, orderer, links, metrics] = [100, 10, 200, 20].map(|offset| (base + offset).to_string());
        let output = Command::new(heddle)
            .args(["plan", "--host", "127.0.0.1", "--place", "memory-1=127.0.0.2", "--place", "storage-org1=127.0.0.3"])
            .args(["--orgs", organizations, "--config", config, "--gateway-port", &gateway, "--orderer-port", &orderer])
            .args(["--links-port", &links, "--metrics-port", &metrics, "--dir"])
            .arg(self.dir())
            .output()?;
        if !output.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        let attackers = format!("org{ORGANIZATIONS}");
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Some((_, command)) = line.split_once("heddle node ") else { continue };
            let Some((role, config)) = command.split_once(" --config ") else { continue };
            let Some(name) = config.trim().strip_suffix("/node.toml") else { continue };
            if !name.contains(&attackers) {
                let config = self.dir().join("nodes").join(name).join("node.toml").display().to_string();
                self.spawn(heddle, name, &["node", role.trim(), "--config", &config])?;
            }
        }
        Ok(())
    }

    fn is_ready(&self) -> bool {
        let describes = |path: PathBuf, process: u32| {
            let value: Option<serde_json::Value> =
                std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
            value.is_some_and(|value| value["process"] == process)
        };
        let dir = self.dir();
        self.children.iter().all(|(name, child)| match self.form {
            NetworkMode::Plan => describes(dir.join("nodes").join(name).join("ready.json"), child.id()),
            NetworkMode::Kv => describes(dir.join("kv.json"), child.id()),
            NetworkMode::Up | NetworkMode::Isolate => describes(dir.join("endpoints.json"), child.id()),
        })
    }

    fn has_ended(&mut self) -> bool {
        self.children.iter_mut().any(|(_, child)| !matches!(child.try_wait(), Ok(None)))
    }

    /// The last output of its processes.
    fn log(&self) -> String {
        let mut text = String::new();
        for (name, _) in &self.children {
            let log = std::fs::read_to_string(self.folder.path().join(format!("{name}.log"))).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            text.extend(lines[lines.len().saturating_sub(5)..].iter().map(|line| format!("{name}: {line}\n")));
        }
        text
    }
}

impl Drop for AttackedNetwork {
    fn drop(&mut self) {
        for (_, child) in &self.children {
            // With a signal, so that a supervisor can end the processes that it started.
            let _ = Command::new("kill").arg(child.id().to_string()).stderr(Stdio::null()).status();
        }
        let start = Instant::now();
        for (_, child) in &mut self.children {
            while start.elapsed() < STOP_TIMEOUT && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(POLL);
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
