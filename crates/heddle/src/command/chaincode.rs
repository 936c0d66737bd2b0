//! `heddle chaincode run` and `heddle chaincode new`.
//!
//! `run`:
//! 1. Find the language, and build the chaincode with the language's tools.
//! 2. Choose a port, and make a package of its address. The package's id is that with which the chaincode registers.
//! 3. Start the chaincode, and wait until its port answers.
//! 4. Install the package at every organisation's peer. If the definition that is asked for is the ledger's, approve the
//!    package for it. Otherwise approve and commit the definition, as the contract's first or next one.
//! 5. Start the chaincode again when it ends, after a pause that doubles while it ends soon, until a signal. It then gets
//!    SIGTERM, and is killed if it does not end.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base::Bytes;
use contract::packages::{ChaincodePackage, package_of_service};
use ledger::lifecycle::{ContractDefinition, LIFECYCLE};
use prost::Message;
use proto::lifecycle::InstallChaincodeArgs;
use proto::protos::{ApplicationPolicy, CollectionConfigPackage, ProposalResponse};
use rules::definitions::by_channel_policy;

use super::definition::{Administrator, DefinitionChange};
use super::{chaincode_template as template, collections_file};
use crate::cli::chaincode::{ChaincodeNewArguments, ChaincodeRunArguments};
use crate::failure::CommandError;
use crate::signals::StopSignals;
use crate::{instance, output};

/// How long a chaincode may take until its port answers.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may take to end after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// How often its process is looked at.
const POLL: Duration = Duration::from_millis(100);
/// The pause before the first restart, and the longest one.
const RESTART_PAUSE: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(10)];
/// A chaincode that ran for this long is started again after the shortest pause.
const STEADY_TIME: Duration = Duration::from_secs(30);
/// The version of a first definition, unless the arguments name another.
const FIRST_VERSION: &str = "1.0";
/// How long an installation may take.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Writes a new chaincode.
pub fn create(arguments: &ChaincodeNewArguments) -> Result<(), CommandError> {
    let folder = Path::new(&arguments.name);
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    check_name(name)?;
    if folder.exists() {
        return Err(CommandError::about(folder, "exists already; choose another name"));
    }
    for (path, text) in template::files(arguments.language, name) {
        let path = folder.join(path);
        base::durable::write(&path, text.as_bytes(), base::durable::FileAccess::Everybody)
            .map_err(|error| CommandError::about(&path, error))?;
    }
    let shown = folder.display();
    output::print(&format!("{shown} has a chaincode; run it with: heddle chaincode run {shown}\n"))
}

/// Runs a chaincode until a signal.
pub async fn run(arguments: &ChaincodeRunArguments) -> Result<(), CommandError> {
    let dir = &arguments.directory.dir;
    let folder = arguments.source.canonicalize().map_err(|error| CommandError::about(&arguments.source, error))?;
    let name = match &arguments.name {
        Some(name) => name.clone(),
        None => folder.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned(),
    };
    check_name(&name)?;
    let wanted = WantedDefinition::read(arguments)?;
    let build = Build::find(&folder)?;
    if arguments.up {
        start_network(dir)?;
    }
    let endpoints = instance::expect_running(dir)?;
    let mut signals = StopSignals::listen()?;
    build.run(&folder)?;
    let address = free_address(arguments.port)?;
    let admins = Administrator::connect_all(dir, &endpoints).await?;
    let found = found(&admins, &endpoints.channel, &name).await?;
    let label = format!("{name}_{}", wanted.version(found.as_ref()));
    let package = package_of_service(&label, &address.to_string());
    let package_id = ChaincodePackage::parse(&package)
        .map_err(|problem| CommandError::new(format!("the package {label}: {problem}")))?
        .id;
    let mut process = ChaincodeProcess { build, folder, address, package_id: package_id.clone(), child: None };
    process.start()?;
    let deploying = async {
        process.wait_until_it_answers().await?;
        deploy(&admins, &endpoints.channel, &name, &wanted, &package_id, package).await
    };
    let deployed = tokio::select! {
        deployed = deploying => deployed,
        () = signals.received() => Err(CommandError::interrupted()),
    };
    drop(admins);
    let definition = match deployed {
        Ok(definition) => definition,
        Err(error) => {
            process.stop().await;
            return Err(error);
        }
    };
    let (version, sequence) = (&definition.endorsement.version, definition.sequence);
    output::print(&format!("{name} is ready: version {version}, sequence {sequence}, at {address}; Ctrl-C ends it\n"))?;
    let ended = tokio::select! {
        error = process.supervise() => Err(error),
        () = signals.received() => Ok(()),
    };
    process.stop().await;
    ended
}

/// Starts a network in the background, unless one runs in the directory.
fn start_network(dir: &Path) -> Result<(), CommandError> {
    if instance::exists(dir) && instance::running(dir)?.is_some() {
        return Ok(());
    }
    let failed = |problem: String| CommandError::new(format!("the network does not start: {problem}"));
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let status = Command::new(program).args(["up", "--detach", "--dir"]).arg(dir).stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        // It has said why.
        Ok(status) => Err(failed(format!("`heddle up --detach` ended with {status}"))),
        Err(error) => Err(failed(error.to_string())),
    }
}

