//! The contracts of a channel and their rules: those that the ledger defines, and those that a peer was started with.
//!
//! 1. The state holds the definitions ([`ledger::lifecycle`]). The rules in force for a block are those of the state
//!    before it, so all peers apply the same rules. [`LedgerDefinitions`] is a decoded copy of the definitions in the
//!    state.
//! 2. A contract that the ledger does not define has the definition that its peers were started with, if any. As soon
//!    as the ledger defines it, only the ledger's definition counts. Until then all peers must be started with the same
//!    definitions.
//! 3. [`ContractRules`] is a definition compiled under a channel configuration: the policies that endorsements must
//!    satisfy.
//!
//! An invalid definition makes its own contract unusable and harms nothing else. If its rows cannot be decoded, the
//! contract counts as undefined. If its policy cannot be decoded, refers to a policy that the channel does not have, or
//! belongs to a plugin that no peer has, no endorsements satisfy it. Some of these errors stop a channel at Fabric's
//! peers.

use std::collections::BTreeMap;

use base::{Bytes, Map};
use identity::Policy;
use identity::policy::{ApplicationPolicy, channel_reference, parse};
use ledger::ChannelConfig;
use ledger::lifecycle::{
    ContractDefinition, DefinitionField, LIFECYCLE, LIFECYCLE_ENDORSEMENT, VALIDATION_PLUGIN, defined_contract,
    implicit_collection_msp, metadata_key, metadata_range,
};
use state::Snapshot;

use private_data::CollectionAccess;

/// Contract definitions by name.
pub type ContractDefinitions = BTreeMap<String, ContractDefinition>;

/// The number of contracts whose names are read at once.
const PAGE_ROWS: usize = 256;

/// The definition of a contract that follows the channel's endorsement policy.
pub fn by_channel_policy(version: impl Into<String>) -> ContractDefinition {
    ContractDefinition::first(version, &channel_reference(ledger::config::ENDORSEMENT))
}

/// The encoded policy of a definition that follows the channel's endorsement policy.
pub fn channel_policy() -> Bytes {
    by_channel_policy("").validation.validation_parameter
}

/// The definitions on the ledger, by contract; `None` for a contract whose rows cannot be decoded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LedgerDefinitions(BTreeMap<String, Option<ContractDefinition>>);

/// Reads single rows of the state.
#[async_trait::async_trait]
pub trait StateReader: Send + Sync {
    /// The value of a key; `None` if there is none.
    ///
    /// # Errors
    /// The state's.
    async fn value(&self, namespace: &str, key: &str) -> Result<Option<Bytes>, state::Error>;
}

#[async_trait::async_trait]
impl<S: Snapshot + ?Sized> StateReader for S {
    async fn value(&self, namespace: &str, key: &str) -> Result<Option<Bytes>, state::Error> {
        Ok(self.get(namespace, key).await?.map(|found| found.value))
    }
}

impl LedgerDefinitions {
    /// All definitions in a state.
    ///
    /// # Errors
    /// The state's.
    pub async fn load(snapshot: &dyn Snapshot) -> Result<LedgerDefinitions, state::Error> {
        let mut definitions = LedgerDefinitions::default();
        let (start, end) = metadata_range();
        let mut start = start.to_owned();
        loop {
            let page = snapshot.range_versions(LIFECYCLE, &start, end, PAGE_ROWS).await?;
            for (key, _) in &page.entries {
                if let Some(contract) = defined_contract(key) {
                    definitions.reload(contract, snapshot).await?;
                }
            }
            match page.entries.last() {
                // The smallest key after the last one.
                Some((last, _)) if page.more => start = format!("{last}\0"),
                _ => return Ok(definitions),
            }
        }
    }

    /// Reads the definition of one contract again.
    ///
    /// # Errors
    /// The state's.
    pub async fn reload(&mut self, contract: &str, rows: &(impl StateReader + ?Sized)) -> Result<(), state::Error> {
        let Some(metadata) = rows.value(LIFECYCLE, &metadata_key(contract)).await? else {
            self.0.remove(contract);
            return Ok(());
        };
        let mut fields = [const { None }; DefinitionField::ALL.len()];
        for (value, field) in fields.iter_mut().zip(DefinitionField::ALL) {
            *value = rows.value(LIFECYCLE, &field.key(contract)).await?;
        }
        let definition = ContractDefinition::read(&metadata, fields.each_ref().map(Option::as_ref));
        let definition =
            definition.inspect_err(|error| tracing::warn!(contract, %error, "nobody can use this contract"));
        self.0.insert(contract.to_owned(), definition.ok());
        Ok(())
    }

    /// Reads the definitions of some contracts again.
    ///
    /// # Errors
    /// The state's.
    pub async fn reload_all<'a>(
        &mut self,
        contracts: impl Iterator<Item = &'a str> + Send,
        rows: &(impl StateReader + ?Sized),
    ) -> Result<(), state::Error> {
        for contract in contracts {
            self.reload(contract, rows).await?;
        }
        Ok(())
    }

    /// The contracts that have rows, each with its definition; `None` if its rows cannot be decoded.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&ContractDefinition>)> {
        self.0.iter().map(|(name, definition)| (name.as_str(), definition.as_ref()))
    }

    /// Whether the ledger has rows for a contract.
    pub fn contains(&self, contract: &str) -> bool {
        self.0.contains_key(contract)
    }

    /// The definitions in force: those on the ledger, and the initial ones of contracts that have no rows on the
    /// ledger.
    pub fn over(&self, initial: &ContractDefinitions) -> ContractDefinitions {
        let mut definitions = initial.clone();
        for (name, definition) in &self.0 {
            match definition {
                Some(definition) => definitions.insert(name.clone(), definition.clone()),
                None => definitions.remove(name),
            };
        }
        definitions
    }
}

