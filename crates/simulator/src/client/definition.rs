//! Changes of a contract's definition: each organisation approves it at its own peer, and one of them commits it.
//!
//! A definition refers to the channel's endorsement policy, or requires a number of organisations. The number never
//! exceeds the scenario's, so that honest clients always have enough endorsements.

use base::Bytes;
use base::rt::simulation::Prng;
use identity::policy::{channel_reference, of_signature, parse};
use ledger::lifecycle::ContractDefinition;
use prost::Message as _;
use proto::lifecycle::chaincode_source::{Type, Unavailable};
use proto::lifecycle::{ApproveChaincodeDefinitionForMyOrgArgs, ChaincodeSource, CommitChaincodeDefinitionArgs};

/// The system contract that is called.
pub const CONTRACT: &str = "_lifecycle";
/// The contracts whose definitions change.
pub const DEFINED: [&str; 2] = ["basic", "ycsb"];

/// A definition to be approved and committed.
#[derive(Clone, Debug)]
pub struct Definition {
    /// The contract.
    pub contract: &'static str,
    sequence: i64,
    /// `None` for the channel's policy.
    endorsements: Option<usize>,
    policy: Bytes,
}

impl Definition {
    /// Draws the contract whose definition changes.
    pub fn draw_contract(rng: &mut Prng) -> &'static str {
        let [first, second] = DEFINED;
        if rng.one_in(2) { first } else { second }
    }

    /// Draws the next definition of a contract. `newest` is the sequence of its newest definition. A policy that the
    /// definition states itself requires up to `endorsements_max` of the first `organizations` organisations.
    pub fn draw(
        rng: &mut Prng,
        contract: &'static str,
        newest: i64,
        endorsements_max: usize,
        organizations: usize,
    ) -> Definition {
        let endorsements = (!rng.one_in(3)).then(|| 1 + rng.index(endorsements_max));
        let policy = match endorsements {
            None => channel_reference("/Channel/Application/Endorsement"),
            Some(count) => {
                let peers: Vec<String> = (1..=organizations).map(|number| format!("'Org{number}MSP.peer'")).collect();
                let policy = parse(&format!("OutOf({count}, {})", peers.join(", ")));
                of_signature(policy.expect("the policy is well formed"))
            }
        };
        Definition { contract, sequence: newest + 1, endorsements, policy: policy.encode_to_vec().into() }
    }

    /// The definition that the ledger has of a contract, to be approved by organisations that have not done so.
    pub fn current(contract: &'static str, definition: &ContractDefinition) -> Definition {
        let policy = definition.validation.validation_parameter.clone();
        Definition { contract, sequence: definition.sequence, endorsements: None, policy }
    }

    /// A description of the definition, for display.
    pub fn text(&self) -> String {
        let needed = self.endorsements.map_or("as the channel".to_owned(), |count| format!("{count} organisations"));
        format!("definition {} of {}: {needed}", self.sequence, self.contract)
    }

    /// The function and the arguments by which an organisation approves it.
    pub fn approval(&self) -> Vec<Bytes> {
        let args = ApproveChaincodeDefinitionForMyOrgArgs {
            sequence: self.sequence,
            name: self.contract.to_owned(),
            version: self.sequence.to_string(),
            validation_parameter: self.policy.clone(),
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
            ..Default::default()
        };
        call("CommitChaincodeDefinition", args.encode_to_vec())
    }
}

fn call(function: &'static str, args: Vec<u8>) -> Vec<Bytes> {
    vec![Bytes::from_static(function.as_bytes()), args.into()]
}
