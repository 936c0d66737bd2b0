//! What a running contract reads and writes in private collections.
//!
//! The hashes of private keys and values are rows of the state, which every peer has. The values are in the tables of the peers
//! whose organisations are members of the collection ([`private_data`]).
//!
//! 1. Every use of a collection records reads of the rows of the contract's definition, as Fabric does: a transaction that ran
//!    under one definition conflicts with the next.
//! 2. A read looks up the hash in the snapshot, then the newest value below the snapshot's height in the peer's tables. If the
//!    hash of that value is another one, the peer lacks the value, and the read fails: it never returns an old value.
//! 3. A query over a range returns the values whose hashes are those of the snapshot, and passes over the others.

use base::{Bytes, ErrorKind, rt};
use contract::key::KeyRange;
use contract::{KeyValue, Metadata, QueryId, StatePage, StubError};
use identity::hex;
use ledger::hash::sha256;
use ledger::lifecycle::{DefinitionField, LIFECYCLE, implicit_collection_msp, metadata_key};
use ledger::namespace;
use prost::Message;
use proto::kvrwset::KvMetadataWrite;
use state::Versioned;

use super::{ContractCall, check_key, check_length, state_error};
use private_data::CollectionAccess;

impl ContractCall<'_> {
    /// The membership of a collection; records the reads of step 1.
    async fn collection(&mut self, collection: &str) -> Result<CollectionAccess, StubError> {
        if self.is_init {
            let reason = "a contract cannot use private data while it is initialised";
            return Err(StubError::Collection(reason.to_owned()));
        }
        let simulation = &mut *self.simulation;
        let policies = simulation.context.policies.clone();
        if policies.on_ledger().contains(&self.namespace) && !simulation.collections_read.contains(&self.namespace) {
            let fields = DefinitionField::ALL.into_iter().map(|field| field.key(&self.namespace));
            let keys: Vec<String> = fields.chain([metadata_key(&self.namespace)]).collect();
            let rows: Vec<(&str, &str)> = keys.iter().map(|key| (LIFECYCLE, key.as_str())).collect();
            let versions = simulation.context.snapshot.versions(&rows).await.map_err(state_error)?;
            for (key, version) in keys.iter().zip(versions) {
                simulation.recorder.read(&simulation.lifecycle, key, version);
            }
            simulation.collections_read.insert(self.namespace.clone());
        }
        let rules = policies.contract_rules(&self.namespace);
        let access = rules.and_then(|rules| rules.collection_access(collection, policies.config()));
        access.ok_or_else(|| {
            let (channel, contract) = (policies.channel(), &self.namespace);
            StubError::Collection(match implicit_collection_msp(collection) {
                Some(_) => {
                    format!("collection [{collection}] not defined in the collection config for chaincode [{contract}]")
                }
                None => format!("collection {channel}/{contract}/{collection} could not be found"),
            })
        })
    }

    /// Fails unless the client may read a collection.
    async fn check_private_read(&mut self, collection: &str) -> Result<(), StubError> {
        let access = self.collection(collection).await?;
        self.check_access("read", !access.member_only_read, &access, collection)
    }

    /// Fails unless the client may write a key of a collection; counts the write.
    pub(super) async fn check_private_write(&mut self, collection: &str, key: &str) -> Result<(), StubError> {
        self.simulation.count_read().await;
        check_key(key)?;
        let access = self.collection(collection).await?;
        self.check_access("write", !access.member_only_write, &access, collection)?;
        self.simulation.note_write()
    }

    fn check_access(
        &self,
        what: &str,
        is_open: bool,
        access: &CollectionAccess,
        collection: &str,
    ) -> Result<(), StubError> {
        if is_open || access.is_member(&self.simulation.context.client) {
            return Ok(());
        }
        Err(StubError::Collection(format!(
            "tx creator does not have {what} access permission on privatedata in chaincodeName:{} collectionName: {collection}",
            self.namespace
        )))
    }

    /// The hash of a private value in the snapshot.
    async fn private_hash(&self, collection: &str, key: &str) -> Result<Option<Versioned>, StubError> {
        let hash = hex::encode(sha256(key.as_bytes()));
        let rows = namespace::values_of(&self.namespace, collection);
        self.simulation.context.snapshot.get(&rows, &hash).await.map_err(state_error)
    }

    /// Step 2.
    pub(super) async fn read_private(&mut self, collection: &str, key: &str) -> Result<Option<Bytes>, StubError> {
        self.simulation.count_read().await;
        check_key(key)?;
        self.simulation.check_limits()?;
        self.check_private_read(collection).await?;
        let found = self.private_hash(collection, key).await?;
        let version = found.as_ref().map(|found| found.version);
        self.simulation.private_reads.insert((self.namespace.clone(), collection.to_owned()));
        let value = match &found {
            None => None,
            Some(hash) => {
                let context = &self.simulation.context;
                let height = context.snapshot.height();
                let value = context.private.value(&self.namespace, collection, key, height);
                let value = value.await.map_err(private_error)?;
                let value = value.filter(|value| {
                    hash.value[..] == sha256(value)[..] || rt::fault_point("chain.endorse.mutant.stale_private")
                });
                Some(value.ok_or_else(|| {
                    let version = hash.version;
                    StubError::Collection(format!(
                        "private data matching public hash version is not available. Public hash version = \
                         {{BlockNum: {}, TxNum: {}}}",
                        version.block, version.tx
                    ))
                })?)
            }
        };
        self.simulation.recorder.private_read(&self.namespace, collection, key, version);
        Ok(value)
    }

    /// The hash of a private value, which every client may know.
    pub(super) async fn read_private_hash(&mut self, collection: &str, key: &str) -> Result<Option<Bytes>, StubError> {
        self.simulation.count_read().await;
        check_key(key)?;
        self.simulation.check_limits()?;
        self.collection(collection).await?;
        let found = self.private_hash(collection, key).await?;
        let version = found.as_ref().map(|found| found.version);
        self.simulation.recorder.private_read(&self.namespace, collection, key, version);
        Ok(found.map(|found| found.value))
    }

    /// The metadata of a private key.
    pub(super) async fn read_private_metadata(&mut self, collection: &str, key: &str) -> Result<Metadata, StubError> {
        self.simulation.count_read().await;
        check_key(key)?;
        self.simulation.check_limits()?;
        self.check_private_read(collection).await?;
        let found = self.private_hash(collection, key).await?;
        let version = found.as_ref().map(|found| found.version);
        self.simulation.recorder.private_read(&self.namespace, collection, key, version);
        self.metadata_of(collection, &hex::encode(sha256(key.as_bytes()))).await
    }

    /// The metadata of a key; in a collection, that of the key with this hash.
    pub(super) async fn metadata_of(&self, collection: &str, key: &str) -> Result<Metadata, StubError> {
        let rows = namespace::metadata_of(&self.namespace, collection);
        let found = self.simulation.context.snapshot.get(&rows, key).await.map_err(state_error)?;
        let Some(found) = found else { return Ok(Metadata::new()) };
        let metadata = KvMetadataWrite::decode(found.value);
        let metadata = metadata.map_err(|error| StubError::State {
            kind: ErrorKind::Corrupt,
            message: format!("the metadata of a key of {}: {error}", self.namespace),
        })?;
        Ok(metadata.entries.into_iter().map(|entry| (entry.name, entry.value)).collect())
    }

    /// Step 3.
    pub(super) async fn begin_private_range(
        &mut self,
        collection: &str,
        range: KeyRange,
    ) -> Result<QueryId, StubError> {
        self.simulation.count_read().await;
        check_length(range.start())?;
        check_length(range.end())?;
        self.check_private_read(collection).await?;
        self.simulation.note_private_query()?;
        self.simulation.private_reads.insert((self.namespace.clone(), collection.to_owned()));
        self.begin_range(Some(collection.to_owned()), range)
    }

    /// The next page of a query over private keys, which is open.
    pub(super) async fn next_private_page(&mut self, id: QueryId, limit: usize) -> Result<StatePage, StubError> {
        let unknown = || StubError::UnknownQuery(id.0);
        let query = self.simulation.queries.get(&id).ok_or_else(unknown)?;
        let collection = query.collection.clone().ok_or_else(unknown)?;
        let (mut next, end, is_empty) = (query.next.clone(), query.range.end().to_owned(), query.range.is_empty());
        let context = &self.simulation.context;
        let height = context.snapshot.height();
        let mut page = StatePage { entries: Vec::new(), has_more: !is_empty };
        let mut bytes = 0;
        while page.has_more && page.entries.is_empty() {
            let found = context.private.range(&self.namespace, &collection, (&next, &end), height, limit);
            let found = found.await.map_err(private_error)?;
            for (key, value) in found.entries {
                let hash = self.private_hash(&collection, &key).await?;
                if hash.is_some_and(|hash| hash.value[..] == sha256(&value)[..]) {
                    bytes += key.len() + value.len();
                    page.entries.push(KeyValue { key, value });
                }
            }
            page.has_more = found.next.is_some();
            next = found.next.unwrap_or_default();
        }
        self.simulation.scanned += page.entries.len();
        self.simulation.scanned_bytes += bytes;
        let query = self.simulation.queries.get_mut(&id).ok_or_else(unknown)?;
        (query.next, query.over) = (next, !page.has_more);
        Ok(page)
    }
}

fn private_error(error: private_data::Error) -> StubError {
    let kind = match error.kind() {
        // The keys were checked, so the contract's request is not the reason.
        ErrorKind::Rejected => ErrorKind::Retry,
        kind => kind,
    };
    StubError::State { kind, message: error.to_string() }
}
