//! Checks a definition before a peer endorses its approval or its commit.

use identity::policy::SignaturePolicy;
use ledger::lifecycle::ContractDefinition;
use proto::common::SignaturePolicy as Rule;
use proto::common::signature_policy::Type;
use proto::protos::StaticCollectionConfig;
use proto::protos::collection_policy_config::Payload;

use super::{CallResult, LifecycleCall, LifecycleError};

impl LifecycleCall<'_> {
    /// Checks the name, version and collections of a definition. The collections must also be compatible with those of
    /// the committed definition.
    pub(super) async fn check_definition(&mut self, name: &str, definition: &ContractDefinition) -> CallResult<()> {
        let invalid =
            |reason: String| LifecycleError::refused(format!("error validating chaincode definition: {reason}"));
        definition.check(name).map_err(invalid)?;
        for collection in definition.static_collections() {
            self.check_members(collection).map_err(invalid)?;
        }
        let Some(committed) = self.state.committed(name).await? else { return Ok(()) };
        definition.check_successor_of(&committed).map_err(invalid)
    }

    /// Checks that the member policy of a collection names only organisations of the channel, and that any one of them
    /// satisfies it.
    fn check_members(&self, collection: &StaticCollectionConfig) -> Result<(), String> {
        let name = &collection.name;
        let Some(policy) = &collection.member_orgs_policy else {
            return Err(format!("collection member policy is not set for collection '{name}'"));
        };
        let Some(Payload::SignaturePolicy(policy)) = &policy.payload else {
            return Err(format!("collection member org policy is empty for collection '{name}'"));
        };
        let compiled = SignaturePolicy::compile(policy)
            .map_err(|error| format!("invalid member org policy for collection '{name}': {error}"))?;
        if let Some(needed) = policy.rule.as_ref().and_then(not_or) {
            return Err(format!(
                "collection-name: {name} -- error in member org policy: signature policy is not an OR concatenation, NOutOf \
                 {needed}"
            ));
        }
        for principal in compiled.principals() {
            let Some(msp) = principal.msp() else {
                return Err(format!("collection-name: {name} -- its member policy names no organisation"));
            };
            if !self.policies.members().msps().any(|known| known.id() == msp) {
                return Err(format!("collection-name: {name} -- collection member '{msp}' is not part of the channel"));
            }
        }
        Ok(())
    }
}

/// The number of signatures that a rule needs where it is not an OR; `None` if it consists of ORs.
fn not_or(rule: &Rule) -> Option<i32> {
    match &rule.r#type {
        Some(Type::NOutOf(several)) if several.n == 1 => several.rules.iter().find_map(not_or),
        Some(Type::NOutOf(several)) => Some(several.n),
        Some(Type::SignedBy(_)) | None => None,
    }
}
