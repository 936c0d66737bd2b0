//! What a channel's configuration and contract definitions say about who may do what, ready to be asked.
//!
//! [`Rules`] are fixed for one configuration of one channel. Endorser, orderer and validator share them; identities are
//! remembered by the channel's [`MspManager`], verdicts on signatures nowhere.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::rt::{self, WallTime};
use base::{Bytes, ChannelId};
use identity::policy::{ApplicationPolicy, SignatureSet, SignedData, channel_reference};
use identity::{DenyList, Identity, MspManager, Policy, Verifier};
use ledger::hash::sha256;
use ledger::transaction::Action;
use ledger::{ChannelConfig, Hash};
use prost::Message as _;

/// The resource whose policy says who may propose transactions.
pub const PROPOSE: &str = "peer/Propose";
/// Who may send envelopes to an orderer.
pub const CHANNEL_WRITERS: &str = "/Channel/Writers";

/// Namespaces that belong to the system: no transaction may write to them.
pub const SYSTEM_NAMESPACES: [&str; 4] = ["_lifecycle", "cscc", "lscc", "qscc"];

/// Whether a namespace belongs to the system. The empty one holds the configuration.
pub fn is_system_namespace(name: &str) -> bool {
    name.is_empty() || SYSTEM_NAMESPACES.contains(&name)
}

/// A contract as all peers of a channel agreed on it.
///
/// Until definitions are kept on the ledger, peers are started with the same ones.
#[derive(Clone, Debug)]
pub struct Definition {
    /// The version that `_lifecycle` shows.
    pub version: String,
    /// How often the definition was changed; from 1.
    pub sequence: i64,
    /// Whose endorsements a transaction of the contract needs.
    pub endorsement: proto::protos::ApplicationPolicy,
}

impl Default for Definition {
    fn default() -> Self {
        Definition {
            version: "1.0".to_owned(),
            sequence: 1,
            endorsement: channel_reference(ledger::config::ENDORSEMENT),
        }
    }
}

/// Contract definitions by name.
pub type Definitions = BTreeMap<String, Definition>;

/// The rules of one channel.
#[derive(Debug)]
pub struct Rules {
    config: Arc<ChannelConfig>,
    proposers: Policy,
    channel_writers: Policy,
    definitions: Definitions,
    endorsement: BTreeMap<String, Policy>,
    digest: Hash,
    denied: DenyList,
    verifier: Verifier,
}

impl Rules {
    /// Compiles the rules of a configuration.
    ///
    /// # Errors
    /// If the policy of a definition is malformed.
    pub fn new(config: Arc<ChannelConfig>, definitions: Definitions) -> Result<Rules, identity::Error> {
        let mut endorsement = BTreeMap::new();
        let mut stated = config.digest().to_vec();
        for (name, definition) in &definitions {
            let policy = ApplicationPolicy::from_wire(&definition.endorsement)?;
            endorsement.insert(name.clone(), policy.resolve(config.policies()));
            for part in [name.as_bytes(), definition.version.as_bytes(), &definition.endorsement.encode_to_vec()] {
                stated.extend_from_slice(&(part.len() as u64).to_le_bytes());
                stated.extend_from_slice(part);
            }
            stated.extend_from_slice(&definition.sequence.to_le_bytes());
        }
        Ok(Rules {
            proposers: config.policy(config.acl(PROPOSE)),
            channel_writers: config.policy(CHANNEL_WRITERS),
            config,
            definitions,
            endorsement,
            digest: sha256(&stated),
            denied: DenyList::of_process(),
            verifier: Verifier::of_process(),
        })
    }

    /// The same rules where another list than this process's says whom the operator denies.
    #[must_use]
    pub fn denying(self, denied: DenyList) -> Rules {
        Rules { denied, ..self }
    }

    /// The same rules where signatures are verified otherwise than in the rest of the process. No verdict depends on it.
    #[must_use]
    pub fn verified_by(self, verifier: Verifier) -> Rules {
        Rules { verifier, ..self }
    }

    /// How signatures that decide validity are verified.
    pub fn verifier(&self) -> Verifier {
        self.verifier
    }

    /// The configuration behind the rules.
    pub fn config(&self) -> &Arc<ChannelConfig> {
        &self.config
    }

    /// SHA-256 of everything that the rules are made of, configuration and definitions: whoever has the same judges the same.
    pub fn digest(&self) -> &Hash {
        &self.digest
    }

    /// The channel.
    pub fn channel(&self) -> &ChannelId {
        self.config.channel()
    }

    /// The contracts of the channel.
    pub fn definitions(&self) -> &Definitions {
        &self.definitions
    }

    /// The channel's members.
    pub fn members(&self) -> &MspManager {
        self.config.msps()
    }

    /// The member that these bytes, a `SerializedIdentity`, name, unless the channel's configuration revokes it. Whether it has
    /// expired or is denied here is not looked at: see [`Rules::check_served`].
    ///
    /// # Errors
    /// Why it is no member.
    pub fn identify(&self, serialized: &Bytes) -> Result<Arc<Identity>, identity::Error> {
        self.members().identify(serialized)
    }

    /// Refuses a member that is not to be served now: its certificate has expired, or this node's operator denies it. For
    /// everything that a node does for somebody; never for validation, which must come to the same at all peers and for ever.
    ///
    /// # Errors
    /// [`identity::Error::Expired`], [`identity::Error::Denied`].
    pub fn check_served(&self, member: &Identity, now: WallTime) -> Result<(), identity::Error> {
        member.check_expiry(now)?;
        self.check_denied(member, now)
    }

    /// As [`Rules::check_served`], for what Fabric lets expired members ask.
    ///
    /// # Errors
    /// [`identity::Error::Denied`].
    pub fn check_denied(&self, member: &Identity, now: WallTime) -> Result<(), identity::Error> {
        self.denied.check(member, now)
    }

    /// Completes when this node's operator denies a member, at once where he does already. A stream that is open ends by it.
    pub async fn denied(&self, member: &Identity) {
        // Subscribed before the check, so that a change between the two is not missed.
        let mut changes = self.denied.changes();
        while self.check_denied(member, rt::wall_now()).is_ok() {
            if changes.changed().await.is_err() {
                // The list cannot change any more.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Whose endorsements a contract needs; nothing where the channel has no such contract.
    pub fn endorsement_policy(&self, contract: &str) -> Option<&Policy> {
        self.endorsement.get(contract)
    }

    /// Whether a member, whose signature was checked, may propose transactions.
    pub fn may_propose(&self, member: &Arc<Identity>) -> bool {
        self.proposers.evaluate_identities(std::slice::from_ref(member)).is_ok()
    }

    /// Whether a member, whose signature was checked, may send envelopes to an orderer.
    pub fn may_order(&self, member: &Arc<Identity>) -> bool {
        self.channel_writers.evaluate_identities(std::slice::from_ref(member)).is_ok()
    }

    /// Whether a member, whose signature was checked, may use a resource such as `qscc/GetChainInfo`.
    pub fn may_use(&self, resource: &str, member: &Arc<Identity>) -> bool {
        let policy = self.config.policy(self.config.acl(resource));
        policy.evaluate_identities(std::slice::from_ref(member)).is_ok()
    }
}

/// The endorsements of one transaction, each verified at most once whatever the number of policies. They share the
/// transaction's memory: nobody vouches yet for how many there are or how large the result is.
pub fn endorsements(action: &Action) -> Vec<SignedData> {
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
