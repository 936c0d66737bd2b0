//! The rules of a channel's configuration and of its contract definitions, ready to be evaluated.
//!
//! [`ChannelPolicies`] are fixed for one configuration of one channel and one set of definitions. Endorser, orderer and validator
//! share them. The channel's [`MspManager`] caches identities; verdicts on signatures are not cached. [`CurrentPolicies`] are those
//! in force.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use base::rt::{self, WallTime};
use base::{Bytes, ChannelId, MspId};
use identity::policy::{ApplicationPolicy, SignatureSet, SignedData};
use identity::{DenyList, Identity, MspManager, Policy, SignatureVerifier};
use ledger::hash::sha256;
use ledger::lifecycle::LIFECYCLE;
use ledger::transaction::EndorsedAction;
use ledger::{ChannelConfig, Hash};
use private_data::{CollectionAccess, CollectionPolicies};

use crate::definitions::{self, ContractDefinitions, ContractRules, LedgerDefinitions};

/// The resource whose policy says who may propose transactions.
pub const PROPOSE: &str = "peer/Propose";
/// Who may send envelopes to an orderer.
pub const CHANNEL_WRITERS: &str = "/Channel/Writers";
/// Who may send them while the channel is in maintenance mode.
pub const ORDERER_WRITERS: &str = "/Channel/Orderer/Writers";

/// The system contracts. Of their namespaces only that of the lifecycle has rows.
pub const SYSTEM_NAMESPACES: [&str; 4] = ["_lifecycle", "cscc", "lscc", "qscc"];

/// Whether a namespace belongs to the system. The empty one holds the configuration.
pub fn is_system_namespace(name: &str) -> bool {
    name.is_empty() || SYSTEM_NAMESPACES.contains(&name)
}

/// The policies of one channel: configuration, contract definitions and access control.
#[derive(Debug)]
pub struct ChannelPolicies {
    config: Arc<ChannelConfig>,
    proposers: Policy,
    writers: Policy,
    /// The definitions with which the peers were started.
    initial: Arc<ContractDefinitions>,
    /// The definitions on the ledger.
    on_ledger: Arc<LedgerDefinitions>,
    /// The definitions in force, of both.
    contracts: Arc<ContractDefinitions>,
    rules: BTreeMap<String, ContractRules>,
    has_expiring_collections: bool,
    digest: Hash,
    denied: DenyList,
    verifier: SignatureVerifier,
}

impl ChannelPolicies {
    /// Compiles the policies of a configuration. `initial` are the definitions of contracts that the ledger does not define.
    ///
    /// # Errors
    /// If the policy of such a definition is malformed.
    pub fn new(config: Arc<ChannelConfig>, initial: ContractDefinitions) -> Result<ChannelPolicies, identity::Error> {
        for definition in initial.values() {
            ApplicationPolicy::decode(&definition.validation.validation_parameter)?;
        }
        let (denied, verifier) = (DenyList::of_process(), SignatureVerifier::of_process());
        Ok(ChannelPolicies::compile(config, Arc::new(initial), Arc::default(), denied, verifier))
    }

    fn compile(
        config: Arc<ChannelConfig>,
        initial: Arc<ContractDefinitions>,
        on_ledger: Arc<LedgerDefinitions>,
        denied: DenyList,
        verifier: SignatureVerifier,
    ) -> ChannelPolicies {
        let contracts = Arc::new(on_ledger.over(&initial));
        let rules = contracts
            .iter()
            .filter_map(|(name, definition)| Some((name.clone(), ContractRules::compile(&config, definition)?)));
        let mut rules: BTreeMap<String, ContractRules> = rules.collect();
        rules.insert(LIFECYCLE.to_owned(), ContractRules::of_lifecycle(&config));
        let stated = [&config.digest()[..], &definitions::stated(&contracts)].concat();
        let writers = if config.consensus().maintenance { ORDERER_WRITERS } else { CHANNEL_WRITERS };
        ChannelPolicies {
            proposers: config.policy(config.acl(PROPOSE)),
            writers: config.policy(writers),
            digest: sha256(&stated),
            has_expiring_collections: rules.values().any(ContractRules::expires),
            config,
            initial,
            on_ledger,
            contracts,
            rules,
            denied,
            verifier,
        }
    }

