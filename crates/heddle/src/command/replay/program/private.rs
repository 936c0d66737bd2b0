//! The operations on private data and on the policies of keys.
//!
//! | operation | effect |
//! |---|---|
//! | `pput C K V`, `pget C K`, `pgetm C K…`, `pdel C K`, `ppurge C K`, `prmw C K` | as on public keys, in collection C |
//! | `phash C K`, `phashto C K T` | reads the hash of a private value; writes it to the public key T |
//! | `prange C S E` | lists a range of a collection |
//! | `setpol K MSP,…`, `setpolraw K V`, `delpol K`, `getpol K` | the policy of a public key |
//! | `psetpol C K MSP,…`, `pgetpol C K` | the policy of a private key |
//!
//! The value `transient` of `pput` is the entry `v` of the proposal's transient data. A policy asks for one peer of each
//! organisation that is named.

use std::collections::BTreeSet;

use contract::{Bytes, ContractError, ContractStub, KEY_POLICY, Metadata, RangeCursor, StubError};
use prost::Message as _;
use proto::common::msp_principal::Classification;
use proto::common::msp_role::MspRoleType;
use proto::common::signature_policy::{NOutOf, Type};
use proto::common::{MspPrincipal, MspRole, SignaturePolicy, SignaturePolicyEnvelope};

use super::values::{Parameters, failed, line, next_number};

/// The value for which `pput` takes the entry [`TRANSIENT_ENTRY`] of the transient data.
const TRANSIENT_VALUE: &[u8] = b"transient";
const TRANSIENT_ENTRY: &str = "v";

/// The payload of an operation; `None` if its name is not known here.
pub async fn operation(
    tx: &mut dyn ContractStub,
    name: &str,
    parameters: &Parameters<'_>,
) -> Result<Option<Bytes>, ContractError> {
    let payload = match name {
        "pput" => put(tx, parameters).await?,
        "pget" => get(tx, parameters.text(0)?, parameters.text(1)?).await?.unwrap_or_default(),
        "pgetm" => get_several(tx, parameters).await?,
        "pdel" => {
            let deleted = tx.delete_private(parameters.text(0)?, parameters.text(1)?).await;
            done(tx, "DEL_STATE", deleted)?
        }
        "ppurge" => {
            let purged = tx.purge_private(parameters.text(0)?, parameters.text(1)?).await;
            done(tx, "PURGE_PRIVATE_DATA", purged)?
        }
        "prmw" => {
            let (collection, key) = (parameters.text(0)?, parameters.text(1)?);
            let next = next_number(get(tx, collection, key).await?)?;
            write(tx, collection, key, next).await?
        }
        "phash" => hash(tx, parameters).await?,
        "phashto" => {
            let hash = hash(tx, parameters).await?;
            tx.put_state(parameters.text(2)?, hash)?;
            Bytes::new()
        }
        "prange" => list(tx, parameters).await?,
        "setpol" => {
            let policy = all_of(parameters.text(1)?);
            set_policy(tx, parameters.text(0)?, policy)?
        }
        "setpolraw" => set_policy(tx, parameters.text(0)?, parameters.value(1)?)?,
        "delpol" => set_policy(tx, parameters.text(0)?, Bytes::new())?,
        "getpol" => {
            let found = tx.get_metadata(parameters.text(0)?).await;
            policy_of(found.map_err(|error| failed(tx, "GET_STATE_METADATA", error))?)
        }
        "psetpol" => {
            let metadata = Metadata::from([(KEY_POLICY.to_owned(), all_of(parameters.text(2)?))]);
            let set = tx.set_private_metadata(parameters.text(0)?, parameters.text(1)?, metadata).await;
            done(tx, "PUT_STATE_METADATA", set)?
        }
        "pgetpol" => {
            let found = tx.get_private_metadata(parameters.text(0)?, parameters.text(1)?).await;
            policy_of(found.map_err(|error| failed(tx, "GET_STATE_METADATA", error))?)
        }
        _ => return Ok(None),
    };
    Ok(Some(payload))
}

