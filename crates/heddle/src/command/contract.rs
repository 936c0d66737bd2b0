//! `heddle contract define`: commits the definitions of a network's configured contracts to its ledger.
//!
//! For each contract:
//! 1. Ask the first organisation's gateway which organisations have approved the contract's first definition. If the
//!    ledger has a definition already, the answer is an error that says so, and the command leaves the contract as it
//!    is.
//! 2. Each organisation that has not approved the definition does so now: its administrator approves it through its
//!    gateway.
//! 3. The administrator of the first organisation commits it.
//!
//! Each approval and each commit is a transaction. If the command was interrupted, the next run adds the missing
//! approvals.

use std::path::Path;
use std::time::{Duration, Instant};

use base::Bytes;
use gateway::client::{GatewayClient, GrpcConnection, GrpcStatus};
use gateway::grpc::GrpcCode;
use ledger::lifecycle::{ContractDefinition, LIFECYCLE};
use node::{Endpoints, NodeError};
use prost::Message;
use proto::lifecycle::chaincode_source::{Local, Type, Unavailable};
use proto::lifecycle::{
    ApproveChaincodeDefinitionForMyOrgArgs, ChaincodeSource, CheckCommitReadinessArgs, CheckCommitReadinessResult,
    CommitChaincodeDefinitionArgs,
};

use crate::cli::contract::ContractDefineArguments;
use crate::failure::CommandError;
use crate::{instance, output};

/// How long a peer may take to commit a block that another peer has committed.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two attempts to get an endorsement.
const POLL: Duration = Duration::from_millis(100);
/// The part of the answer's error that says that the ledger has a definition of the contract.
const IS_DEFINED: &str = "new definition must be sequence";

pub async fn define(arguments: &ContractDefineArguments) -> Result<(), CommandError> {
    let dir = &arguments.directory.dir;
    let endpoints = instance::expect_running(dir)?;
    let definitions = node::first_definitions(&super::config(dir)?).map_err(CommandError::new)?;
    let names = match arguments.names.is_empty() {
        true => definitions.keys().cloned().collect(),
        false => arguments.names.clone(),
    };
    let mut admins = Vec::with_capacity(endpoints.gateways.len());
    for number in 1..=endpoints.gateways.len() {
        admins.push(Administrator::connect(dir, &endpoints, number).await?);
    }
    for name in names {
        let definition = definitions.get(&name).ok_or_else(|| {
            let known = definitions.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            CommandError::new(format!("the network's configuration has no contract {name}; it has {known}"))
        })?;
        let first = FirstDefinition { channel: &endpoints.channel, name: &name, definition, package: "" };
        let line = match first.bring(&admins).await? {
            true => format!("{name:<12} defined: version {}, sequence 1\n", definition.endorsement.version),
            false => format!("{name:<12} is on the ledger already\n"),
        };
        output::print(&line)?;
    }
    Ok(())
}

/// An organisation's administrator at the gateway of that organisation.
pub(super) struct Administrator {
    pub(super) msp_id: String,
    pub(super) client: GatewayClient,
}

impl Administrator {
    /// Connects as the administrator of an organisation, counted from 1.
    pub(super) async fn connect(
        dir: &Path,
        endpoints: &Endpoints,
        number: usize,
    ) -> Result<Administrator, CommandError> {
        let gateway = &endpoints.gateways[number - 1];
        let unreachable = |reason: String| {
            CommandError::new(format!("the gateway of {} at {}: {reason}", gateway.name, gateway.address))
        };
        let target = endpoints.target(dir, number).map_err(CommandError::new)?;
        let signer = endpoints.admin(dir, number).map_err(|error: NodeError| {
            CommandError::new(format!(
                "{error}; run this command where the keys of {}'s administrator are, or let {} and the other \
                 organisations define the contracts with Fabric's tools",
                gateway.name, gateway.name
            ))
        })?;
        let connection = GrpcConnection::connect(&target).await.map_err(|error| unreachable(error.to_string()))?;
        Ok(Administrator { msp_id: gateway.msp_id.clone(), client: GatewayClient::new(connection, signer) })
    }
}

/// The first definition of a contract.
pub(super) struct FirstDefinition<'a> {
    pub(super) channel: &'a str,
    pub(super) name: &'a str,
    pub(super) definition: &'a ContractDefinition,
    /// The package that the organisations approve; empty for a contract without one.
    pub(super) package: &'a str,
}

