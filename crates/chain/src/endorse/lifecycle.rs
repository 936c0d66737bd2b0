//! The system contract `_lifecycle`: each organisation approves the definition of a contract for itself, and one of
//! them commits it.
//!
//! 1. An organisation approves a definition by a transaction that writes to its implicit collection, of which the
//!    ledger holds only hashes. The endorsement of its own peers suffices.
//! 2. Before a commit, a client asks which organisations have approved ([`LifecycleCall::check_commit_readiness`]). A
//!    peer compares the hashes that each organisation's approval would have with those on the ledger.
//! 3. The commit writes the definition ([`ledger::lifecycle`]). A peer endorses it only if its own organisation has
//!    approved the same definition. The policy for these writes, usually a majority, ensures that enough organisations
//!    have approved it.
//!
//! The contract reads and writes the same keys as Fabric's, so that our peers and Fabric's produce equal read-write
//! sets. A peer needs only the hashes of approvals: an approval of a sequence that the organisation has approved before
//! writes the fields whose hashes change.
//!
//! A contract that the peers run without a package, such as one that is compiled in, is approved with the source
//! `Unavailable`.
//!
//! The approvals themselves are private data of their organisations. Only its own peers can be asked for them (`approved`).

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod approved;
mod check;
mod results;
mod state;

use std::collections::BTreeMap;

use base::{Bytes, MspId};
use identity::{Identity, MemberRole};
use ledger::lifecycle::{
    ContractDefinition, DefinitionField, ENDORSEMENT_PLUGIN, IMPLICIT_COLLECTION_PREFIX, LIFECYCLE, VALIDATION_PLUGIN,
};
use prost::Message;
use proto::lifecycle::check_commit_readiness_result::Mismatches;
use proto::lifecycle::query_chaincode_definitions_result::ChaincodeDefinition;
use proto::lifecycle::{
    ApproveChaincodeDefinitionForMyOrgArgs, ApproveChaincodeDefinitionForMyOrgResult, ChaincodeEndorsementInfo,
    ChaincodeValidationInfo, CheckCommitReadinessArgs, CheckCommitReadinessResult, CommitChaincodeDefinitionArgs,
    CommitChaincodeDefinitionResult, QueryChaincodeDefinitionArgs, QueryChaincodeDefinitionResult,
    QueryChaincodeDefinitionsResult, chaincode_source,
};
use proto::protos::CollectionConfigPackage;
use rules::access::ChannelPolicies;
use rules::definitions::channel_policy;

use super::EndorseError;
pub use state::LifecycleState;

/// The tables of approvals, as in Fabric: of a definition's parameters, and of the package.
const NAMESPACES: &str = "namespaces";
const SOURCES: &str = "chaincode-sources";
/// The types of the entries of these tables.
const PARAMETERS: &str = "ChaincodeParameters";
const LOCAL_PACKAGE: &str = "ChaincodeLocalPackage";

/// The status of a query for something that does not exist.
const NOT_FOUND: i32 = 404;

/// Why a call was not carried out.
#[derive(Debug)]
pub enum LifecycleError {
    /// The client gets a response with this error status and message.
    Refused(i32, String),
    /// The peer cannot serve the call.
    Unserved(EndorseError),
}

impl LifecycleError {
    fn refused(reason: impl Into<String>) -> LifecycleError {
        LifecycleError::Refused(contract::ContractResponse::ERROR, reason.into())
    }
}

impl From<state::StateError> for LifecycleError {
    fn from(error: state::StateError) -> Self {
        LifecycleError::Unserved(error.into_endorse())
    }
}

type CallResult<T> = Result<T, LifecycleError>;

/// One call of the contract.
pub struct LifecycleCall<'a> {
    /// The policies of the channel.
    pub policies: &'a ChannelPolicies,
    /// The peer's organisation.
    pub own: &'a MspId,
    /// The client.
    pub creator: &'a Identity,
    /// What the call reads and writes.
    pub state: LifecycleState,
}