fn done(tx: &dyn ContractStub, request: &str, outcome: Result<(), StubError>) -> Result<Bytes, ContractError> {
    outcome.map(|()| Bytes::new()).map_err(|error| failed(tx, request, error))
}

async fn get(tx: &mut dyn ContractStub, collection: &str, key: &str) -> Result<Option<Bytes>, ContractError> {
    let value = tx.get_private(collection, key).await;
    value.map_err(|error| failed(tx, "GET_STATE", error))
}

async fn put(tx: &mut dyn ContractStub, parameters: &Parameters<'_>) -> Result<Bytes, ContractError> {
    let mut value = parameters.value(2)?;
    if value == TRANSIENT_VALUE {
        value = tx.transient().get(TRANSIENT_ENTRY).cloned().unwrap_or_default();
    }
    write(tx, parameters.text(0)?, parameters.text(1)?, value).await
}

async fn write(tx: &mut dyn ContractStub, collection: &str, key: &str, value: Bytes) -> Result<Bytes, ContractError> {
    let written = tx.put_private(collection, key, value).await;
    done(tx, "PUT_STATE", written)
}

async fn get_several(tx: &mut dyn ContractStub, parameters: &Parameters<'_>) -> Result<Bytes, ContractError> {
    let mut lines = String::new();
    for key in parameters.texts(1)? {
        let value = get(tx, parameters.text(0)?, &key).await?.unwrap_or_default();
        lines.push_str(&line(&key, &value));
    }
    Ok(lines.into())
}

async fn hash(tx: &mut dyn ContractStub, parameters: &Parameters<'_>) -> Result<Bytes, ContractError> {
    let hash = tx.get_private_hash(parameters.text(0)?, parameters.text(1)?).await;
    Ok(hash.map_err(|error| failed(tx, "GET_PRIVATE_DATA_HASH", error))?.unwrap_or_default())
}

async fn list(tx: &mut dyn ContractStub, parameters: &Parameters<'_>) -> Result<Bytes, ContractError> {
    let query = tx.open_private_range(parameters.text(0)?, parameters.range(1)?).await;
    let mut cursor = RangeCursor::over(query.map_err(|error| failed(tx, "GET_STATE_BY_RANGE", error))?);
    let mut lines = String::new();
    while let Some(entry) = cursor.next(tx).await? {
        lines.push_str(&line(&entry.key, &entry.value));
    }
    Ok(lines.into())
}

fn set_policy(tx: &mut dyn ContractStub, key: &str, policy: Bytes) -> Result<Bytes, ContractError> {
    let set = tx.set_metadata(key, Metadata::from([(KEY_POLICY.to_owned(), policy)]));
    done(tx, "PUT_STATE_METADATA", set)
}

fn policy_of(mut metadata: Metadata) -> Bytes {
    metadata.remove(KEY_POLICY).unwrap_or_default()
}

/// The policy that asks for a peer of each of these organisations, in the order of their names.
fn all_of(organizations: &str) -> Bytes {
    let organizations: BTreeSet<&str> = organizations.split(',').collect();
    let identities = organizations.iter().map(|msp| MspPrincipal {
        principal_classification: Classification::Role as i32,
        principal: MspRole { msp_identifier: (*msp).to_owned(), role: MspRoleType::Peer as i32 }.encode_to_vec().into(),
    });
    let count = organizations.len() as i32;
    let rules = (0..count).map(|index| SignaturePolicy { r#type: Some(Type::SignedBy(index)) }).collect();
    let rule = SignaturePolicy { r#type: Some(Type::NOutOf(NOutOf { n: count, rules })) };
    let policy = SignaturePolicyEnvelope { version: 0, rule: Some(rule), identities: identities.collect() };
    policy.encode_to_vec().into()
}
