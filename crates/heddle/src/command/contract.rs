//! `heddle contract`: defines a network's contracts, calls them and follows their events.
//!
//! `define` brings the first definition of each configured contract onto the ledger ([`super::definition`]). A contract
//! that the ledger defines already is left as it is.
//!
//! `call` and `evaluate` do what a client does with Fabric's gateway SDK, as the sample user of an organisation; `events`
//! follows a contract's events.

use std::path::Path;
use std::time::Duration;

use base::Bytes;
use gateway::client::{GatewayClient, GrpcConnection, GrpcStatus, ProposalBuilder, StartPosition};
use node::Endpoints;
use tokio::time::{Instant, timeout_at};

use super::definition::{Administrator, DefinitionChange};
use crate::cli::contract::{CallArguments, ContractCallArguments, ContractDefineArguments, ContractEventsArguments};
use crate::failure::CommandError;
use crate::signals::StopSignals;
use crate::{instance, output};

/// How long peers may take to commit a block that another peer has committed.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(10);

/// Brings the configured contracts onto the ledger.
pub async fn define(arguments: &ContractDefineArguments) -> Result<(), CommandError> {
    let dir = &arguments.directory.dir;
    let endpoints = instance::expect_running(dir)?;
    let definitions = node::first_definitions(&super::config(dir)?).map_err(CommandError::new)?;
    let names = match arguments.names.is_empty() {
        true => definitions.keys().cloned().collect(),
        false => arguments.names.clone(),
    };
    let admins = Administrator::connect_all(dir, &endpoints).await?;
    for name in names {
        let definition = definitions.get(&name).ok_or_else(|| {
            let known = definitions.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            CommandError::new(format!("the network's configuration has no contract {name}; it has {known}"))
        })?;
        let first = DefinitionChange { channel: &endpoints.channel, name: &name, definition, packages: &[] };
        let line = match first.bring(&admins).await? {
            true => format!("{name:<12} defined: version {}, sequence 1\n", definition.endorsement.version),
            false => format!("{name:<12} is on the ledger already\n"),
        };
        output::print(&line)?;
    }
    Ok(())
}

/// Submits a transaction and waits for its commit.
pub async fn call(arguments: &ContractCallArguments) -> Result<(), CommandError> {
    let ContractCallArguments { call, endorsers } = arguments;
    let endpoints = instance::expect_running(&call.directory.dir)?;
    let client = call.connect(&endpoints).await?;
    let endorsers = endorsers.iter().map(|name| msp_of(&endpoints, name)).collect::<Result<Vec<_>, _>>()?;
    let refused = |status: GrpcStatus| call.failure(&status);
    let proposal = call.proposal(&client, &endpoints.channel).endorsing(&endorsers).sign();
    let transaction = client.endorse(&proposal).await.map_err(refused)?;
    client.submit(&transaction).await.map_err(refused)?;
    let id = transaction.tx_id();
    let commit = client.commit_status(&endpoints.channel, id).await.map_err(|status| {
        CommandError::new(format!("transaction {id} was ordered, but whether it was committed is unknown: {status}"))
    })?;
    let code = ledger::Code(u8::try_from(commit.code).unwrap_or(u8::MAX));
    let block = commit.block;
    if code != ledger::Code::VALID {
        return Err(CommandError::new(format!(
            "transaction {id} is in block {block} with code {code}, and has written nothing"
        )));
    }
    print_result(transaction.result())?;
    eprintln!("committed in block {block}: transaction {id}");
    wait_for_the_others(&call.directory.dir, &endpoints, id).await;
    Ok(())
}

/// Waits until every organisation's peer has committed a transaction: whichever one the user asks next knows of it. A
/// peer that does not answer is named, and changes nothing for the transaction.
async fn wait_for_the_others(dir: &Path, endpoints: &Endpoints, transaction: &str) {
    let until = Instant::now() + FOLLOW_TIMEOUT;
    for gateway in &endpoints.gateways {
        let waiting = async {
            let client = connect(Some(&gateway.name), dir, endpoints).await?;
            client.commit_status(&endpoints.channel, transaction).await.map_err(CommandError::new)
        };
        let reason = match timeout_at(until, waiting).await {
            Ok(Ok(_)) => continue,
            Ok(Err(error)) => error.message().unwrap_or_default().to_owned(),
            Err(_) => format!("no answer within {} s", FOLLOW_TIMEOUT.as_secs()),
        };
        eprintln!("heddle: the peer of {} has not committed it yet: {reason}", gateway.name);
    }
}

