//! Brings a contract's definition onto the ledger, with the keys of every organisation's administrator.
//!
//! 1. Ask the first organisation's gateway which organisations have approved the definition. If its sequence is not the
//!    next one of the contract, the answer is an error that says so.
//! 2. Each organisation that has not approved the definition does so now: its administrator approves it through its
//!    gateway.
//! 3. The administrator of the first organisation commits it.
//! 4. Wait until the peer of every organisation has the definition, so that all of them endorse by it.
//!
//! Each approval and each commit is a transaction. If a command was interrupted, the next run adds the missing
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
    ApproveChaincodeDefinitionForMyOrgArgs, ChaincodeEndorsementInfo, ChaincodeSource, ChaincodeValidationInfo,
    CheckCommitReadinessArgs, CheckCommitReadinessResult, CommitChaincodeDefinitionArgs, QueryChaincodeDefinitionArgs,
    QueryChaincodeDefinitionResult,
};
use proto::protos::CollectionConfigPackage;

use crate::failure::CommandError;

/// How long a peer may take to commit a block that another peer has committed.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two attempts to get an endorsement.
const POLL: Duration = Duration::from_millis(100);
/// The part of the answer's error that says that the ledger has a definition of this sequence already.
const IS_DEFINED: &str = "new definition must be sequence";
/// The part of the error that says that the ledger has no definition of the contract.
const IS_UNDEFINED: &str = "is not defined";
/// The parts of the errors that say that an organisation has given this approval already.
const IS_APPROVED: [&str; 2] = ["attempted to redefine", "with different parameters"];

/// An organisation's administrator at the gateway of that organisation.
pub(super) struct Administrator {
    pub(super) msp_id: String,
    pub(super) client: GatewayClient,
}

/// A definition that the organisations approve and commit.
pub(super) struct DefinitionChange<'a> {
    pub(super) channel: &'a str,
    pub(super) name: &'a str,
    pub(super) definition: &'a ContractDefinition,
    /// The ids of the packages that the organisations approve, in their order; empty for a contract without packages.
    pub(super) packages: &'a [String],
}

