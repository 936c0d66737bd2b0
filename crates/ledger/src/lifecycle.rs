//! The definitions of contracts, as Fabric's lifecycle keeps them in the state (namespace [`LIFECYCLE`]).
//!
//! A definition consists of five rows. One names its type and its fields. Each field has a row of its own, so that a
//! transaction that changes one field writes only that row:
//!
//! | key | value |
//! |---|---|
//! | `namespaces/metadata/NAME` | `StateMetadata`: type `ChaincodeDefinition` and the fields below |
//! | `namespaces/fields/NAME/Sequence` | `StateData` with a number: 1 for the first definition, then 2, … |
//! | `namespaces/fields/NAME/EndorsementInfo` | `StateData` with an encoded `ChaincodeEndorsementInfo` |
//! | `namespaces/fields/NAME/ValidationInfo` | `StateData` with an encoded `ChaincodeValidationInfo` |
//! | `namespaces/fields/NAME/Collections` | `StateData` with an encoded `CollectionConfigPackage` |
//!
//! A field without a row counts as empty. The system contract `_lifecycle` writes these rows. Validation checks that a
//! transaction that writes them satisfies the policy [`LIFECYCLE_ENDORSEMENT`], but not what it writes. So the rows may
//! hold any bytes; if they cannot be decoded, the contract has no valid definition.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod check;

use base::Bytes;
use prost::Message;
use proto::lifecycle::state_data::Type;
use proto::lifecycle::{ChaincodeEndorsementInfo, ChaincodeValidationInfo, StateData, StateMetadata};
use proto::protos::{ApplicationPolicy, CollectionConfigPackage, StaticCollectionConfig, collection_config};

/// The namespace of the definitions, and the name of the system contract that writes them.
pub const LIFECYCLE: &str = "_lifecycle";
/// The policy that a transaction needs to write to [`LIFECYCLE`].
pub const LIFECYCLE_ENDORSEMENT: &str = "/Channel/Application/LifecycleEndorsement";
/// The prefix of the name of an organisation's implicit collection; its MSP's name follows.
pub const IMPLICIT_COLLECTION_PREFIX: &str = "_implicit_org_";
/// The validation plugin that every peer has.
pub const VALIDATION_PLUGIN: &str = "vscc";
/// The endorsement plugin that every peer has.
pub const ENDORSEMENT_PLUGIN: &str = "escc";

/// The longest value of a row of a definition, in bytes. Decoded, it may take about twenty times as much memory.
pub const DEFINITION_ROW_BYTES_MAX: usize = 256 << 10;
/// The largest number of collections of a contract.
pub const COLLECTIONS_MAX: usize = 1024;

const METADATA_PREFIX: &str = "namespaces/metadata/";
const FIELDS_PREFIX: &str = "namespaces/fields/";
const DATATYPE: &str = "ChaincodeDefinition";

/// A field of a definition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DefinitionField {
    /// The number of the definition: 1 for the first, one more for each later one.
    Sequence,
    /// Version, initialisation, endorsement plugin.
    EndorsementInfo,
    /// Validation plugin and policy.
    ValidationInfo,
    /// The collections.
    Collections,
}

impl DefinitionField {
    /// All fields, in the order in which Fabric names them.
    pub const ALL: [DefinitionField; 4] = [
        DefinitionField::Sequence,
        DefinitionField::EndorsementInfo,
        DefinitionField::ValidationInfo,
        DefinitionField::Collections,
    ];

    /// Fabric's name of the field.
    pub fn name(self) -> &'static str {
        match self {
            DefinitionField::Sequence => "Sequence",
            DefinitionField::EndorsementInfo => "EndorsementInfo",
            DefinitionField::ValidationInfo => "ValidationInfo",
            DefinitionField::Collections => "Collections",
        }
    }

    /// The key of the field's row.
    pub fn key(self, contract: &str) -> String {
        format!("{FIELDS_PREFIX}{contract}/{}", self.name())
    }
}

/// The key of the row whose presence says that a contract is defined.
pub fn metadata_key(contract: &str) -> String {
    format!("{METADATA_PREFIX}{contract}")
}

/// The range of all keys that [`metadata_key`] returns: its inclusive start and its exclusive end.
pub fn metadata_range() -> (&'static str, &'static str) {
    (METADATA_PREFIX, "namespaces/metadata0")
}

/// The contract whose definition has a row with this key. Members who may write definitions may write any key. A key
/// whose name is not that of a contract defines nothing: the namespaces of such a contract could be those of a
/// collection, of metadata, or of this node's bookkeeping.
pub fn defined_contract(key: &str) -> Option<&str> {
    let field = || key.strip_prefix(FIELDS_PREFIX)?.rsplit_once('/').map(|(contract, _)| contract);
    key.strip_prefix(METADATA_PREFIX).or_else(field).filter(|contract| is_contract_name(contract))
}

