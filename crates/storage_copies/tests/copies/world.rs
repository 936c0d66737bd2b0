//! Storage nodes, primaries and a follower.

use std::sync::Arc;
use std::time::Duration;

use base::rt::net::{GatherList, Parties};
use base::rt::simulation::{Prng, Sim};
use base::rt::{self, CancellationToken};
use base::{BlockNumber, Bytes, Epoch, ErrorKind, TxId, Version};
use storage::blocks::{BlockStoreConfig, Blocks, ChainTip, NewBlock, StoredBlocks};
use storage::node::{StorageNode, StorageNodeConfig};
use storage::state_store::Materializer;
use storage::tables::{ModelEngine, RowBatch};
use storage::{DataDirectory, Error, GroupSync, PrivateRow, PrivateRows, StateStore};
use storage_copies::{ChannelCopies, CopiedReads, CopyNode, CopySet, begin_epoch};

use crate::evidence::{Attempt, SharedEvidence, last_below, rows_of};

pub const CHANNEL: &str = "alpha";
const PRIVATE_KEYS: usize = 5;

/// Reads blocks of a test: lines `namespace key value`, or `namespace key` for a deletion; each line is a transaction.
pub struct Lines;

impl Materializer for Lines {
    fn materialize(&self, number: BlockNumber, block: &GatherList, batch: &mut RowBatch) -> Result<(), Error> {
        let block = block.clone().concat();
        let text = std::str::from_utf8(&block);
        let text = text.map_err(|error| Error::Unreadable { block: number, reason: error.to_string() })?;
        for (tx, line) in text.lines().enumerate() {
            let mut words = line.split(' ').map(str::to_owned);
            let (Some(namespace), Some(key)) = (words.next(), words.next()) else { continue };
            let version = Version::new(number.get(), tx as u32);
            batch.put(&namespace, key.as_bytes(), version, words.next().map(Bytes::from))?;
        }
        Ok(())
    }
}

/// The first nodes of the world, by the names of their hosts.
pub fn set(nodes: usize, wanted: usize) -> CopySet {
    let node = |number| CopyNode { name: format!("copy-{number}"), address: format!("s{number}") };
    CopySet::new((1..=nodes).map(node).collect(), Bytes::new(), wanted)
}

async fn serve(address: String) -> Result<StorageNode, Error> {
    let data = DataDirectory::open("/data").await?;
    let tables = ModelEngine::open(data.subdirectory("tables").await?).await?;
    let node = StorageNode::open(StorageNodeConfig {
        name: address.clone(),
        data,
        sync: GroupSync::new(),
        tables,
        materializer: Arc::new(Lines),
        token: Bytes::new(),
        blocks: BlockStoreConfig { segment_bytes: 4_000, ..BlockStoreConfig::default() },
    })
    .await?;
    node.serve(&address, &Parties::anyone()).await?;
    Ok(node)
}

/// Runs storage nodes for ever.
pub fn start_nodes(sim: &Sim, nodes: usize) {
    for number in 1..=nodes {
        let name = format!("s{number}");
        let address = name.clone();
        sim.node(&name).start(move || {
            let address = address.clone();
            async move {
                loop {
                    match serve(address.clone()).await {
                        Ok(node) => {
                            let _ = node.failed().await;
                        }
                        // A full disk, which will be freed.
                        Err(error) if error.kind() != ErrorKind::Corrupt => {}
                        Err(error) => panic!("the node finds its data corrupt: {error}"),
                    }
                    rt::sleep(Duration::from_millis(50)).await;
                }
            }
        });
    }
}

/// A block with random contents after this one.
pub struct TestBlock {
    pub number: u64,
    pub header_hash: [u8; 32],
    pub text: String,
    previous_hash: [u8; 32],
    transactions: Vec<(TxId, u8)>,
}

impl TestBlock {
    pub fn after(tip: ChainTip, rng: &mut Prng) -> TestBlock {
        let mut header_hash = [0; 32];
        rng.fill(&mut header_hash);
        let number = tip.height;
        let (mut text, mut transactions) = (String::new(), Vec::new());
        for index in 0..1 + rng.index(3) {
            let key = format!("{} k{}", rng.pick(&["cc", "dd"]), rng.index(6));
            match rng.one_in(5) {
                true => text += &format!("{key}\n"),
                false => text += &format!("{key} v{number}.{index}.{:x}\n", rng.below(1 << 20)),
            }
            transactions.push((tx_id(number, &header_hash, index), 0));
        }
        TestBlock { number, header_hash, text, previous_hash: tip.header_hash, transactions }
    }

