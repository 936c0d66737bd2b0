//! The reads and writes of a call of `_lifecycle`: rows of definitions, and hashes of rows in implicit collections.

use std::sync::Arc;

use base::{Bytes, ErrorKind};
use identity::hex;
use ledger::lifecycle::{self, ContractDefinition, DefinitionField, LIFECYCLE, metadata_key};
use ledger::namespace;
use ledger::rwset::{PrivateSet, ReadWriteSetRecorder};
use ledger::sha256;
use private_data::PrivateValues;
use state::Snapshot;

use super::super::EndorseError;

/// The namespace of Fabric's older lifecycle, in which Fabric looks for a contract that has no definition.
const OLD_LIFECYCLE: &str = "lscc";

/// Rows of a private range that are read at once.
const RANGE_ROWS: usize = 256;

/// The state could not be read.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The state's error.
    #[error(transparent)]
    State(#[from] state::Error),
    /// The private store's error.
    #[error(transparent)]
    Private(#[from] private_data::Error),
    /// The ledger has the hash of a private value that this peer lacks.
    #[error("private data matching public hash version is not available")]
    Lacking,
}

impl StateError {
    /// The error with which the endorsement ends.
    pub fn into_endorse(self) -> EndorseError {
        let kind = match &self {
            StateError::State(error) => error.kind(),
            StateError::Private(error) => error.kind(),
            StateError::Lacking => ErrorKind::Retry,
        };
        let kind = match kind {
            // The call composed the keys itself, so a rejection by the state does not mean that the client's request is
            // wrong.
            ErrorKind::Rejected => ErrorKind::Retry,
            kind => kind,
        };
        EndorseError::State { kind, message: self.to_string() }
    }
}

/// A structure as Fabric's lifecycle writes it: a row that names its type and its fields, and one for each field.
pub struct SerializedRows {
    metadata: (String, Bytes),
    /// Name, key and value of each field.
    fields: Vec<(&'static str, String, Bytes)>,
}

impl SerializedRows {
    /// The rows of a structure in `table`.
    pub fn new(table: &str, name: &str, datatype: &str, fields: Vec<(&'static str, Bytes)>) -> SerializedRows {
        let metadata = lifecycle::metadata_row(datatype, fields.iter().map(|(field, _)| *field));
        let keyed = fields.into_iter().map(|(field, value)| (field, format!("{table}/fields/{name}/{field}"), value));
        SerializedRows { metadata: (format!("{table}/metadata/{name}"), metadata), fields: keyed.collect() }
    }

    /// Name, key and value of each field.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &str, &Bytes)> {
        self.fields.iter().map(|(name, key, value)| (*name, key.as_str(), value))
    }

    /// The key and the value of each row.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        let metadata = (self.metadata.0.as_str(), &self.metadata.1);
        std::iter::once(metadata).chain(self.fields().map(|(_, key, value)| (key, value)))
    }
}

/// The state that a call sees, and a record of its reads and writes.
pub struct LifecycleState {
    snapshot: Arc<dyn Snapshot>,
    private: Arc<dyn PrivateValues>,
    recorder: ReadWriteSetRecorder,
    namespace: Arc<str>,
}

impl LifecycleState {
    /// The state of a call that has read and written nothing yet.
    pub fn new(snapshot: Arc<dyn Snapshot>, private: Arc<dyn PrivateValues>) -> LifecycleState {
        LifecycleState { snapshot, private, recorder: ReadWriteSetRecorder::new(), namespace: LIFECYCLE.into() }
    }

    /// The height of the state that the call sees.
    pub fn height(&self) -> u64 {
        self.snapshot.height()
    }

    /// The encoded read-write set, and the private writes.
    pub fn finish(self) -> (Bytes, Vec<PrivateSet>) {
        let private = self.recorder.private_sets();
        (self.recorder.encode(), private)
    }

    async fn public(&mut self, key: &str) -> Result<Option<Bytes>, StateError> {
        let found = self.snapshot.get(LIFECYCLE, key).await?;
        self.recorder.read(&self.namespace, key, found.as_ref().map(|found| found.version));
        Ok(found.map(|found| found.value))
    }

    /// The hash of a private value.
    async fn private_hash(&mut self, collection: &str, key: &str) -> Result<Option<Bytes>, StateError> {
        let hash = hex::encode(sha256(key.as_bytes()));
        let found = self.snapshot.get(&namespace::values_of(LIFECYCLE, collection), &hash).await?;
        self.recorder.private_read(&self.namespace, collection, key, found.as_ref().map(|found| found.version));
        Ok(found.map(|found| found.value))
    }

    /// A private value; `None` if there is none.
    ///
    /// # Errors
    /// The state's; [`StateError::Lacking`] if this peer has only the hash.
    pub async fn private_value(&mut self, collection: &str, key: &str) -> Result<Option<Bytes>, StateError> {
        let Some(hash) = self.private_hash(collection, key).await? else { return Ok(None) };
        let found = self.private.value(LIFECYCLE, collection, key, self.snapshot.height()).await?;
        found.filter(|value| sha256(value)[..] == hash[..]).map(Some).ok_or(StateError::Lacking)
    }

    /// The private keys in a range that this peer has, each with its value.
    ///
    /// # Errors
    /// The state's.
    pub async fn private_range(
        &mut self,
        collection: &str,
        start: &str,
        end: &str,
    ) -> Result<Vec<(String, Bytes)>, StateError> {
        let (mut start, mut found) = (start.to_owned(), Vec::new());
        let height = self.snapshot.height();
        loop {
            let range = (start.as_str(), end);
            let page = self.private.range(LIFECYCLE, collection, range, height, RANGE_ROWS).await?;
            for (key, value) in page.entries {
                let hash = self.private_hash(collection, &key).await?;
                if hash.is_some_and(|hash| hash[..] == sha256(&value)[..]) {
                    found.push((key, value));
                }
            }
            match page.next {
                Some(next) => start = next,
                None => return Ok(found),
            }
        }
    }

    /// The sequence of a contract's definition; 0 if it has none.
    pub async fn sequence(&mut self, contract: &str) -> Result<i64, StateError> {
        let row = self.public(&DefinitionField::Sequence.key(contract)).await?;
        Ok(row.and_then(|row| lifecycle::number_of_field(&row)).unwrap_or(0))
    }

    /// The definition of a contract; `None` if it has none or its rows cannot be decoded.
    pub async fn definition(&mut self, contract: &str) -> Result<Option<ContractDefinition>, StateError> {
        let Some(metadata) = self.public(&metadata_key(contract)).await? else { return Ok(None) };
        let mut fields = [const { None }; DefinitionField::ALL.len()];
        for (value, field) in fields.iter_mut().zip(DefinitionField::ALL) {
            *value = self.public(&field.key(contract)).await?;
        }
        Ok(ContractDefinition::read(&metadata, fields.each_ref().map(Option::as_ref)).ok())
    }

    /// As [`LifecycleState::definition`]. If there is none, it also records a read of the older lifecycle, as Fabric's
    /// peers do.
    pub async fn committed(&mut self, contract: &str) -> Result<Option<ContractDefinition>, StateError> {
        let definition = self.definition(contract).await?;
        if definition.is_none() {
            self.recorder.read(&OLD_LIFECYCLE.into(), contract, None);
        }
        Ok(definition)
    }

    /// Writes a definition: the fields that change, and the metadata row if it changes.
    pub async fn write_definition(
        &mut self,
        contract: &str,
        definition: &ContractDefinition,
    ) -> Result<(), StateError> {
        let (metadata, values) = definition.rows();
        let current_metadata = self.public(&metadata_key(contract)).await?;
        for (field, value) in DefinitionField::ALL.into_iter().zip(values) {
            let key = field.key(contract);
            let current = if current_metadata.is_some() { self.public(&key).await? } else { None };
            if current.as_ref() != Some(&value) {
                self.recorder.write(&self.namespace, &key, value);
            }
        }
        if current_metadata.as_ref() != Some(&metadata) {
            self.recorder.write(&self.namespace, &metadata_key(contract), metadata);
        }
        Ok(())
    }

    /// Whether a collection has the metadata row of this structure.
    pub async fn has_metadata(&mut self, collection: &str, rows: &SerializedRows) -> Result<bool, StateError> {
        Ok(self.private_hash(collection, &rows.metadata.0).await?.is_some())
    }

    /// The fields whose hashes in a collection differ from those of these rows. If the hash of the metadata row differs
    /// or is absent, only the name of the type.
    pub async fn mismatches(&mut self, collection: &str, rows: &SerializedRows) -> Result<Vec<String>, StateError> {
        let metadata = self.private_hash(collection, &rows.metadata.0).await?;
        let mut different = Vec::new();
        for (field, key, value) in &rows.fields {
            let hash = self.private_hash(collection, key).await?;
            if hash.as_deref() != Some(&sha256(value)[..]) {
                different.push((*field).to_owned());
            }
        }
        match metadata.as_deref() == Some(&sha256(&rows.metadata.1)[..]) {
            true => Ok(different),
            false => Ok(vec![lifecycle::datatype_of(&rows.metadata.1)]),
        }
    }

    /// Writes a structure to a collection: the fields whose hashes change, and the metadata row if its hash changes.
    pub async fn write_private(&mut self, collection: &str, rows: &SerializedRows) -> Result<(), StateError> {
        let (metadata_key, metadata) = &rows.metadata;
        let current_metadata = self.private_hash(collection, metadata_key).await?;
        for (_, key, value) in &rows.fields {
            let current = if current_metadata.is_some() { self.private_hash(collection, key).await? } else { None };
            if current.as_deref() != Some(&sha256(value)[..]) {
                self.recorder.private_write(&self.namespace, collection, key, value.clone());
            }
        }
        if current_metadata.as_deref() != Some(&sha256(metadata)[..]) {
            self.recorder.private_write(&self.namespace, collection, metadata_key, metadata.clone());
        }
        Ok(())
    }
}
