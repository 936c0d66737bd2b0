//! What the exchange of private data needs to know of a channel's definitions.

use base::MspId;
use ledger::Hash;

use crate::CollectionAccess;

/// The collections of a channel under its newest definitions.
pub trait CollectionPolicies: Send + Sync {
    /// The membership of a collection; `None` if there is no such collection.
    fn access(&self, contract: &str, collection: &str) -> Option<CollectionAccess>;

    /// The number of blocks after which a write to a collection expires; 0 for never.
    fn block_to_live(&self, contract: &str, collection: &str) -> u64;

    /// The collections whose writes expire: contract, collection, and the number of blocks after which they do.
    fn expiring(&self) -> Vec<(String, String, u64)>;

    /// Whether an organisation is a member of the channel.
    fn is_member(&self, organization: &MspId) -> bool;

    /// Changes whenever anything else here may have changed.
    fn digest(&self) -> Hash;
}

/// Whether the peers of an organisation keep the values of a collection.
pub(crate) fn keeps(policies: &dyn CollectionPolicies, organization: &MspId, contract: &str, collection: &str) -> bool {
    policies.access(contract, collection).is_some_and(|access| access.keeps(organization))
}