/// Asks a contract; nothing is ordered.
pub async fn evaluate(arguments: &CallArguments) -> Result<(), CommandError> {
    let endpoints = instance::expect_running(&arguments.directory.dir)?;
    let client = arguments.connect(&endpoints).await?;
    let proposal = arguments.proposal(&client, &endpoints.channel).sign();
    let result = client.evaluate(&proposal).await.map_err(|status| arguments.failure(&status))?;
    print_result(&result)
}

/// Prints the events of a contract.
pub async fn events(arguments: &ContractEventsArguments) -> Result<(), CommandError> {
    let mut signals = StopSignals::listen()?;
    tokio::select! {
        outcome = print_events(arguments) => outcome,
        () = signals.received() => Err(CommandError::interrupted()),
    }
}

async fn print_events(arguments: &ContractEventsArguments) -> Result<(), CommandError> {
    let ContractEventsArguments { name, from, count, org, directory } = arguments;
    let endpoints = instance::expect_running(&directory.dir)?;
    let client = connect(org.as_deref(), &directory.dir, &endpoints).await?;
    let failed = |status: GrpcStatus| CommandError::new(format!("following the events of {name}: {status}"));
    let start = from.map_or(StartPosition::NextCommit, StartPosition::Block);
    let mut left = count.unwrap_or(u64::MAX);
    let mut blocks = client.chaincode_events(&endpoints.channel, name, start, None).await.map_err(failed)?;
    while left > 0 {
        let Some(block) = blocks.next().await.map_err(failed)? else {
            return Err(CommandError::new(format!(
                "the gateway has ended the events of {name}; run the command again"
            )));
        };
        for event in block.events {
            if left == 0 {
                break;
            }
            left -= 1;
            let payload = String::from_utf8_lossy(&event.payload);
            output::print(&format!("{}  {}  {payload}\n", block.block_number, event.event_name))?;
        }
    }
    Ok(())
}

impl CallArguments {
    async fn connect(&self, endpoints: &Endpoints) -> Result<GatewayClient, CommandError> {
        connect(self.org.as_deref(), &self.directory.dir, endpoints).await
    }

    fn proposal<'a>(&'a self, client: &'a GatewayClient, channel: &'a str) -> ProposalBuilder<'a> {
        let args: Vec<Bytes> = self.args.iter().map(|arg| Bytes::from(arg.clone())).collect();
        let proposal = client.proposal(channel, &self.name, &self.function, &args);
        let transient = self.transient.iter();
        transient.fold(proposal, |proposal, (key, value)| proposal.transient(key, Bytes::from(value.clone())))
    }

    fn failure(&self, status: &GrpcStatus) -> CommandError {
        CommandError::new(format!("{} of {}: {status}", self.function, self.name))
    }
}

/// Connects as the sample user of an organisation, by default the first one.
async fn connect(organization: Option<&str>, dir: &Path, endpoints: &Endpoints) -> Result<GatewayClient, CommandError> {
    let index = organization.map_or(Ok(0), |name| index_of(endpoints, name))?;
    let target = endpoints.target(dir, index + 1).map_err(CommandError::new)?;
    let signer = endpoints.user(dir, index + 1).map_err(CommandError::new)?;
    let connection = GrpcConnection::connect(&target).await;
    let connection =
        connection.map_err(|error| CommandError::new(format!("the gateway at {}: {error}", target.address)))?;
    Ok(GatewayClient::new(connection, signer))
}

fn index_of(endpoints: &Endpoints, organization: &str) -> Result<usize, CommandError> {
    super::organization(endpoints.gateways.iter().map(|gateway| &gateway.name), organization)
}

fn msp_of<'a>(endpoints: &'a Endpoints, organization: &str) -> Result<&'a str, CommandError> {
    index_of(endpoints, organization).map(|index| endpoints.gateways[index].msp_id.as_str())
}

/// Prints what a contract answered, if it answered anything.
fn print_result(result: &Bytes) -> Result<(), CommandError> {
    match result.is_empty() {
        true => Ok(()),
        false => output::print_bytes(&[&result[..], b"\n"].concat()),
    }
}