    pub async fn append(&self, blocks: &dyn Blocks) -> Result<(), Error> {
        let block = NewBlock {
            number: BlockNumber(self.number),
            header_hash: self.header_hash,
            previous_hash: self.previous_hash,
            epoch: Epoch(0),
            parts: &[Bytes::copy_from_slice(self.text.as_bytes())],
            transactions: &self.transactions,
        };
        blocks.append(block).await
    }
}

pub fn tx_id(number: u64, hash: &[u8; 32], index: usize) -> TxId {
    TxId::from(format!("{number}-{index}-{:02x}{:02x}{:02x}", hash[0], hash[1], hash[2]))
}

/// Becomes the primary, and works until it is told to end. A primary that is fenced ends.
pub async fn run_primary(evidence: SharedEvidence, set: CopySet, mut rng: Prng, end: CancellationToken) {
    while !end.is_cancelled() {
        let opened = async {
            let epoch = begin_epoch(&set, CHANNEL, None).await?;
            ChannelCopies::open(set.clone(), CHANNEL, epoch).await.map(|copies| (epoch, copies))
        };
        let (epoch, copies) = match opened.await {
            Ok(opened) => opened,
            Err(error) => {
                if !matches!(
                    error.kind(),
                    ErrorKind::Retry | ErrorKind::Fenced | ErrorKind::Ambiguous | ErrorKind::Closed
                ) {
                    evidence.accuse(format!("opening: {error}"));
                    return;
                }
                rt::sleep(rng.duration(&(Duration::from_millis(20)..Duration::from_millis(120)))).await;
                continue;
            }
        };
        evidence.lock().opened.push(epoch.get());
        match work(&evidence, &copies, epoch, &mut rng, &end).await {
            Err(error) if error.kind() == ErrorKind::Fenced => return,
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Rejected) => {
                evidence.accuse(format!("epoch {epoch}: {error}"));
                return;
            }
            _ => {}
        }
    }
}

async fn work(
    evidence: &SharedEvidence,
    copies: &ChannelCopies,
    epoch: Epoch,
    rng: &mut Prng,
    end: &CancellationToken,
) -> Result<(), Error> {
    let (blocks, rows, private) = (copies.blocks(), copies.rows(), copies.private());
    while !end.is_cancelled() {
        let newest = evidence.lock().newest();
        let mut appended = Vec::new();
        for _ in 0..1 + rng.index(3) {
            let block = TestBlock::after(blocks.tip(), rng);
            if rng.one_in(2) {
                write_private(evidence, private[0].as_ref(), block.number, rng).await?;
            }
            block.append(blocks.as_ref()).await?;
            appended.push((block.number, block.header_hash, block.text));
        }
        blocks.sync().await?;
        evidence.lock().report(epoch.get(), newest, &appended);
        {
            let savepoint = rows.savepoint().height;
            let mut evidence = evidence.lock();
            evidence.savepoint = evidence.savepoint.max(savepoint);
        }
        if rng.one_in(6) {
            let done = match rng.index(3) {
                0 => rows.materialize(blocks.durable_height()).await.map(drop),
                1 => rows.prune(BlockNumber(0)).await,
                _ => private[0].prune(last_below(blocks.durable_height())).await.map(drop),
            };
            match done {
                Err(error) if error.kind() != ErrorKind::Retry => return Err(error),
                _ => {}
            }
        }
        rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(25)))).await;
    }
    Ok(())
}