    /// The policies of the same contract definitions under another configuration of the channel.
    #[must_use]
    pub fn under(&self, config: Arc<ChannelConfig>) -> ChannelPolicies {
        let (initial, on_ledger) = (self.initial.clone(), self.on_ledger.clone());
        ChannelPolicies::compile(config, initial, on_ledger, self.denied.clone(), self.verifier)
    }

    /// The policies under the same configuration with other definitions on the ledger.
    #[must_use]
    pub fn defining(&self, on_ledger: LedgerDefinitions) -> ChannelPolicies {
        let (config, initial) = (self.config.clone(), self.initial.clone());
        ChannelPolicies::compile(config, initial, Arc::new(on_ledger), self.denied.clone(), self.verifier)
    }

    /// The same policies with another deny list than this process's.
    #[must_use]
    pub fn denying(self, denied: DenyList) -> ChannelPolicies {
        ChannelPolicies { denied, ..self }
    }

    /// The same policies with another verifier than this process's. No verdict depends on the choice.
    #[must_use]
    pub fn verified_by(self, verifier: SignatureVerifier) -> ChannelPolicies {
        ChannelPolicies { verifier, ..self }
    }

    /// How signatures that decide validity are verified.
    pub fn verifier(&self) -> SignatureVerifier {
        self.verifier
    }

    /// The configuration from which the policies come.
    pub fn config(&self) -> &Arc<ChannelConfig> {
        &self.config
    }

    /// SHA-256 of everything that the policies consist of, configuration and definitions: two nodes with the same
    /// digest reach the same verdicts.
    pub fn digest(&self) -> &Hash {
        &self.digest
    }

    /// The channel.
    pub fn channel(&self) -> &ChannelId {
        self.config.channel()
    }

    /// The contracts of the channel.
    pub fn definitions(&self) -> &ContractDefinitions {
        &self.contracts
    }

    /// The definitions on the ledger.
    pub fn on_ledger(&self) -> &LedgerDefinitions {
        &self.on_ledger
    }

    /// The channel's members.
    pub fn members(&self) -> &MspManager {
        self.config.msps()
    }

    /// The member that the bytes of a `SerializedIdentity` name, unless the channel's configuration revokes it. Does
    /// not check whether the member has expired or is denied here: see [`ChannelPolicies::check_served`].
    ///
    /// # Errors
    /// Why the identity is no member.
    pub fn identify(&self, serialized: &Bytes) -> Result<Arc<Identity>, identity::Error> {
        self.members().identify(serialized)
    }

    /// Rejects a member that must not be served now: its certificate has expired, or this node's operator denies it.
    /// Call it before serving a member. Never call it in validation, whose result must be the same at all peers and at
    /// all times.
    ///
    /// # Errors
    /// [`identity::Error::Expired`], [`identity::Error::Denied`].
    pub fn check_served(&self, member: &Identity, now: WallTime) -> Result<(), identity::Error> {
        member.check_expiry(now)?;
        self.check_denied(member, now)
    }

    /// As [`ChannelPolicies::check_served`], for requests that Fabric accepts from expired members.
    ///
    /// # Errors
    /// [`identity::Error::Denied`].
    pub fn check_denied(&self, member: &Identity, now: WallTime) -> Result<(), identity::Error> {
        self.denied.check(member, now)
    }

    /// Completes when this node's operator denies a member, at once if the member is denied already. It ends streams
    /// that are open.
    pub async fn denied(&self, member: &Identity) {
        // Subscribed before the check, so that a change between the two is not missed.
        let mut changes = self.denied.changes();
        while self.check_denied(member, rt::wall_now()).is_ok() {
            if changes.changed().await.is_err() {
                // The list can no longer change.
                std::future::pending::<()>().await;
            }
        }
    }

    /// The endorsement policy of a contract; `None` if the channel has no such contract.
    pub fn endorsement_policy(&self, contract: &str) -> Option<&Policy> {
        self.rules.get(contract).map(|rules| &rules.endorsement)
    }

    /// The rules of a contract; `None` if the channel has no such contract.
    pub fn contract_rules(&self, contract: &str) -> Option<&ContractRules> {
        self.rules.get(contract)
    }

    /// Whether a write to a collection of any contract expires.
    pub fn has_expiring_collections(&self) -> bool {
        self.has_expiring_collections
    }

    /// Whether a member, whose signature was checked, may propose transactions.
    pub fn may_propose(&self, member: &Arc<Identity>) -> bool {
        self.proposers.evaluate_identities(std::slice::from_ref(member)).is_ok()
    }

