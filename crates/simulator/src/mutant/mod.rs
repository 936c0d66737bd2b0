//! Planted mistakes that the checkers must catch: a simulator that finds nothing says nothing until these are found.
//!
//! None of them is in the code under test. They are disks that lie and a state engine that lies, put under the first peer
//! or under the orderer: to the layers above they look like a block published before its fsync, a savepoint that covers
//! what it does not hold, a read that an invalidation did not reach.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use base::{BlockNumber, Version};
use prost::Message;
use proto::kvrwset::KvrwSet;
use storage::Error;
use storage::tables::{Pruned, RangePage, Row, RowBatch, Savepoint, Tables, TablesEngine};

use crate::client::envelope::read_write_set_of;
use crate::network::Network;
use crate::network::members::CHANNEL;
use crate::scenario::{self, ORDERER};

/// A planted mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutant {
    /// The first peer publishes a block although its fsync has done nothing.
    PeerPublishesUnsynced,
    /// The orderer delivers a block although its fsync has done nothing.
    OrdererDeliversUnsynced,
    /// The first peer checks conflicts against versions that it remembers and that have changed.
    ConflictMissed,
    /// The first peer applies what invalid transactions write.
    InvalidApplied,
    /// The first peer's savepoint says one block more than the state holds, so that a replay skips it.
    ReplaySkips,
    /// The first peer's savepoint moves without the rows that it covers, so that a replay begins too late.
    SavepointEmpty,
}

impl Mutant {
    /// All there are.
    pub const ALL: [Mutant; 6] = [
        Mutant::PeerPublishesUnsynced,
        Mutant::OrdererDeliversUnsynced,
        Mutant::ConflictMissed,
        Mutant::InvalidApplied,
        Mutant::ReplaySkips,
        Mutant::SavepointEmpty,
    ];
    /// The peer that has it, by the place of its organisation.
    pub const PEER: usize = 0;

    /// What the command line calls it.
    pub fn name(self) -> &'static str {
        match self {
            Mutant::PeerPublishesUnsynced => "peer-publishes-unsynced",
            Mutant::OrdererDeliversUnsynced => "orderer-delivers-unsynced",
            Mutant::ConflictMissed => "conflict-missed",
            Mutant::InvalidApplied => "invalid-applied",
            Mutant::ReplaySkips => "replay-skips",
            Mutant::SavepointEmpty => "savepoint-empty",
        }
    }

    /// The mutant of a name.
    pub fn named(name: &str) -> Option<Mutant> {
        Mutant::ALL.into_iter().find(|mutant| mutant.name() == name)
    }

    /// Plants it where that is done from outside, when the network runs and faults are about to begin.
    pub fn plant(self, network: &Network) {
        match self {
            Mutant::PeerPublishesUnsynced => network.node(&scenario::peer(Mutant::PEER)).disk().set_lying(true),
            Mutant::OrdererDeliversUnsynced => network.node(ORDERER).disk().set_lying(true),
            _ => {}
        }
    }

    /// A peer's state engine, which lies if this mutant sits there.
    pub fn engine(network: &Arc<Network>, place: usize, engine: Arc<dyn TablesEngine>) -> Arc<dyn TablesEngine> {
        match network.mutant {
            Some(mutant) if place == Mutant::PEER => Arc::new(LyingEngine { mutant, network: network.clone(), engine }),
            _ => engine,
        }
    }
}

struct LyingEngine {
    mutant: Mutant,
    network: Arc<Network>,
    engine: Arc<dyn TablesEngine>,
}

#[async_trait]
impl TablesEngine for LyingEngine {
    async fn tables(&self, name: &str) -> Result<Arc<dyn Tables>, Error> {
        let tables = self.engine.tables(name).await?;
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
    remembered: Mutex<Remembered>,
}

/// Rows by namespace and key.
type Remembered = BTreeMap<(String, Vec<u8>), Option<Row>>;

impl LyingTables {
    /// Adds what invalid transactions of the blocks that a batch covers would have written.
    fn with_invalid(&self, mut batch: RowBatch) -> Result<RowBatch, Error> {
        let Some(chain) = self.network.orderer.of(ORDERER).and_then(|orderer| orderer.chain(CHANNEL)) else {
            return Ok(batch);
        };
        for number in self.tables.savepoint().height..batch.savepoint().height {
            let Ok(Some(block)) = chain.block(number) else { continue };
            let Ok(block) = proto::common::Block::decode(block) else { continue };
            let filter = self.network.witness.filter(number).unwrap_or_default();
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

    fn range(
        &self,
        namespace: &str,
        start: &[u8],
        end: &[u8],
        through: BlockNumber,
        limit: usize,
    ) -> Result<RangePage, Error> {
        self.tables.range(namespace, start, end, through, limit)
    }

    fn namespaces(&self) -> Result<Vec<String>, Error> {
        self.tables.namespaces()
    }

    fn prune(&self, oldest: BlockNumber, rows_max: usize) -> Result<Pruned, Error> {
        self.tables.prune(oldest, rows_max)
    }
}
