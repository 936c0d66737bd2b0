//! Files of private collections, in the format of Fabric's `peer` command: a JSON array of objects, one for each collection.

use std::path::Path;

use identity::policy::{channel_reference, of_signature, parse};
use proto::protos::collection_config::Payload;
use proto::protos::collection_policy_config::Payload as MemberPolicy;
use proto::protos::{
    ApplicationPolicy, CollectionConfig, CollectionConfigPackage, CollectionPolicyConfig, StaticCollectionConfig,
};
use serde::Deserialize;

use crate::failure::CommandError;

/// The largest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The number of other peers to which an endorser sends the values unless the file names one: Fabric's.
const MAX_PEERS_DEFAULT: i32 = 1;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Collection {
    name: String,
    /// The members.
    policy: String,
    #[serde(default)]
    required_peer_count: i32,
    max_peer_count: Option<i32>,
    #[serde(default)]
    block_to_live: u64,
    #[serde(default)]
    member_only_read: bool,
    #[serde(default)]
    member_only_write: bool,
    endorsement_policy: Option<CollectionEndorsement>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CollectionEndorsement {
    #[serde(default)]
    signature_policy: String,
    #[serde(default)]
    channel_config_policy: String,
}

/// The collections that a file names.
pub(super) fn read(path: &Path) -> Result<CollectionConfigPackage, CommandError> {
    let wrong = |problem: String| CommandError::about(path, problem);
    let bytes = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(wrong(format!("has {bytes} bytes; a file of collections has at most {FILE_BYTES_MAX}")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    collections(&text).map_err(wrong)
}

fn collections(text: &str) -> Result<CollectionConfigPackage, String> {
    let read: Vec<Collection> =
        serde_json::from_str(text).map_err(|error| format!("is no array of collections: {error}"))?;
    let config = read.into_iter().map(|collection| {
        let name = collection.name.clone();
        let config = static_config(collection).map_err(|problem| format!("collection {name:?}: {problem}"))?;
        Ok(CollectionConfig { payload: Some(Payload::StaticCollectionConfig(config)) })
    });
    Ok(CollectionConfigPackage { config: config.collect::<Result<_, String>>()? })
}

fn static_config(read: Collection) -> Result<StaticCollectionConfig, String> {
    let members = parse(&read.policy).map_err(|error| error.to_string())?;
    let endorsement = match read.endorsement_policy {
        None => None,
        Some(own) => match (own.signature_policy.as_str(), own.channel_config_policy.as_str()) {
            ("", "") => None,
            (text, "") | ("", text) => Some(policy(text)?),
            _ => return Err("its endorsementPolicy has both signaturePolicy and channelConfigPolicy".to_owned()),
        },
    };
    Ok(StaticCollectionConfig {
        name: read.name,
        member_orgs_policy: Some(CollectionPolicyConfig { payload: Some(MemberPolicy::SignaturePolicy(members)) }),
        required_peer_count: read.required_peer_count,
        maximum_peer_count: read.max_peer_count.unwrap_or(MAX_PEERS_DEFAULT),
        block_to_live: read.block_to_live,
        member_only_read: read.member_only_read,
        member_only_write: read.member_only_write,
        endorsement_policy: endorsement,
    })
}

/// An endorsement policy: a signature policy such as `OR('Org1MSP.peer')`, or the path of a policy of the channel.
pub(super) fn policy(text: &str) -> Result<ApplicationPolicy, String> {
    match text.starts_with('/') {
        true => Ok(channel_reference(text)),
        false => parse(text).map(of_signature).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collection_has_fabrics_defaults() {
        let read = collections(r#"[{"name": "prices", "policy": "OR('Org1MSP.member')"}]"#).expect("a collection");
        let Some(Payload::StaticCollectionConfig(found)) = &read.config[0].payload else { panic!("{read:?}") };
        assert_eq!((found.required_peer_count, found.maximum_peer_count, found.block_to_live), (0, 1, 0));
        assert!(!found.member_only_read && !found.member_only_write && found.endorsement_policy.is_none());
    }

    #[test]
    fn every_option_is_read() {
        let text = r#"[{
            "name": "prices", "policy": "OR('Org1MSP.member', 'Org2MSP.member')", "requiredPeerCount": 1,
            "maxPeerCount": 2, "blockToLive": 3, "memberOnlyRead": true, "memberOnlyWrite": true,
            "endorsementPolicy": {"signaturePolicy": "OR('Org1MSP.peer')"}
        }]"#;
        let read = collections(text).expect("a collection");
        let Some(Payload::StaticCollectionConfig(found)) = &read.config[0].payload else { panic!("{read:?}") };
        let expected = StaticCollectionConfig {
            name: "prices".to_owned(),
            member_orgs_policy: Some(CollectionPolicyConfig {
                payload: Some(MemberPolicy::SignaturePolicy(
                    parse("OR('Org1MSP.member', 'Org2MSP.member')").expect("a policy"),
                )),
            }),
            required_peer_count: 1,
            maximum_peer_count: 2,
            block_to_live: 3,
            member_only_read: true,
            member_only_write: true,
            endorsement_policy: Some(policy("OR('Org1MSP.peer')").expect("a policy")),
        };
        assert_eq!(*found, expected);
    }

    #[test]
    fn an_error_names_the_collection_or_the_field() {
        for (text, part) in [
            (r#"[{"name": "a", "policy": "OR("}]"#, "collection \"a\""),
            (r#"[{"name": "a", "policy": "OR('A.member')", "memberOnlyReed": true}]"#, "memberOnlyReed"),
            (r#"[{"name": "a"}]"#, "policy"),
            (r#"{"name": "a"}"#, "array"),
            (
                r#"[{"name": "a", "policy": "OR('A.member')",
                    "endorsementPolicy": {"signaturePolicy": "OR('A.peer')", "channelConfigPolicy": "/Channel"}}]"#,
                "both",
            ),
        ] {
            let error = collections(text).expect_err(text);
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_policy_is_a_signature_policy_or_a_path() {
        assert_eq!(
            policy("/Channel/Application/Endorsement"),
            Ok(channel_reference("/Channel/Application/Endorsement"))
        );
        assert!(policy("OR('Org1MSP.peer'").is_err());
    }
}