impl LifecycleCall<'_> {
    /// Runs a function of the contract; its arguments and its result are messages.
    ///
    /// # Errors
    /// [`LifecycleError`].
    pub async fn run(&mut self, function: &str, args: &Bytes) -> CallResult<Bytes> {
        let result = match function {
            "ApproveChaincodeDefinitionForMyOrg" => {
                self.approve(decode(args)?).await.map(|result| result.encode_to_vec())
            }
            "CheckCommitReadiness" => self.check_commit_readiness(decode(args)?).await.map(results::encode_readiness),
            "CommitChaincodeDefinition" => self.commit(decode(args)?).await.map(|result| result.encode_to_vec()),
            "QueryApprovedChaincodeDefinition" => {
                self.query_approved(decode(args)?).await.map(|result| result.encode_to_vec())
            }
            "QueryApprovedChaincodeDefinitions" => self.query_all_approved().await.map(|result| result.encode_to_vec()),
            "QueryChaincodeDefinition" => self.query(decode(args)?).await.map(results::encode_definition),
            "QueryChaincodeDefinitions" => self.query_all().await.map(|result| result.encode_to_vec()),
            _ => return Err(LifecycleError::refused(format!("this peer does not offer the function {function}"))),
        };
        let framed = |reason| format!("failed to invoke backing implementation of '{function}': {reason}");
        result.map(Bytes::from).map_err(|error| match error {
            LifecycleError::Refused(NOT_FOUND, reason) => LifecycleError::Refused(NOT_FOUND, reason),
            LifecycleError::Refused(status, reason) => LifecycleError::Refused(status, framed(reason)),
            unserved => unserved,
        })
    }

    /// Why the client may not call a function, in Fabric's words. Only administrators of the peer's own organisation may
    /// approve definitions and query their approvals; the channel's access rules (`may_use`) decide about all other
    /// functions.
    ///
    /// # Errors
    /// The reason.
    pub fn check_access(&self, function: &str, may_use: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        match function {
            "ApproveChaincodeDefinitionForMyOrg"
            | "QueryApprovedChaincodeDefinition"
            | "QueryApprovedChaincodeDefinitions"
            | "InstallChaincode"
            | "QueryInstalledChaincode"
            | "QueryInstalledChaincodes"
            | "GetInstalledChaincodePackage" => self.check_administrator(),
            "CheckCommitReadiness"
            | "CommitChaincodeDefinition"
            | "QueryChaincodeDefinition"
            | "QueryChaincodeDefinitions" => may_use(),
            _ => Err(format!("Unmapped policy for {LIFECYCLE}/{function}")),
        }
    }

    fn check_administrator(&self) -> Result<(), String> {
        let (own, msp) = (self.own, self.creator.msp_id());
        if msp != own {
            return Err(format!(
                "Failed deserializing proposal creator during channelless check policy with policy [Admins]: [expected MSP ID \
                 {own}, received {msp}]"
            ));
        }
        if !self.creator.has_role(MemberRole::Admin) {
            return Err(format!(
                "Failed verifying that proposal's creator satisfies local MSP principal during channelless check policy with \
                 policy [Admins]: [The identity is not an admin under this MSP [{own}]: The identity does not contain OU \
                 [ADMIN], MSP: [{own}]]"
            ));
        }
        Ok(())
    }

    /// Step 1.
    async fn approve(
        &mut self,
        args: ApproveChaincodeDefinitionForMyOrgArgs,
    ) -> CallResult<ApproveChaincodeDefinitionForMyOrgResult> {
        let name = args.name;
        let package = match args.source.and_then(|source| source.r#type) {
            Some(chaincode_source::Type::LocalPackage(local)) => local.package_id,
            _ => String::new(),
        };
        let endorsement = ChaincodeEndorsementInfo {
            version: args.version,
            init_required: args.init_required,
            endorsement_plugin: args.endorsement_plugin,
        };
        let validation = ChaincodeValidationInfo {
            validation_plugin: args.validation_plugin,
            validation_parameter: args.validation_parameter,
        };
        let definition = with_defaults(args.sequence, endorsement, validation, args.collections);
        self.check_definition(&name, &definition).await?;
        let current = self.state.sequence(&name).await?;
        let requested = definition.sequence;
        if requested == 0 && current == 0 {
            return Err(LifecycleError::refused("requested sequence is 0, but first definable sequence number is 1"));
        }
        if requested < current {
            let reason = format!("currently defined sequence {current} is larger than requested sequence {requested}");
            return Err(LifecycleError::refused(reason));
        }
        if requested > current.saturating_add(1) {
            let next = current.saturating_add(1);
            return Err(LifecycleError::refused(format!(
                "requested sequence {requested} is larger than the next available sequence number {next}"
            )));
        }
        let collection = implicit_collection(self.own);
        let approval = Approval { name: &name, definition: &definition, package: &package };
        if requested == current {
            let committed = self.state.definition(&name).await?;
            let is_same = committed.is_some_and(|committed| committed == definition);
            if !is_same {
                return Err(LifecycleError::refused(format!(
                    "attempted to redefine the current committed sequence ({current}) for namespace {name} with different \
                     parameters"
                )));
            }
        }
        if self.is_approved(&collection, &approval).await? {
            let what = if requested == current { "the current committed" } else { "uncommitted" };
            let rest = if requested == current { "" } else { " with unchanged content" };
            return Err(LifecycleError::refused(format!(
                "attempted to redefine {what} sequence ({requested}) for namespace {name}{rest}"
            )));
        }
        for rows in approval.rows() {
            self.state.write_private(&collection, &rows).await?;
        }
        Ok(ApproveChaincodeDefinitionForMyOrgResult {})
    }

    /// Whether the organisation has already approved exactly this definition and package.
    async fn is_approved(&mut self, collection: &str, approval: &Approval<'_>) -> CallResult<bool> {
        let [parameters, source] = approval.rows();
        for rows in [parameters, source] {
            if !self.state.has_metadata(collection, &rows).await? {
                return Ok(false);
            }
            if !self.state.mismatches(collection, &rows).await?.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Step 2.
    async fn check_commit_readiness(
        &mut self,
        args: CheckCommitReadinessArgs,
    ) -> CallResult<CheckCommitReadinessResult> {
        let endorsement = ChaincodeEndorsementInfo {
            version: args.version,
            init_required: args.init_required,
            endorsement_plugin: args.endorsement_plugin,
        };
        let validation = ChaincodeValidationInfo {
            validation_plugin: args.validation_plugin,
            validation_parameter: args.validation_parameter,
        };
        let definition = with_defaults(args.sequence, endorsement, validation, args.collections);
        let (approvals, mismatches) = self.approvals_of_next(&args.name, &definition).await?;
        Ok(CheckCommitReadinessResult { approvals, mismatches })
    }

    /// Step 3.
    async fn commit(&mut self, args: CommitChaincodeDefinitionArgs) -> CallResult<CommitChaincodeDefinitionResult> {
        let endorsement = ChaincodeEndorsementInfo {
            version: args.version,
            init_required: args.init_required,
            endorsement_plugin: args.endorsement_plugin,
        };
        let validation = ChaincodeValidationInfo {
            validation_plugin: args.validation_plugin,
            validation_parameter: args.validation_parameter,
        };
        let definition = with_defaults(args.sequence, endorsement, validation, args.collections);
        self.check_definition(&args.name, &definition).await?;
        let (approvals, _) = self.approvals_of_next(&args.name, &definition).await?;
        // Before the check, so that the reads and writes are Fabric's in a refusal too.
        self.state.write_definition(&args.name, &definition).await?;
        if !approvals.get(self.own.as_str()).copied().unwrap_or(false) {
            let reason = format!("chaincode definition not agreed to by this org ({})", self.own);
            return Err(LifecycleError::refused(reason));
        }
        Ok(CommitChaincodeDefinitionResult {})
    }

    /// Which organisations have approved a definition, and which fields differ in the approvals of the others. The
    /// definition must be the next one of its contract.
    async fn approvals_of_next(
        &mut self,
        name: &str,
        definition: &ContractDefinition,
    ) -> CallResult<(BTreeMap<String, bool>, BTreeMap<String, Mismatches>)> {
        let current = self.state.sequence(name).await?;
        let next = current.saturating_add(1);
        if definition.sequence != next {
            return Err(LifecycleError::refused(format!(
                "requested sequence is {}, but new definition must be sequence {next}",
                definition.sequence
            )));
        }
        self.approvals(name, definition).await
    }

    async fn approvals(
        &mut self,
        name: &str,
        definition: &ContractDefinition,
    ) -> CallResult<(BTreeMap<String, bool>, BTreeMap<String, Mismatches>)> {
        let [parameters, _] = Approval { name, definition, package: "" }.rows();
        let (mut approvals, mut mismatches) = (BTreeMap::new(), BTreeMap::new());
        let organizations = self.policies.config().application();
        for msp in organizations.iter().map(|organization| organization.msp_id.clone()) {
            let items = self.state.mismatches(&implicit_collection(&msp), &parameters).await?;
            approvals.insert(msp.to_string(), items.is_empty());
            if !items.is_empty() {
                mismatches.insert(msp.to_string(), Mismatches { items });
            }
        }
        Ok((approvals, mismatches))
    }

    async fn query(&mut self, args: QueryChaincodeDefinitionArgs) -> CallResult<QueryChaincodeDefinitionResult> {
        let on_ledger = self.state.definition(&args.name).await?;
        let approvals = match &on_ledger {
            Some(definition) => self.approvals(&args.name, definition).await?.0,
            // Without a definition on the ledger, the organisations agreed by starting their peers with this one.
            None => {
                let organizations = self.policies.config().application().iter();
                organizations.map(|organization| (organization.msp_id.to_string(), true)).collect()
            }
        };
        let definition = on_ledger.or_else(|| self.policies.definitions().get(&args.name).cloned());
        let ContractDefinition { sequence, endorsement, validation, collections } = definition
            .ok_or_else(|| LifecycleError::Refused(NOT_FOUND, format!("namespace {} is not defined", args.name)))?;
        Ok(QueryChaincodeDefinitionResult {
            sequence,
            version: endorsement.version,
            endorsement_plugin: endorsement.endorsement_plugin,
            validation_plugin: validation.validation_plugin,
            validation_parameter: validation.validation_parameter,
            collections: Some(collections),
            init_required: endorsement.init_required,
            approvals,
        })
    }

    /// All definitions in force.
    async fn query_all(&mut self) -> CallResult<QueryChaincodeDefinitionsResult> {
        let definitions = self.policies.definitions().iter().map(|(name, definition)| {
            let ContractDefinition { sequence, endorsement, validation, collections } = definition.clone();
            ChaincodeDefinition {
                name: name.clone(),
                sequence,
                version: endorsement.version,
                endorsement_plugin: endorsement.endorsement_plugin,
                validation_plugin: validation.validation_plugin,
                validation_parameter: validation.validation_parameter,
                collections: Some(collections),
                init_required: endorsement.init_required,
            }
        });
        Ok(QueryChaincodeDefinitionsResult { chaincode_definitions: definitions.collect() })
    }
}

/// The content of an organisation's approval.
pub(super) struct Approval<'a> {
    pub(super) name: &'a str,
    pub(super) definition: &'a ContractDefinition,
    pub(super) package: &'a str,
}