fn check_name(name: &str) -> Result<(), CommandError> {
    let is_name = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && name.as_bytes().last().is_some_and(u8::is_ascii_alphanumeric)
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    match is_name {
        true => Ok(()),
        false => Err(CommandError::new(format!(
            "{name:?} is no name of a chaincode: it has letters, digits, - and _, and begins and ends with a letter or digit"
        ))),
    }
}

fn free_address(port: u16) -> Result<SocketAddr, CommandError> {
    let wanted = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let bound = TcpListener::bind(wanted).and_then(|listener| listener.local_addr());
    bound.map_err(|error| CommandError::new(format!("the chaincode cannot listen at {wanted}: {error}")))
}

/// The definition that is asked for: the ledger's or the first one, with the changes that the arguments name.
struct WantedDefinition {
    version: Option<String>,
    policy: Option<ApplicationPolicy>,
    collections: Option<CollectionConfigPackage>,
}

impl WantedDefinition {
    fn read(arguments: &ChaincodeRunArguments) -> Result<WantedDefinition, CommandError> {
        Ok(WantedDefinition {
            version: arguments.version.clone(),
            policy: arguments.policy.as_deref().map(collections_file::policy).transpose().map_err(CommandError::new)?,
            collections: arguments.collections.as_deref().map(collections_file::read).transpose()?,
        })
    }

    fn version(&self, found: Option<&ContractDefinition>) -> String {
        let found = || found.map(|found| found.endorsement.version.clone());
        self.version.clone().or_else(found).unwrap_or_else(|| FIRST_VERSION.to_owned())
    }

    /// The definition to commit; if it is the ledger's, it has the ledger's sequence.
    fn over(&self, found: Option<&ContractDefinition>) -> ContractDefinition {
        let mut wanted = found.cloned().unwrap_or_else(|| by_channel_policy(""));
        wanted.endorsement.version = self.version(found);
        if let Some(policy) = &self.policy {
            wanted.validation.validation_parameter = policy.encode_to_vec().into();
        }
        if let Some(collections) = &self.collections {
            wanted.collections = collections.clone();
        }
        if found.is_some_and(|found| *found != wanted) {
            wanted.sequence += 1;
        }
        wanted
    }
}

/// Step 4. Returns the definition that is on the ledger in the end.
async fn deploy(
    admins: &[Administrator],
    channel: &str,
    name: &str,
    wanted: &WantedDefinition,
    package_id: &str,
    package: Vec<u8>,
) -> Result<ContractDefinition, CommandError> {
    let install = InstallChaincodeArgs { chaincode_install_package: package.into() };
    let install = Bytes::from(install.encode_to_vec());
    for admin in admins {
        install_at(admin, name, install.clone()).await?;
    }
    let found = found(admins, channel, name).await?;
    let definition = wanted.over(found.as_ref());
    let change = DefinitionChange { channel, name, definition: &definition, package: package_id };
    if found.as_ref() == Some(&definition) {
        for admin in admins {
            change.approve(admin).await?;
        }
    } else if !change.bring(admins).await? {
        return Err(CommandError::new(format!(
            "{name} has got another definition with sequence {} meanwhile; run the command again",
            definition.sequence
        )));
    }
    Ok(definition)
}

/// The definition on the ledger, by the first organisation's peer.
async fn found(
    admins: &[Administrator],
    channel: &str,
    name: &str,
) -> Result<Option<ContractDefinition>, CommandError> {
    let [first, ..] = admins else { return Err(CommandError::new("the network has no gateway")) };
    first.definition(channel, name).await
}

async fn install_at(admin: &Administrator, name: &str, args: Bytes) -> Result<(), CommandError> {
    let failed = |problem: String| CommandError::new(format!("{} cannot install {name}: {problem}", admin.msp_id));
    let proposal = admin.client.proposal("", LIFECYCLE, "InstallChaincode", &[args]).sign();
    let path = "/protos.Endorser/ProcessProposal";
    let answered = admin.client.connection().unary(path, proposal.signed(), Some(INSTALL_TIMEOUT)).await;
    let answer: ProposalResponse = answered.map_err(|status| failed(status.to_string()))?;
    let response = answer.response.unwrap_or_default();
    match response.status {
        200 => Ok(()),
        _ if response.message.contains("already successfully installed") => Ok(()),
        _ => Err(failed(response.message)),
    }
}

/// How a chaincode is built and started.
struct Build {
    language: &'static str,
    /// Programs that run in the chaincode's folder, in order.
    steps: Vec<Vec<String>>,
    start: Vec<String>,
}