impl FromIterator<(String, Option<ContractDefinition>)> for LedgerDefinitions {
    fn from_iter<I: IntoIterator<Item = (String, Option<ContractDefinition>)>>(definitions: I) -> Self {
        LedgerDefinitions(definitions.into_iter().collect())
    }
}

/// The policies that the endorsements of a contract's transactions must satisfy.
#[derive(Clone, Debug)]
pub struct ContractRules {
    /// For public keys, and for collections that have no policy of their own.
    pub endorsement: Policy,
    collections: Map<String, CollectionRules>,
}

/// The rules of a collection.
#[derive(Clone, Debug)]
pub struct CollectionRules {
    /// For writes to the collection.
    pub endorsement: Policy,
    /// The number of blocks after which a write expires; 0 for never.
    pub block_to_live: u64,
    /// Its members.
    pub access: CollectionAccess,
}

impl ContractRules {
    /// Compiles a definition. `None` if it lacks a plugin or a policy: as in Fabric, such a contract counts as
    /// undefined.
    pub(crate) fn compile(config: &ChannelConfig, definition: &ContractDefinition) -> Option<ContractRules> {
        let validation = &definition.validation;
        if validation.validation_plugin.is_empty() || validation.validation_parameter.is_empty() {
            return None;
        }
        let resolve = |policy: Result<ApplicationPolicy, identity::Error>| {
            policy.map_or(Policy::Missing, |policy| policy.resolve(config.policies()))
        };
        let endorsement = match validation.validation_plugin == VALIDATION_PLUGIN {
            true => resolve(ApplicationPolicy::decode(&validation.validation_parameter)),
            false => Policy::Missing,
        };
        let collections = definition.static_collections().map(|collection| {
            let own = collection.endorsement_policy.as_ref().filter(|policy| policy.r#type.is_some());
            let endorsement = own.map_or_else(|| endorsement.clone(), |own| resolve(ApplicationPolicy::from_wire(own)));
            let (block_to_live, access) = (collection.block_to_live, CollectionAccess::of_definition(collection));
            (collection.name.clone(), CollectionRules { endorsement, block_to_live, access })
        });
        Some(ContractRules { collections: collections.collect(), endorsement })
    }

    /// The rules of the system contract that writes definitions.
    pub(crate) fn of_lifecycle(config: &ChannelConfig) -> ContractRules {
        let endorsement = match config.policies().require(LIFECYCLE_ENDORSEMENT) {
            Ok(policy) => policy.clone(),
            // Fabric's default for channels that were made without the policy.
            Err(_) => {
                let members: Vec<String> =
                    config.application().iter().map(|one| format!("'{}.member'", one.msp_id)).collect();
                signature_policy(&format!("OutOf({}, {})", members.len() / 2 + 1, members.join(", ")))
            }
        };
        ContractRules { endorsement, collections: Map::default() }
    }

    /// The policy for writes to a collection; `None` if there is no such collection.
    pub fn collection_policy(&self, collection: &str, config: &ChannelConfig) -> Option<Policy> {
        match implicit_collection_msp(collection) {
            Some(msp) => implicit_collection_policy(msp, config),
            None => self.collections.get(collection).map(|rules| rules.endorsement.clone()),
        }
    }

    /// The membership of a collection; `None` if there is no such collection.
    pub fn collection_access(&self, collection: &str, config: &ChannelConfig) -> Option<CollectionAccess> {
        match self.collections.get(collection) {
            Some(rules) => Some(rules.access.clone()),
            None => CollectionAccess::implicit(collection, config),
        }
    }

    /// The number of blocks after which a write to a collection expires; 0 for never.
    pub fn block_to_live(&self, collection: &str) -> u64 {
        self.collections.get(collection).map_or(0, |rules| rules.block_to_live)
    }

    /// The collections whose writes expire, each with the number of blocks after which they do.
    pub fn expiring(&self) -> impl Iterator<Item = (&str, u64)> {
        let expiring = self.collections.iter().filter(|(_, rules)| rules.block_to_live > 0);
        expiring.map(|(collection, rules)| (collection.as_str(), rules.block_to_live))
    }

    /// Whether writes to any collection expire.
    pub fn expires(&self) -> bool {
        self.collections.values().any(|rules| rules.block_to_live > 0)
    }
}

/// The policy for writes to the implicit collection of an organisation: its own endorsement policy.
fn implicit_collection_policy(msp: &str, config: &ChannelConfig) -> Option<Policy> {
    let organization = config.application().iter().find(|organization| *organization.msp_id == *msp)?;
    let path = format!("/Channel/Application/{}/Endorsement", organization.name);
    let own = config.policies().require(&path).cloned();
    // Fabric's default for organisations without the policy.
    Some(own.unwrap_or_else(|_| signature_policy(&format!("OR('{msp}.member')"))))
}

fn signature_policy(text: &str) -> Policy {
    let compiled = parse(text).and_then(|envelope| identity::policy::SignaturePolicy::compile(&envelope));
    compiled.map_or(Policy::Missing, Policy::from)
}

/// An unambiguous encoding of definitions, for a digest.
pub(crate) fn stated(definitions: &ContractDefinitions) -> Vec<u8> {
    let mut stated = Vec::new();
    for (name, definition) in definitions {
        let (_, [_, endorsement, validation, collections]) = definition.rows();
        for part in [name.as_bytes(), &endorsement, &validation, &collections] {
            stated.extend_from_slice(&(part.len() as u64).to_le_bytes());
            stated.extend_from_slice(part);
        }
        stated.extend_from_slice(&definition.sequence.to_le_bytes());
    }
    stated
}