/// Writes a row of the block to come, sometimes twice with the same version. Whether the key is deleted does not depend on
/// who makes the block.
async fn write_private(
    evidence: &SharedEvidence,
    private: &dyn PrivateRows,
    version: u64,
    rng: &mut Prng,
) -> Result<(), Error> {
    let number = rng.index(PRIVATE_KEYS);
    let key = format!("p{number}");
    let is_deletion = (version * 7 + number as u64).is_multiple_of(4);
    for _ in 0..1 + usize::from(rng.one_in(3)) {
        let value = (!is_deletion).then(|| format!("{key}@{version}.{:x}", rng.below(1 << 30)));
        let at = {
            let mut evidence = evidence.lock();
            let attempts = evidence.committed.entry(key.clone()).or_default();
            attempts.push(Attempt { version, value: value.clone(), is_acknowledged: false });
            attempts.len() - 1
        };
        let row = PrivateRow {
            namespace: "n".to_owned(),
            key: Bytes::copy_from_slice(key.as_bytes()),
            version: Version::new(version, 0),
            value: value.map(Bytes::from),
        };
        private.write(vec![row]).await?;
        if let Some(attempts) = evidence.lock().committed.get_mut(&key) {
            attempts[at].is_acknowledged = true;
        }
    }
    Ok(())
}

/// Reads what was reported durable, and writes transient rows.
pub async fn run_follower(evidence: SharedEvidence, set: CopySet, mut rng: Prng, end: CancellationToken) {
    let reads = CopiedReads::new(set, CHANNEL);
    let (rows, [_, transient]) = (reads.rows(), reads.private());
    let mut written = 0;
    while !end.is_cancelled() {
        rt::sleep(rng.duration(&(Duration::from_millis(1)..Duration::from_millis(40)))).await;
        let (known, savepoint) = {
            let evidence = evidence.lock();
            let known: Vec<(u64, [u8; 32], String)> =
                evidence.durable.iter().map(|(number, (hash, text))| (*number, *hash, text.clone())).collect();
            (known, evidence.savepoint)
        };
        let answered = match rng.index(4) {
            0 if !known.is_empty() => {
                let (number, _, text) = rng.pick(&known).clone();
                reads.read(BlockNumber(number)).await.map(|found| {
                    if found.as_deref() != Some(text.as_bytes()) {
                        evidence.accuse(format!("a follower does not find block {number}"));
                    }
                })
            }
            1 if !known.is_empty() => {
                let (number, hash, _) = &known[known.len() - 1];
                reads.find_transaction(&tx_id(*number, hash, 0)).await.map(|found| {
                    if found.is_none_or(|place| place.block.get() != *number) {
                        evidence.accuse(format!("a follower does not find a transaction of block {number}"));
                    }
                })
            }
            // A block that was never reported durable may be in the chain; then its text is not known here.
            2 if savepoint > 0
                && known.iter().filter(|(number, ..)| *number < savepoint).count() as u64 == savepoint =>
            {
                let texts: Vec<String> = known.iter().map(|(.., text)| text.clone()).take(savepoint as usize).collect();
                let expected = rows_of(&texts);
                let (Some(((namespace, key), (version, value))), through) =
                    (expected.iter().nth(rng.index(expected.len().max(1))), last_below(savepoint))
                else {
                    continue;
                };
                match rows.get(namespace, key.as_bytes(), through).await {
                    Ok(found) => {
                        let found = found.map(|row| (row.version, row.value.map(|value| value.to_vec())));
                        // A deletion may have been pruned.
                        let is_pruned = found.is_none() && value.is_none();
                        if !is_pruned
                            && found != Some((*version, value.as_ref().map(|value| value.clone().into_bytes())))
                        {
                            evidence.accuse(format!("a follower reads {found:?} for {key}, written by {version:?}"));
                        }
                        Ok(())
                    }
                    // Pruned since, or not asked at the newest height.
                    Err(error) if error.kind() == ErrorKind::Rejected => Ok(()),
                    Err(error) => Err(error),
                }
            }
            _ => {
                written += 1;
                let (key, value) = (format!("t{written}"), format!("w{written}"));
                let row = PrivateRow {
                    namespace: "t".to_owned(),
                    key: Bytes::copy_from_slice(key.as_bytes()),
                    version: Version::new(1, 0),
                    value: Some(Bytes::copy_from_slice(value.as_bytes())),
                };
                transient.write(vec![row]).await.map(|()| {
                    evidence.lock().transient.insert(key, value);
                })
            }
        };
        match answered {
            Ok(()) => evidence.lock().followed += 1,
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Fenced) => {
                evidence.accuse(format!("a follower: {error}"));
                return;
            }
            Err(_) => {}
        }
    }
}