impl Approval<'_> {
    /// The rows of the definition's parameters, and those of the package.
    pub(super) fn rows(&self) -> [state::SerializedRows; 2] {
        let (_, [_, endorsement, validation, collections]) = self.definition.rows();
        let private_name = format!("{}#{}", self.name, self.definition.sequence);
        let [_, names @ ..] = DefinitionField::ALL.map(DefinitionField::name);
        let values = [endorsement, validation, collections];
        let parameters = names.into_iter().zip(values).collect();
        let package = vec![("PackageID", ledger::lifecycle::text_field(self.package))];
        [
            state::SerializedRows::new(NAMESPACES, &private_name, PARAMETERS, parameters),
            state::SerializedRows::new(SOURCES, &private_name, LOCAL_PACKAGE, package),
        ]
    }
}

/// The collection of which one organisation is the only member.
pub(super) fn implicit_collection(msp: &MspId) -> String {
    format!("{IMPLICIT_COLLECTION_PREFIX}{msp}")
}

/// A definition with Fabric's defaults for the fields that the client left empty.
fn with_defaults(
    sequence: i64,
    mut endorsement: ChaincodeEndorsementInfo,
    mut validation: ChaincodeValidationInfo,
    collections: Option<CollectionConfigPackage>,
) -> ContractDefinition {
    if endorsement.endorsement_plugin.is_empty() {
        endorsement.endorsement_plugin = ENDORSEMENT_PLUGIN.to_owned();
    }
    if validation.validation_plugin.is_empty() {
        validation.validation_plugin = VALIDATION_PLUGIN.to_owned();
    }
    if validation.validation_parameter.is_empty() {
        validation.validation_parameter = channel_policy();
    }
    ContractDefinition { sequence, endorsement, validation, collections: collections.unwrap_or_default() }
}

fn decode<M: Message + Default>(args: &Bytes) -> CallResult<M> {
    M::decode(args.clone()).map_err(|error| LifecycleError::refused(format!("failed to decode input arg: {error}")))
}
