//! The contract that uses private data: keys of one collection. The first two organisations are always members of it, and
//! definitions make the third one a member, or no longer one.
//!
//! | function | reads | writes |
//! |---|---|---|
//! | `put(key, value)` | | the key |
//! | `replace(key, value)` | the key | the key; returns the old value |
//! | `get(key)` | the key, and returns its value | |
//! | `delete(key)` | | deletes the key |
//! | `purge(key)` | | deletes the key and every earlier value of it |

use base::Bytes;
use contract::{Contract, ContractError, ContractResponse, ContractStub, async_trait};
use identity::policy::parse;
use ledger::lifecycle::ContractDefinition;
use proto::protos::collection_config::Payload;
use proto::protos::collection_policy_config::Payload as Members;
use proto::protos::{CollectionConfig, CollectionConfigPackage, CollectionPolicyConfig, StaticCollectionConfig};
use rules::definitions::by_channel_policy;

use crate::scenario::PrivateDataConfig;

/// The contract's name.
pub const VAULT: &str = "vault";
/// Its collection.
pub const PAIR: &str = "pair";
/// The number of organisations, from the first one on, that are always members of the collection.
pub const MEMBERS: usize = 2;

/// The contract.
pub struct Vault;

#[async_trait]
impl Contract for Vault {
    fn name(&self) -> &str {
        VAULT
    }

    async fn invoke(
        &self,
        tx: &mut dyn ContractStub,
        function: &str,
        args: &[Bytes],
    ) -> Result<ContractResponse, ContractError> {
        let args: Vec<&str> = args.iter().filter_map(|arg| std::str::from_utf8(arg).ok()).collect();
        let value = |value: &str| Bytes::copy_from_slice(value.as_bytes());
        let mut found = None;
        match (function, &args[..]) {
            ("put", [key, new]) => tx.put_private(PAIR, key, value(new)).await?,
            ("replace", [key, new]) => {
                found = tx.get_private(PAIR, key).await?;
                tx.put_private(PAIR, key, value(new)).await?;
            }
            ("get", [key]) => found = tx.get_private(PAIR, key).await?,
            ("delete", [key]) => tx.delete_private(PAIR, key).await?,
            ("purge", [key]) => tx.purge_private(PAIR, key).await?,
            _ => return Err(ContractError::application(format!("no such function: {function}"))),
        }
        Ok(ContractResponse::success(found.unwrap_or_default()))
    }
}

/// The first definition of the contract, which follows the channel's endorsement policy.
pub fn definition(config: &PrivateDataConfig) -> ContractDefinition {
    ContractDefinition { collections: collections(config, MEMBERS), ..by_channel_policy("1.0") }
}

/// The contract's collections, whose members are this number of organisations.
pub fn collections(config: &PrivateDataConfig, members: usize) -> CollectionConfigPackage {
    let members: Vec<String> = (1..=members).map(|number| format!("'Org{number}MSP.member'")).collect();
    let members = parse(&format!("OR({})", members.join(", "))).expect("the policy is well formed");
    let count = |count: usize| i32::try_from(count).expect("there are few peers");
    let collection = StaticCollectionConfig {
        name: PAIR.to_owned(),
        member_orgs_policy: Some(CollectionPolicyConfig { payload: Some(Members::SignaturePolicy(members)) }),
        required_peer_count: count(config.required_peers),
        maximum_peer_count: count(config.max_peers),
        block_to_live: config.block_to_live,
        ..StaticCollectionConfig::default()
    };
    CollectionConfigPackage {
        config: vec![CollectionConfig { payload: Some(Payload::StaticCollectionConfig(collection)) }],
    }
}