impl Build {
    /// Step 1.
    fn find(folder: &Path) -> Result<Build, CommandError> {
        let has = |file: &str| folder.join(file).exists();
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let program = |path: &str| folder.join(path).display().to_string();
        if has("go.mod") {
            let mut steps = Vec::new();
            if !has("go.sum") {
                steps.push(words("go mod tidy"));
            }
            steps.push(words("go build -o .heddle/chaincode ."));
            return Ok(Build { language: "Go", steps, start: vec![program(".heddle/chaincode")] });
        }
        if has("package.json") {
            let install = if has("package-lock.json") { "npm ci" } else { "npm install" };
            let mut steps = Vec::new();
            if !has("node_modules") {
                steps.push(words(&format!("{install} --no-audit --no-fund")));
            }
            steps.push(words("npm run build --if-present"));
            let start = vec![program("node_modules/.bin/fabric-chaincode-node"), "server".to_owned()];
            return Ok(Build { language: "Node.js", steps, start });
        }
        let java = |step: String, folder: &str| Build {
            language: "Java",
            steps: vec![words(&step)],
            start: vec!["java".to_owned(), "-jar".to_owned(), program(&format!("{folder}/chaincode.jar"))],
        };
        if has("pom.xml") {
            return Ok(java("mvn -q -DskipTests package".to_owned(), "target"));
        }
        if has("build.gradle") || has("build.gradle.kts") {
            let gradle = if has("gradlew") { "./gradlew" } else { "gradle" };
            return Ok(java(format!("{gradle} -q shadowJar"), "build/libs"));
        }
        Err(CommandError::about(
            folder,
            "has no go.mod, package.json, pom.xml or build.gradle; name the folder of a chaincode's source, or write one with \
             `heddle chaincode new`",
        ))
    }

    fn run(&self, folder: &Path) -> Result<(), CommandError> {
        for step in &self.steps {
            let (program, arguments) = step.split_first().expect("a step has a program");
            let line = step.join(" ");
            let status = Command::new(program).args(arguments).current_dir(folder).stdin(Stdio::null()).status();
            match status {
                Ok(status) if status.success() => {}
                Ok(status) => {
                    return Err(CommandError::new(format!("`{line}` in {} failed: {status}", folder.display())));
                }
                Err(error) => {
                    return Err(CommandError::new(format!(
                        "`{line}` cannot be run: {error}; install the tools for {}",
                        self.language
                    )));
                }
            }
        }
        Ok(())
    }
}

struct ChaincodeProcess {
    build: Build,
    folder: PathBuf,
    address: SocketAddr,
    package_id: String,
    child: Option<Child>,
}

impl ChaincodeProcess {
    /// Starts the chaincode, with the variables that the conventions of Fabric's shims name.
    fn start(&mut self) -> Result<(), CommandError> {
        let (program, arguments) = self.build.start.split_first().expect("it has a program");
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.folder).stdin(Stdio::null());
        command.env("CHAINCODE_SERVER_ADDRESS", self.address.to_string());
        command.env("CORE_CHAINCODE_ID_NAME", &self.package_id).env("CHAINCODE_ID", &self.package_id);
        command.env("CORE_PEER_TLS_ENABLED", "false").env("CHAINCODE_TLS_DISABLED", "true");
        if self.build.language == "Node.js" {
            let address = self.address.to_string();
            command.args(["--chaincode-address", &address, "--chaincode-id", &self.package_id]);
        }
        let child = command.spawn().map_err(|error| CommandError::about(Path::new(program), error))?;
        self.child = Some(child);
        Ok(())
    }

    /// Why the process has ended, if it has.
    fn ended(&mut self) -> Option<String> {
        match self.child.as_mut()?.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(status.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }

    async fn wait_until_it_answers(&mut self) -> Result<(), CommandError> {
        let started = Instant::now();
        while tokio::net::TcpStream::connect(self.address).await.is_err() {
            if let Some(status) = self.ended() {
                return Err(CommandError::new(format!("the chaincode ended before it listened: {status}")));
            }
            if started.elapsed() > START_TIMEOUT {
                return Err(CommandError::new(format!(
                    "the chaincode does not listen at {}; a chaincode in Go must serve at CHAINCODE_SERVER_ADDRESS",
                    self.address
                )));
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Step 5; returns only if the chaincode cannot be started.
    async fn supervise(&mut self) -> CommandError {
        let [shortest, longest] = RESTART_PAUSE;
        let (mut pause, mut started) = (shortest, Instant::now());
        loop {
            tokio::time::sleep(POLL).await;
            let Some(status) = self.ended() else { continue };
            if started.elapsed() > STEADY_TIME {
                pause = shortest;
            }
            eprintln!("heddle: the chaincode ended: {status}; it starts again in {} ms", pause.as_millis());
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(longest);
            started = Instant::now();
            if let Err(error) = self.start() {
                return error;
            }
        }
    }

    async fn stop(&mut self) {
        let Some(child) = &self.child else { return };
        if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
            // If this fails, it has ended.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let asked = Instant::now();
        while self.ended().is_none() && asked.elapsed() < STOP_TIMEOUT {
            tokio::time::sleep(POLL).await;
        }
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for ChaincodeProcess {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
        }
    }
}