    /// As [`ChannelPolicies::may_use`].
    ///
    /// # Errors
    /// Why the member may not use the resource, in Fabric's words.
    pub fn check_use(&self, resource: &str, member: &Arc<Identity>) -> Result<(), String> {
        if self.may_use(resource, member) {
            return Ok(());
        }
        let path = self.config.acl(resource);
        let reason = match self.config.policy(path) {
            Policy::ImplicitMeta(policy) => {
                let satisfies = |below: &&Policy| below.evaluate_identities(std::slice::from_ref(member)).is_ok();
                let satisfied = policy.below().iter().filter(satisfies).count();
                // The policies that it asks usually have its own name.
                let (threshold, name) = (policy.threshold(), path.rsplit('/').next().unwrap_or_default());
                format!(
                    "implicit policy evaluation failed - {satisfied} sub-policies were satisfied, but this policy requires \
                     {threshold} of the '{name}' sub-policies to be satisfied"
                )
            }
            Policy::Signature(_) => "signature set did not satisfy policy".to_owned(),
            Policy::Missing => "no such policy".to_owned(),
        };
        Err(match self.config.stated_acl(resource) {
            Some(path) => format!("failed evaluating policy on signed data during check policy [{path}]: [{reason}]"),
            None => format!(
                "Failed evaluating policy on signed data during check policy on channel [{}] with policy [{path}]: [{reason}]",
                self.channel()
            ),
        })
    }

    /// Whether a member, whose signature was checked, may send envelopes to an orderer.
    pub fn may_order(&self, member: &Arc<Identity>) -> bool {
        self.writers.evaluate_identities(std::slice::from_ref(member)).is_ok()
    }

    /// Whether a member, whose signature was checked, may use a resource such as `qscc/GetChainInfo`.
    pub fn may_use(&self, resource: &str, member: &Arc<Identity>) -> bool {
        let policy = self.config.policy(self.config.acl(resource));
        policy.evaluate_identities(std::slice::from_ref(member)).is_ok()
    }
}

impl CollectionPolicies for ChannelPolicies {
    fn access(&self, contract: &str, collection: &str) -> Option<CollectionAccess> {
        self.rules.get(contract)?.collection_access(collection, &self.config)
    }

    fn block_to_live(&self, contract: &str, collection: &str) -> u64 {
        self.rules.get(contract).map_or(0, |rules| rules.block_to_live(collection))
    }

    fn expiring(&self) -> Vec<(String, String, u64)> {
        let rules = self.rules.iter().filter(|_| self.has_expiring_collections);
        let collections = rules.flat_map(|(contract, rules)| {
            rules.expiring().map(|(collection, blocks)| (contract.clone(), collection.to_owned(), blocks))
        });
        collections.collect()
    }

    fn is_member(&self, organization: &MspId) -> bool {
        self.members().msps().any(|member| member.id() == organization)
    }

    fn digest(&self) -> Hash {
        self.digest
    }
}

/// The policies of a channel that are in force. A block that changes the configuration or a definition replaces them.
#[derive(Debug)]
pub struct CurrentPolicies {
    channel: ChannelId,
    current: RwLock<Arc<ChannelPolicies>>,
}

impl CurrentPolicies {
    /// Starts with these.
    pub fn new(policies: Arc<ChannelPolicies>) -> CurrentPolicies {
        CurrentPolicies { channel: policies.channel().clone(), current: RwLock::new(policies) }
    }

    /// The channel, which is the same under all its configurations.
    pub fn channel(&self) -> &ChannelId {
        &self.channel
    }

    /// The policies in force now.
    pub fn get(&self) -> Arc<ChannelPolicies> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts others into force.
    pub fn replace(&self, policies: Arc<ChannelPolicies>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = policies;
    }
}

/// The endorsements of one transaction, each verified at most once however many policies there are. They share the
/// transaction's memory: their number and the size of the result are not checked yet.
pub fn endorsements(action: &EndorsedAction) -> Vec<SignedData> {
    (0..action.endorsements().len())
        .map(|index| SignedData {
            data: action.signed_parts(index).into(),
            identity: action.endorser(index),
            signature: action.signature(index),
        })
        .collect()
}

/// Whether a set of signatures satisfies a policy.
pub fn satisfies(policy: &Policy, signatures: &SignatureSet<'_>) -> bool {
    policy.evaluate(signatures).is_ok()
}