impl DefinitionChange<'_> {
    /// Approves and commits the definition. Returns `false` if the ledger had one of this sequence already.
    pub(super) async fn bring(&self, admins: &[Administrator]) -> Result<bool, CommandError> {
        let [first, ..] = admins else { return Err(CommandError::new("the network has no gateway")) };
        let Some(approvals) = self.approvals(first).await? else { return Ok(false) };
        for (index, admin) in admins.iter().enumerate() {
            let is_approved = approvals.approvals.get(&admin.msp_id).copied().unwrap_or(false);
            // The package is no part of the definition: an approval may name one that does not run any more.
            if !is_approved || !self.packages.is_empty() {
                self.approve_as(admin, index).await?;
            }
        }
        let what = format!("{} cannot be committed", self.name);
        first.transact(self.channel, "CommitChaincodeDefinition", &self.commit(), &[], &what).await?;
        for admin in admins {
            self.wait_at(admin).await?;
        }
        Ok(true)
    }

    /// Approves the definition for every organisation that has not done so.
    pub(super) async fn approve(&self, admins: &[Administrator]) -> Result<(), CommandError> {
        for (index, admin) in admins.iter().enumerate() {
            self.approve_as(admin, index).await?;
        }
        Ok(())
    }

    async fn approve_as(&self, admin: &Administrator, index: usize) -> Result<(), CommandError> {
        let what = format!("{} cannot approve {}", admin.msp_id, self.name);
        let function = "ApproveChaincodeDefinitionForMyOrg";
        let approval = self.approval(self.packages.get(index));
        admin.transact(self.channel, function, &approval, &[&admin.msp_id], &what).await
    }

    /// Which organisations have approved the definition; `None` if the ledger has one of this sequence already.
    async fn approvals(&self, admin: &Administrator) -> Result<Option<CheckCommitReadinessResult>, CommandError> {
        let definition = self.commit();
        let args = CheckCommitReadinessArgs {
            sequence: definition.sequence,
            name: definition.name,
            version: definition.version,
            endorsement_plugin: definition.endorsement_plugin,
            validation_plugin: definition.validation_plugin,
            validation_parameter: definition.validation_parameter,
            collections: definition.collections,
            init_required: definition.init_required,
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

    fn approval(&self, package: Option<&String>) -> ApproveChaincodeDefinitionForMyOrgArgs {
        let definition = self.commit();
        ApproveChaincodeDefinitionForMyOrgArgs {
            sequence: definition.sequence,
            name: definition.name,
            version: definition.version,
            endorsement_plugin: definition.endorsement_plugin,
            validation_plugin: definition.validation_plugin,
            validation_parameter: definition.validation_parameter,
            collections: definition.collections,
            init_required: definition.init_required,
            source: Some(source(package)),
        }
    }

    fn commit(&self) -> CommitChaincodeDefinitionArgs {
        let ContractDefinition { sequence, endorsement, validation, .. } = self.definition;
        CommitChaincodeDefinitionArgs {
            sequence: *sequence,
            name: self.name.to_owned(),
            version: endorsement.version.clone(),
            endorsement_plugin: endorsement.endorsement_plugin.clone(),
            validation_plugin: validation.validation_plugin.clone(),
            validation_parameter: validation.validation_parameter.clone(),
            collections: self.collections(),
            init_required: endorsement.init_required,
        }
    }

    fn collections(&self) -> Option<CollectionConfigPackage> {
        let collections = &self.definition.collections;
        (!collections.config.is_empty()).then(|| collections.clone())
    }

    /// Step 4.
    async fn wait_at(&self, admin: &Administrator) -> Result<(), CommandError> {
        let started = Instant::now();
        loop {
            let found = admin.definition(self.channel, self.name).await?;
            if found.is_some_and(|found| found.sequence >= self.definition.sequence) {
                return Ok(());
            }
            if started.elapsed() > FOLLOW_TIMEOUT {
                return Err(CommandError::new(format!(
                    "{} is committed, but the peer of {} has not caught up; it will when it gets the channel's blocks again",
                    self.name, admin.msp_id
                )));
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

fn source(package: Option<&String>) -> ChaincodeSource {
    let source = match package {
        None => Type::Unavailable(Unavailable {}),
        Some(package) => Type::LocalPackage(Local { package_id: package.clone() }),
    };
    ChaincodeSource { r#type: Some(source) }
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

    /// Connects as the administrators of all organisations, in order.
    pub(super) async fn connect_all(dir: &Path, endpoints: &Endpoints) -> Result<Vec<Administrator>, CommandError> {
        let mut admins = Vec::with_capacity(endpoints.gateways.len());
        for number in 1..=endpoints.gateways.len() {
            admins.push(Administrator::connect(dir, endpoints, number).await?);
        }
        Ok(admins)
    }

    /// The definition that this organisation's peer reads from the ledger; `None` if there is none.
    pub(super) async fn definition(
        &self,
        channel: &str,
        name: &str,
    ) -> Result<Option<ContractDefinition>, CommandError> {
        let failed = |problem: String| CommandError::new(format!("asking for the definition of {name}: {problem}"));
        let args = [Bytes::from(QueryChaincodeDefinitionArgs { name: name.to_owned() }.encode_to_vec())];
        let proposal = self.client.proposal(channel, LIFECYCLE, "QueryChaincodeDefinition", &args);
        let found = match self.client.evaluate(&proposal.endorsing(&[&self.msp_id]).sign()).await {
            Ok(found) => QueryChaincodeDefinitionResult::decode(found).map_err(|error| failed(error.to_string()))?,
            Err(status) if status.code == GrpcCode::Unknown && status.to_string().contains(IS_UNDEFINED) => {
                return Ok(None);
            }
            Err(status) => return Err(failed(status.to_string())),
        };
        Ok(Some(ContractDefinition {
            sequence: found.sequence,
            endorsement: ChaincodeEndorsementInfo {
                version: found.version,
                init_required: found.init_required,
                endorsement_plugin: found.endorsement_plugin,
            },
            validation: ChaincodeValidationInfo {
                validation_plugin: found.validation_plugin,
                validation_parameter: found.validation_parameter,
            },
            collections: found.collections.unwrap_or_default(),
        }))
    }

    /// Runs a transaction of the lifecycle contract until it is committed as valid.
    async fn transact(
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
                Err(status) if is_approved(&status) => return Ok(()),
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

/// Whether an endorser refused an approval because the organisation has given the same one before.
fn is_approved(status: &GrpcStatus) -> bool {
    let [repeated, different] = IS_APPROVED;
    let text = status.to_string();
    text.contains(repeated) && !text.contains(different)
}
