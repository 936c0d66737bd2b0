//! Faulty state engines: some store something other than what was written, others answer something other than what they
//! store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use base::{BlockNumber, Version};
use prost::Message;
use proto::kvrwset::KvrwSet;
use storage::Error;
use storage::tables::{
    PruneOutcome, RangePage, RangeQuery, ReadableFrom, Row, RowBatch, Savepoint, Tables, TablesEngine,
};

use super::Mutant;
use crate::client::envelope::read_write_set_of;
use crate::network::Network;

/// An engine whose tables lie.
pub struct LyingEngine {
    mutant: Mutant,
    network: Arc<Network>,
    engine: Arc<dyn TablesEngine>,
}

impl LyingEngine {
    /// A peer's engine, which lies if a mutant is planted there.
    pub fn over(network: &Arc<Network>, organization: usize, engine: Arc<dyn TablesEngine>) -> Arc<dyn TablesEngine> {
        match network.mutant {
            Some(mutant) if organization == Mutant::PEER => {
                Arc::new(LyingEngine { mutant, network: Arc::clone(network), engine })
            }
            _ => engine,
        }
    }
}

#[async_trait]
impl TablesEngine for LyingEngine {
    async fn open(&self, name: &str, readable: ReadableFrom) -> Result<Arc<dyn Tables>, Error> {
        let tables = self.engine.open(name, readable).await?;
        let found = tables.savepoint();
        Ok(Arc::new(LyingTables {
            mutant: self.mutant,
            network: Arc::clone(&self.network),
            found,
            tables,
            remembered: Mutex::default(),
        }))
    }
}

struct LyingTables {
    mutant: Mutant,
    network: Arc<Network>,
    /// The savepoint at opening.
    found: Savepoint,
    tables: Arc<dyn Tables>,
    remembered: Mutex<RememberedRows>,
}

/// Rows by namespace and key.
type RememberedRows = BTreeMap<(String, Vec<u8>), Option<Row>>;

impl LyingTables {
    /// Adds the writes of the invalid transactions of the blocks that a batch covers.
    fn with_invalid(&self, mut batch: RowBatch) -> Result<RowBatch, Error> {
        let Some(chain) = self.network.orderer_channels().into_iter().flatten().next() else {
            return Ok(batch);
        };
        for number in self.tables.savepoint().height..batch.savepoint().height {
            let Ok(Some(block)) = chain.block(number) else { continue };
            let Ok(block) = proto::common::Block::decode(block) else { continue };
            let filter = self.network.recorder.filter(number).unwrap_or_default();
            for (place, envelope) in block.data.unwrap_or_default().data.iter().enumerate() {
                let is_valid = filter.get(place).is_none_or(|code| *code == 0);
                let sets = read_write_set_of(envelope).filter(|_| !is_valid).map(|set| set.ns_rwset);
                for namespace in sets.unwrap_or_default() {
                    let writes = KvrwSet::decode(namespace.rwset).map(|set| set.writes).unwrap_or_default();
                    for write in writes {
                        let value = (!write.is_delete && !write.value.is_empty()).then_some(write.value);
                        let version = Version::new(number, place as u32);
                        batch.put(&namespace.namespace, write.key.as_bytes(), version, value)?;
                    }
                }
            }
        }
        Ok(batch)
    }
}

#[async_trait]
impl Tables for LyingTables {
    fn write(&self, batch: RowBatch) -> Result<(), Error> {
        self.tables.write(match self.mutant {
            Mutant::InvalidApplied => self.with_invalid(batch)?,
            Mutant::SavepointEmpty if batch.savepoint().height.is_multiple_of(3) => RowBatch::new(batch.savepoint()),
            _ => batch,
        })
    }

    async fn persist(&self) -> Result<Savepoint, Error> {
        self.tables.persist().await
    }

    fn savepoint(&self) -> Savepoint {
        let savepoint = self.tables.savepoint();
        if self.mutant == Mutant::ReplaySkips && savepoint == self.found && savepoint.height > 1 {
            return Savepoint { height: savepoint.height + 1, ..savepoint };
        }
        savepoint
    }

    fn durable_savepoint(&self) -> Savepoint {
        self.tables.durable_savepoint()
    }

    fn get(&self, namespace: &str, key: &[u8], through: BlockNumber) -> Result<Option<Row>, Error> {
        let row = self.tables.get(namespace, key, through)?;
        if self.mutant != Mutant::ConflictMissed || key.last().is_none_or(|byte| byte % 2 == 1) {
            return Ok(row);
        }
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(remembered.entry((namespace.to_owned(), key.to_vec())).or_insert(row).clone())
    }

    fn range(&self, query: RangeQuery<'_>) -> Result<RangePage, Error> {
        self.tables.range(query)
    }

    fn namespaces(&self) -> Result<Vec<String>, Error> {
        self.tables.namespaces()
    }

    fn prune(&self, oldest: BlockNumber, rows_max: usize) -> Result<PruneOutcome, Error> {
        self.tables.prune(oldest, rows_max)
    }
}
