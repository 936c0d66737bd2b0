//! `heddle chaincode run` and `heddle chaincode new`.
//!
//! `run`:
//! 1. Find the language, and build the chaincode with the language's tools ([`super::chaincode_build`]).
//! 2. For each organisation, choose a port, and make a package of its address. The package's id is that with which the
//!    chaincode registers.
//! 3. Start a chaincode for each organisation ([`super::chaincode_process`]), and wait until all can be called.
//! 4. Install each package at the peer of its organisation. If the definition that is asked for is the ledger's, approve
//!    the packages for it. Otherwise approve and commit the definition, as the contract's first or next one.
//! 5. Keep the chaincodes running until a signal, and then end them.
//!
//! Peers connect to the address in a package. A chaincode that connects to its peer instead gets a bridge there
//! ([`gateway::chaincode::ChaincodeBridge`]), so the network needs neither a port nor an authority for chaincodes.
//!
//! As in Fabric, no two organisations share a chaincode's process: a chaincode may ask which organisation it belongs to.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use base::Bytes;
use contract::packages::{ChaincodePackage, package_of_service};
use ledger::lifecycle::{ContractDefinition, LIFECYCLE};
use prost::Message;
use proto::lifecycle::InstallChaincodeArgs;
use proto::protos::{ApplicationPolicy, CollectionConfigPackage, ProposalResponse};
use rules::definitions::by_channel_policy;

use super::chaincode_build::{Build, ChaincodePlace};
use super::chaincode_process::Chaincode;
use super::definition::{Administrator, DefinitionChange};
use super::{chaincode_process, chaincode_template as template, collections_file};
use crate::cli::chaincode::{ChaincodeNewArguments, ChaincodeRunArguments};
use crate::failure::CommandError;
use crate::signals::StopSignals;
use crate::{instance, output};

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
    let build = Build::find(&folder, arguments.role)?;
    if arguments.up {
        start_network(dir)?;
    }
    let endpoints = instance::expect_running(dir)?;
    let mut signals = StopSignals::listen()?;
    build.run(&folder)?;
    let admins = Administrator::connect_all(dir, &endpoints).await?;
    let found = found(&admins, &endpoints.channel, &name).await?;
    let label = format!("{name}_{}", wanted.version(found.as_ref()));
    let addresses = free_addresses(arguments.port, admins.len())?;
    let (mut chaincodes, mut packages) = (Vec::with_capacity(admins.len()), Vec::with_capacity(admins.len()));
    for (admin, address) in admins.iter().zip(addresses) {
        let package = OrganizationPackage::new(&label, address)?;
        let place =
            ChaincodePlace { msp_id: admin.msp_id.clone(), address, peer: None, package_id: package.id.clone() };
        chaincodes.push(Chaincode::new(&build, &folder, place).await?);
        packages.push(package);
    }
    let deploying = async {
        for chaincode in &mut chaincodes {
            chaincode.start()?;
        }
        for chaincode in &mut chaincodes {
            chaincode.wait_until_it_answers().await?;
        }
        deploy(&admins, &endpoints.channel, &name, &wanted, packages).await
    };
    let deployed = tokio::select! {
        deployed = deploying => deployed,
        () = signals.received() => Err(CommandError::interrupted()),
    };
    drop(admins);
    let definition = match deployed {
        Ok(definition) => definition,
        Err(error) => {
            chaincode_process::stop(&mut chaincodes).await;
            return Err(error);
        }
    };
    let (version, sequence) = (&definition.endorsement.version, definition.sequence);
    output::print(&format!("{name} is ready: version {version}, sequence {sequence}; Ctrl-C ends it\n"))?;
    let ended = tokio::select! {
        error = chaincode_process::supervise(&mut chaincodes) => Err(error),
        () = signals.received() => Ok(()),
    };
    chaincode_process::stop(&mut chaincodes).await;
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

/// Free addresses of this machine: from a port upwards, or any if it is 0.
fn free_addresses(port: u16, count: usize) -> Result<Vec<SocketAddr>, CommandError> {
    // All are held until the last one is found, so that they differ.
    let mut held = Vec::with_capacity(count);
    for index in 0..count {
        let port = if port == 0 { 0 } else { port.saturating_add(index as u16) };
        let wanted = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let bound = TcpListener::bind(wanted);
        held.push(bound.map_err(|error| CommandError::new(format!("no chaincode can listen at {wanted}: {error}")))?);
    }
    let addresses = held.iter().map(TcpListener::local_addr).collect::<Result<_, _>>();
    addresses.map_err(|error| CommandError::new(format!("the address of a chaincode: {error}")))
}

/// The package that one organisation installs.
struct OrganizationPackage {
    file: Vec<u8>,
    id: String,
}

impl OrganizationPackage {
    fn new(label: &str, address: SocketAddr) -> Result<OrganizationPackage, CommandError> {
        let file = package_of_service(label, &address.to_string());
        let wrong = |problem| CommandError::new(format!("the package {label}: {problem}"));
        let id = ChaincodePackage::parse(&file).map_err(wrong)?.id;
        Ok(OrganizationPackage { file, id })
    }
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
    packages: Vec<OrganizationPackage>,
) -> Result<ContractDefinition, CommandError> {
    let mut ids = Vec::with_capacity(packages.len());
    for (admin, OrganizationPackage { file, id }) in admins.iter().zip(packages) {
        let install = InstallChaincodeArgs { chaincode_install_package: file.into() };
        install_at(admin, name, Bytes::from(install.encode_to_vec())).await?;
        ids.push(id);
    }
    let found = found(admins, channel, name).await?;
    let definition = wanted.over(found.as_ref());
    let change = DefinitionChange { channel, name, definition: &definition, packages: &ids };
    if found.as_ref() == Some(&definition) {
        change.approve(admins).await?;
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