/// Whether a contract may have this name: letters and digits, with single dashes and underscores between them.
pub fn is_contract_name(name: &str) -> bool {
    name.split(['-', '_']).all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// A contract's definition.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ContractDefinition {
    /// The number of the definition: 1 for the first, one more for each later one.
    pub sequence: i64,
    /// Version, initialisation, endorsement plugin.
    pub endorsement: ChaincodeEndorsementInfo,
    /// Validation plugin and policy.
    pub validation: ChaincodeValidationInfo,
    /// The collections, as they were defined.
    pub collections: CollectionConfigPackage,
}

impl ContractDefinition {
    /// Decodes a definition from the values of its rows; `fields` are in the order of [`DefinitionField::ALL`].
    ///
    /// # Errors
    /// [`UnreadableDefinition`] says why the rows are not a definition.
    pub fn read(metadata: &Bytes, fields: [Option<&Bytes>; 4]) -> Result<ContractDefinition, UnreadableDefinition> {
        let is_too_long = |row: &&Bytes| row.len() > DEFINITION_ROW_BYTES_MAX;
        if fields.iter().flatten().chain([&metadata]).any(is_too_long) {
            return Err(UnreadableDefinition(format!("a row has more than {DEFINITION_ROW_BYTES_MAX} bytes")));
        }
        let StateMetadata { datatype, .. } = decode("the metadata", metadata)?;
        if datatype != DATATYPE {
            return Err(UnreadableDefinition(format!("the metadata name the type {datatype:?}")));
        }
        let [sequence, endorsement, validation, collections] = fields;
        let sequence = match field(DefinitionField::Sequence, sequence)? {
            Some(Type::Int64(number)) => number,
            None => 0,
            Some(_) => return Err(UnreadableDefinition("the sequence is not a number".to_owned())),
        };
        let collections: CollectionConfigPackage = message(DefinitionField::Collections, collections)?;
        if collections.config.len() > COLLECTIONS_MAX {
            return Err(UnreadableDefinition(format!("there are more than {COLLECTIONS_MAX} collections")));
        }
        Ok(ContractDefinition {
            sequence,
            endorsement: message(DefinitionField::EndorsementInfo, endorsement)?,
            validation: message(DefinitionField::ValidationInfo, validation)?,
            collections,
        })
    }

    /// Decodes the parameters of an approval from the values of its fields, in the order of [`DefinitionField::ALL`] without the
    /// sequence.
    ///
    /// # Errors
    /// [`UnreadableDefinition`] says why the fields are not parameters.
    pub fn of_parameters(
        sequence: i64,
        [endorsement, validation, collections]: [Option<&Bytes>; 3],
    ) -> Result<ContractDefinition, UnreadableDefinition> {
        Ok(ContractDefinition {
            sequence,
            endorsement: message(DefinitionField::EndorsementInfo, endorsement)?,
            validation: message(DefinitionField::ValidationInfo, validation)?,
            collections: message(DefinitionField::Collections, collections)?,
        })
    }

    /// The values of the rows: the metadata, and the fields in the order of [`DefinitionField::ALL`].
    pub fn rows(&self) -> (Bytes, [Bytes; 4]) {
        let metadata = metadata_row(DATATYPE, DefinitionField::ALL.into_iter().map(DefinitionField::name));
        let bytes = |message: Vec<u8>| encode(Type::Bytes(message.into()));
        let fields = [
            encode(Type::Int64(self.sequence)),
            bytes(self.endorsement.encode_to_vec()),
            bytes(self.validation.encode_to_vec()),
            bytes(self.collections.encode_to_vec()),
        ];
        (metadata, fields)
    }

    /// The first definition of a contract, with Fabric's plugins and without required initialisation or collections.
    pub fn first(version: impl Into<String>, policy: &ApplicationPolicy) -> ContractDefinition {
        ContractDefinition {
            sequence: 1,
            endorsement: ChaincodeEndorsementInfo {
                version: version.into(),
                init_required: false,
                endorsement_plugin: ENDORSEMENT_PLUGIN.to_owned(),
            },
            validation: ChaincodeValidationInfo {
                validation_plugin: VALIDATION_PLUGIN.to_owned(),
                validation_parameter: policy.encode_to_vec().into(),
            },
            collections: CollectionConfigPackage::default(),
        }
    }

    /// The collections that have a static configuration, the only kind that this node knows.
    pub fn static_collections(&self) -> impl Iterator<Item = &StaticCollectionConfig> {
        let payloads = self.collections.config.iter().filter_map(|config| config.payload.as_ref());
        payloads.map(|collection_config::Payload::StaticCollectionConfig(collection)| collection)
    }
}

/// The value of a row that names the type and the fields of a structure.
pub fn metadata_row<'a>(datatype: &str, fields: impl Iterator<Item = &'a str>) -> Bytes {
    let fields = fields.map(str::to_owned).collect();
    StateMetadata { datatype: datatype.to_owned(), fields }.encode_to_vec().into()
}

/// The type that a row made by [`metadata_row`] names; empty if the row cannot be decoded.
pub fn datatype_of(metadata: &Bytes) -> String {
    StateMetadata::decode(metadata.clone()).unwrap_or_default().datatype
}

/// The value of a field's row that holds text.
pub fn text_field(text: &str) -> Bytes {
    encode(Type::String(text.to_owned()))
}