impl FirstDefinition<'_> {
    /// Approves and commits the definition. Returns `false` if the ledger had a definition of the contract already.
    pub(super) async fn bring(&self, admins: &[Administrator]) -> Result<bool, CommandError> {
        let [first, ..] = admins else { return Err(CommandError::new("the network has no gateway".to_owned())) };
        let Some(approvals) = self.approvals(first).await? else { return Ok(false) };
        for admin in admins {
            if !approvals.approvals.get(&admin.msp_id).copied().unwrap_or(false) {
                let what = format!("{} cannot approve {}", admin.msp_id, self.name);
                self.transact(admin, "ApproveChaincodeDefinitionForMyOrg", &self.approval(), &[&admin.msp_id], &what)
                    .await?;
            }
        }
        let what = format!("{} cannot be committed", self.name);
        self.transact(first, "CommitChaincodeDefinition", &self.commit(), &[], &what).await?;
        Ok(true)
    }

    /// Which organisations have approved the definition; `None` if the ledger has a definition already.
    async fn approvals(&self, admin: &Administrator) -> Result<Option<CheckCommitReadinessResult>, CommandError> {
        let ContractDefinition { sequence, endorsement, validation, .. } = self.definition;
        let args = CheckCommitReadinessArgs {
            sequence: *sequence,
            name: self.name.to_owned(),
            version: endorsement.version.clone(),
            validation_parameter: validation.validation_parameter.clone(),
            ..CheckCommitReadinessArgs::default()
        };
        let args = [Bytes::from(args.encode_to_vec())];
        let proposal = admin.client.proposal(self.channel, LIFECYCLE, "CheckCommitReadiness", &args);
        let failed = |error: &dyn std::fmt::Display| {
            CommandError::new(format!("asking who has approved {}: {error}", self.name))
        };
        match admin.client.evaluate(&proposal.endorsing(&[&admin.msp_id]).sign()).await {
            Ok(result) => CheckCommitReadinessResult::decode(result).map(Some).map_err(|error| failed(&error)),
            Err(status) if status.to_string().contains(IS_DEFINED) => Ok(None),
            Err(status) => Err(failed(&status)),
        }
    }

    fn approval(&self) -> ApproveChaincodeDefinitionForMyOrgArgs {
        let ContractDefinition { sequence, endorsement, validation, .. } = self.definition;
        ApproveChaincodeDefinitionForMyOrgArgs {
            sequence: *sequence,
            name: self.name.to_owned(),
            version: endorsement.version.clone(),
            validation_parameter: validation.validation_parameter.clone(),
            source: Some(source(self.package)),
            ..ApproveChaincodeDefinitionForMyOrgArgs::default()
        }
    }

    fn commit(&self) -> CommitChaincodeDefinitionArgs {
        let ContractDefinition { sequence, endorsement, validation, .. } = self.definition;
        CommitChaincodeDefinitionArgs {
            sequence: *sequence,
            name: self.name.to_owned(),
            version: endorsement.version.clone(),
            validation_parameter: validation.validation_parameter.clone(),
            ..CommitChaincodeDefinitionArgs::default()
        }
    }

    async fn transact(
        &self,
        admin: &Administrator,
        function: &str,
        args: &impl Message,
        endorsing: &[&str],
        what: &str,
    ) -> Result<(), CommandError> {
        admin.transact(self.channel, function, args, endorsing, what).await
    }
}

/// The source of an approval.
pub(super) fn source(package: &str) -> ChaincodeSource {
    let source = match package {
        "" => Type::Unavailable(Unavailable {}),
        package => Type::LocalPackage(Local { package_id: package.to_owned() }),
    };
    ChaincodeSource { r#type: Some(source) }
}

impl Administrator {
    /// Runs a transaction of the lifecycle contract until it is committed as valid.
    pub(super) async fn transact(
        &self,
        channel: &str,
        function: &str,
        args: &impl Message,
        endorsing: &[&str],
        what: &str,
    ) -> Result<(), CommandError> {
        let failed = |status: GrpcStatus| CommandError::new(format!("{what}: {status}"));
        let args = [Bytes::from(args.encode_to_vec())];
        let started = Instant::now();
        loop {
            let may_repeat = started.elapsed() < FOLLOW_TIMEOUT;
            let proposal = self.client.proposal(channel, LIFECYCLE, function, &args).endorsing(endorsing).sign();
            let transaction = match self.client.endorse(&proposal).await {
                // The peer of another organisation may not have committed the newest approval yet.
                Err(status) if status.code == GrpcCode::Aborted && may_repeat => {
                    tokio::time::sleep(POLL).await;
                    continue;
                }
                endorsed => endorsed.map_err(failed)?,
            };
            self.client.submit(&transaction).await.map_err(failed)?;
            let commit = self.client.commit_status(channel, transaction.tx_id()).await.map_err(failed)?;
            match ledger::Code(u8::try_from(commit.code).unwrap_or(u8::MAX)) {
                ledger::Code::VALID => return Ok(()),
                // Every endorser lagged behind the newest approval, which the transaction has read.
                ledger::Code::MVCC_READ_CONFLICT if may_repeat => {}
                code => {
                    return Err(CommandError::new(format!(
                        "{what}: its transaction in block {} has code {code}",
                        commit.block
                    )));
                }
            }
        }
    }
}
