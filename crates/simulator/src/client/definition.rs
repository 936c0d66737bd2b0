//! Changes of a contract's definition: each organisation approves it at its own peer, and one of them commits it.
//!
//! A definition refers to the channel's endorsement policy, or requires a number of organisations. The number never
//! exceeds the scenario's, so that honest clients always have enough endorsements. A definition of the contract with
//! private data refers to the channel's policy and chooses the members of the collection.

use base::Bytes;
use base::rt::simulation::Prng;
use identity::policy::{channel_reference, of_signature, parse};
use ledger::lifecycle::ContractDefinition;
use prost::Message as _;
use proto::lifecycle::chaincode_source::{Type, Unavailable};
use proto::lifecycle::{ApproveChaincodeDefinitionForMyOrgArgs, ChaincodeSource, CommitChaincodeDefinitionArgs};
use proto::protos::CollectionConfigPackage;

/// The system contract that is called.
pub const CONTRACT: &str = "_lifecycle";
/// The collections of a definition.
#[derive(Clone, Debug)]
pub struct DefinedCollections {
    /// The number of members, for display.
    pub members: usize,
    /// What the definition says.
    pub package: CollectionConfigPackage,
}

/// A definition to be approved and committed.
#[derive(Clone, Debug)]
pub struct Definition {
    /// The contract.
    pub contract: &'static str,
    sequence: i64,
    policy: Bytes,
    collections: Option<CollectionConfigPackage>,
    /// What it requires, for display.
    text: String,
}

impl Definition {
    /// Draws the next definition of a contract. `newest` is the sequence of its newest definition. A policy that the
    /// definition states itself requires up to `endorsements_max` of the first `organizations` organisations. One with collections refers to the channel's policy.
    pub fn draw(
        rng: &mut Prng,
        contract: &'static str,
        newest: i64,
        endorsements_max: usize,
        organizations: usize,
        collections: Option<DefinedCollections>,
    ) -> Definition {
        let endorsements = (collections.is_none() && !rng.one_in(3)).then(|| 1 + rng.index(endorsements_max));
        let policy = match endorsements {
            None => channel_reference("/Channel/Application/Endorsement"),
            Some(count) => {
                let peers: Vec<String> = (1..=organizations).map(|number| format!("'Org{number}MSP.peer'")).collect();
                let policy = parse(&format!("OutOf({count}, {})", peers.join(", ")));
                of_signature(policy.expect("the policy is well formed"))
            }
        };
        let mut text = endorsements.map_or("as the channel".to_owned(), |count| format!("{count} organisations"));
        if let Some(DefinedCollections { members, .. }) = &collections {
            text = format!("{text}, {members} members");
        }
        let collections = collections.map(|collections| collections.package);
        Definition { contract, sequence: newest + 1, policy: policy.encode_to_vec().into(), collections, text }
    }

    /// The definition that the ledger has of a contract, to be approved by organisations that have not done so.
    pub fn current(contract: &'static str, definition: &ContractDefinition) -> Definition {
        let policy = definition.validation.validation_parameter.clone();
        let collections = Some(definition.collections.clone()).filter(|package| !package.config.is_empty());
        Definition { contract, sequence: definition.sequence, policy, collections, text: "current".to_owned() }
    }

    /// A description of the definition, for display.
    pub fn text(&self) -> String {
        format!("definition {} of {}: {}", self.sequence, self.contract, self.text)
    }

    /// The function and the arguments by which an organisation approves it.
    pub fn approval(&self) -> Vec<Bytes> {
        let args = ApproveChaincodeDefinitionForMyOrgArgs {
            sequence: self.sequence,
            name: self.contract.to_owned(),
            version: self.sequence.to_string(),
            validation_parameter: self.policy.clone(),
            collections: self.collections.clone(),
            source: Some(ChaincodeSource { r#type: Some(Type::Unavailable(Unavailable {})) }),
            ..Default::default()
        };
        call("ApproveChaincodeDefinitionForMyOrg", args.encode_to_vec())
    }

    /// The function and the arguments by which it is committed.
    pub fn commit(&self) -> Vec<Bytes> {
        let args = CommitChaincodeDefinitionArgs {
            sequence: self.sequence,
            name: self.contract.to_owned(),
            version: self.sequence.to_string(),
            validation_parameter: self.policy.clone(),
            collections: self.collections.clone(),
            ..Default::default()
        };
        call("CommitChaincodeDefinition", args.encode_to_vec())
    }
}

fn call(function: &'static str, args: Vec<u8>) -> Vec<Bytes> {
    vec![Bytes::from_static(function.as_bytes()), args.into()]
}