/// The number in a field's row; `None` if the row does not hold one.
pub fn number_of_field(row: &Bytes) -> Option<i64> {
    match StateData::decode(row.clone()).ok()?.r#type {
        Some(Type::Int64(number)) => Some(number),
        _ => None,
    }
}

/// The text in a field's row; `None` if the row does not hold any.
pub fn text_of_field(row: &Bytes) -> Option<String> {
    match StateData::decode(row.clone()).ok()?.r#type {
        Some(Type::String(text)) => Some(text),
        _ => None,
    }
}

/// Why rows are not a definition.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a definition: {0}")]
pub struct UnreadableDefinition(String);

fn encode(data: Type) -> Bytes {
    StateData { r#type: Some(data) }.encode_to_vec().into()
}

fn decode<M: Message + Default>(what: &str, bytes: &Bytes) -> Result<M, UnreadableDefinition> {
    M::decode(bytes.clone()).map_err(|error| UnreadableDefinition(format!("{what} cannot be decoded: {error}")))
}

fn field(field: DefinitionField, row: Option<&Bytes>) -> Result<Option<Type>, UnreadableDefinition> {
    let Some(row) = row else { return Ok(None) };
    Ok(decode::<StateData>(field.name(), row)?.r#type)
}

fn message<M: Message + Default>(of: DefinitionField, row: Option<&Bytes>) -> Result<M, UnreadableDefinition> {
    match field(of, row)? {
        Some(Type::Bytes(bytes)) => decode(of.name(), &bytes),
        None => Ok(M::default()),
        Some(_) => Err(UnreadableDefinition(format!("{} is not a message", of.name()))),
    }
}

/// The MSP whose implicit collection has this name, if the name is one of an implicit collection.
pub fn implicit_collection_msp(collection: &str) -> Option<&str> {
    collection.strip_prefix(IMPLICIT_COLLECTION_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition() -> ContractDefinition {
        ContractDefinition {
            sequence: 3,
            endorsement: ChaincodeEndorsementInfo {
                version: "2.0".into(),
                init_required: true,
                endorsement_plugin: ENDORSEMENT_PLUGIN.into(),
            },
            validation: ChaincodeValidationInfo {
                validation_plugin: VALIDATION_PLUGIN.into(),
                validation_parameter: Bytes::from_static(b"policy"),
            },
            collections: CollectionConfigPackage::default(),
        }
    }

    /// The bytes are those of the recorded channel's final state.
    #[test]
    fn definitions_are_written_as_fabric_writes_them_and_read_again() {
        let (metadata, fields) = definition().rows();
        assert_eq!(fields[0][..], *b"\x08\x03");
        assert_eq!(fields[1][..], *b"\x12\x0d\x0a\x032.0\x10\x01\x1a\x04escc");
        assert_eq!(fields[3][..], *b"\x12\x00");
        assert_eq!(ContractDefinition::read(&metadata, fields.each_ref().map(Some)), Ok(definition()));
        let without = ContractDefinition::read(&metadata, [None; 4]);
        assert_eq!(without, Ok(ContractDefinition::default()));
    }

    #[test]
    fn what_is_no_definition_is_an_error() {
        let (metadata, fields) = definition().rows();
        let other = Bytes::from(StateMetadata { datatype: "Other".into(), fields: Vec::new() }.encode_to_vec());
        let number = encode(Type::Int64(1));
        let text = encode(Type::String("1".into()));
        let too_many = encode(Type::Bytes(b"\x0a\x00".repeat(COLLECTIONS_MAX + 1).into()));
        let too_long = encode(Type::Bytes(vec![0; DEFINITION_ROW_BYTES_MAX].into()));
        let cases: [(&Bytes, [Option<&Bytes>; 4]); 6] = [
            (&other, fields.each_ref().map(Some)),
            (&text, [None; 4]),
            (&metadata, [Some(&text), None, None, None]),
            (&metadata, [None, Some(&number), None, None]),
            (&metadata, [None, None, None, Some(&too_many)]),
            (&metadata, [None, None, None, Some(&too_long)]),
        ];
        for (metadata, fields) in cases {
            assert!(ContractDefinition::read(metadata, fields).is_err(), "{metadata:?} {fields:?}");
        }
    }

    #[test]
    fn keys_name_their_contract() {
        for field in DefinitionField::ALL {
            assert_eq!(defined_contract(&field.key("my-contract")), Some("my-contract"));
        }
        let key = metadata_key("basic");
        assert_eq!(defined_contract(&key), Some("basic"));
        let (start, end) = metadata_range();
        assert!(start <= key.as_str() && key.as_str() < end);
        assert_eq!(defined_contract("chaincode-sources/metadata/basic#1"), None);
        for name in ["", "$$expiry", "x$$hy", "a/b", "_lifecycle", "a--b"] {
            assert_eq!(defined_contract(&metadata_key(name)), None, "{name:?}");
        }
        assert_eq!(implicit_collection_msp("_implicit_org_Org1MSP"), Some("Org1MSP"));
        assert_eq!(implicit_collection_msp("collection"), None);
    }
}
