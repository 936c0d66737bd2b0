//! SmallBank as a chaincode in Go, beside the native contract: one service for each organisation's peer.
//!
//! 1. [`ChaincodeProgram::build_go`] writes the source, which is part of this program, into a temporary folder, and builds
//!    it with the `go` of the PATH. Go's own caches make all builds but the first quick.
//! 2. [`ChaincodeServices::start`] starts a process for each organisation, at a free port of this machine, and waits until
//!    the port answers. [`ChaincodeServices::sections`] are the sections of the network's configuration that name them.
//! 3. A process ends when its services are dropped, or when this process has gone: it holds the other end of their
//!    standard input.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base::rt::CancellationToken;
use node::config::ChaincodeConfig;
use node::config::organization_names;

use crate::error::Error;

/// The contract that the chaincode takes the place of.
const CONTRACT: &str = "smallbank";
const SOURCE: [(&str, &str); 4] = [
    ("go.mod", include_str!("../chaincode/smallbank/go.mod")),
    ("go.sum", include_str!("../chaincode/smallbank/go.sum")),
    ("main.go", include_str!("../chaincode/smallbank/main.go")),
    ("smallbank.go", include_str!("../chaincode/smallbank/smallbank.go")),
];
/// How long a chaincode may take until its port answers.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);
const DIAL_TIMEOUT_MS: u32 = 3_000;

/// The built chaincode. Its folder is removed on drop.
pub struct ChaincodeProgram {
    folder: tempfile::TempDir,
}

impl ChaincodeProgram {
    /// Builds SmallBank in Go.
    ///
    /// # Errors
    /// There is no `go`, or the build fails; the message has the end of the compiler's output.
    pub fn build_go() -> Result<ChaincodeProgram, Error> {
        let failed = |reason: String| Error::Part { what: "the chaincode in Go", reason };
        let folder = tempfile::Builder::new().prefix("heddle-chaincode-").tempdir();
        let folder = folder.map_err(|error| failed(format!("no temporary folder: {error}")))?;
        for (name, text) in SOURCE {
            let path = folder.path().join(name);
            std::fs::write(&path, text).map_err(|error| failed(format!("{}: {error}", path.display())))?;
        }
        let program = ChaincodeProgram { folder };
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(program.path()).arg(".").current_dir(program.folder.path());
        // A workspace of Go around the temporary folder has nothing to do with the chaincode.
        build.env("GOWORK", "off").stdin(Stdio::null());
        let output = build.output().map_err(|error| {
            failed(format!("`go` cannot be run: {error}; install Go 1.25 or newer, and put it on the PATH"))
        })?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(failed(format!("`go build` failed with {}:\n{}", output.status, text.trim_end())));
        }
        Ok(program)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("chaincode")
    }
}

/// Processes of a chaincode, one for each organisation in the network's order. They end on drop.
pub struct ChaincodeServices {
    services: Vec<ChaincodeProcess>,
}

struct ChaincodeProcess {
    child: Child,
    address: SocketAddr,
}

impl ChaincodeServices {
    /// No service.
    pub fn none() -> ChaincodeServices {
        ChaincodeServices { services: Vec::new() }
    }

    /// Starts one service per organisation, and waits until every service listens.
    ///
    /// # Errors
    /// A process cannot be started, ends, or does not listen in time; or `stop` is cancelled.
    pub async fn start(
        program: &ChaincodeProgram,
        organizations: usize,
        stop: &CancellationToken,
    ) -> Result<ChaincodeServices, Error> {
        let mut started = ChaincodeServices::none();
        for _ in 0..organizations {
            started.services.push(ChaincodeProcess::start(&program.path())?);
        }
        for service in &mut started.services {
            service.wait_until_it_listens(stop).await?;
        }
        Ok(started)
    }

    /// The sections `[[chaincodes]]` of the network's configuration.
    pub fn sections(&self) -> Vec<ChaincodeConfig> {
        let section = |(organization, service): (String, &ChaincodeProcess)| ChaincodeConfig {
            name: CONTRACT.to_owned(),
            address: service.address.to_string(),
            organizations: vec![organization],
            package_id: None,
            tls_authority: None,
            tls_certificate: None,
            tls_key: None,
            dial_timeout_ms: DIAL_TIMEOUT_MS,
        };
        organization_names(self.services.len()).into_iter().zip(&self.services).map(section).collect()
    }

    /// The processes.
    pub fn process_ids(&self) -> Vec<u32> {
        self.services.iter().map(|service| service.child.id()).collect()
    }
}

impl ChaincodeProcess {
    fn start(program: &Path) -> Result<ChaincodeProcess, Error> {
        let failed = |reason: String| Error::Part { what: "the chaincode's service", reason };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        let address = listener.map_err(|error| failed(format!("no free port: {error}")))?;
        let mut command = Command::new(program);
        command.env("CHAINCODE_SERVER_ADDRESS", address.to_string()).env("CORE_CHAINCODE_ID_NAME", CONTRACT);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let child =
            command.spawn().map_err(|error| failed(format!("{} cannot be started: {error}", program.display())))?;
        Ok(ChaincodeProcess { child, address })
    }

    async fn wait_until_it_listens(&mut self, stop: &CancellationToken) -> Result<(), Error> {
        let failed = |reason: String| Error::Part { what: "the chaincode's service", reason };
        let start = Instant::now();
        while tokio::net::TcpStream::connect(self.address).await.is_err() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(failed(format!("it ended before it listened: {status}")));
            }
            if start.elapsed() > START_TIMEOUT {
                return Err(failed(format!("it does not listen at {}", self.address)));
            }
            stop.run_until_cancelled(tokio::time::sleep(POLL)).await.ok_or(Error::Interrupted)?;
        }
        Ok(())
    }
}

impl Drop for ChaincodeProcess {
    fn drop(&mut self) {
        // If this fails, it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
