//! Tests of the storage node: the messages' bytes, one client and one node, a node that was rolled back, and many primaries
//! under faults.

mod basics;
mod faults;
mod messages;
mod rollback;
mod views;

use std::sync::Arc;
use std::time::Duration;

use base::rt::net::Parties;
use base::rt::simulation::Prng;
use base::{BlockNumber, Bytes, Epoch, TxId};

use super::*;

use crate::blocks::{BlockStoreConfig, Blocks, ChainTip, NO_PREVIOUS, NewBlock};
use crate::state_store::tests::Lines;
use crate::tables::ModelEngine;
use crate::{DataDirectory, Error, GroupSync};

const ADDRESS: &str = "storage";
const CHANNEL: &str = "alpha";
const TOKEN: &[u8] = b"a token";
/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(300);

/// Starts a node over the contents of its disk.
async fn start() -> Result<StorageNode, Error> {
    let data = DataDirectory::open("/data").await?;
    let tables = ModelEngine::open(data.subdirectory("tables").await?).await?;
    let node = StorageNode::open(StorageNodeConfig {
        name: "node1".to_owned(),
        data,
        sync: GroupSync::new(),
        tables,
        materializer: Arc::new(Lines),
        token: Bytes::from_static(TOKEN),
        blocks: BlockStoreConfig { segment_bytes: 4_000, ..BlockStoreConfig::default() },
    })
    .await?;
    node.serve(ADDRESS, &Parties::anyone()).await?;
    Ok(node)
}

fn options(epoch: u64) -> RemoteStoreConfig {
    RemoteStoreConfig {
        address: ADDRESS.to_owned(),
        token: Bytes::from_static(TOKEN),
        channel: CHANNEL.to_owned(),
        epoch: Epoch(epoch),
    }
}

/// A block with random contents, in the notation that [`Lines`] reads.
#[derive(Clone, Debug)]
struct TestBlock {
    number: u64,
    header_hash: [u8; 32],
    previous_hash: [u8; 32],
    text: String,
    transactions: Vec<(TxId, u8)>,
}

impl TestBlock {
    fn after(tip: ChainTip, rng: &mut Prng) -> TestBlock {
        let mut header_hash = [0; 32];
        rng.fill(&mut header_hash);
        let number = tip.height;
        let (mut text, mut transactions) = (String::new(), Vec::new());
        for index in 0..1 + rng.index(4) {
            let key = format!("{} k{}", rng.pick(&["cc", "dd"]), rng.index(8));
            match rng.one_in(5) {
                true => text += &format!("{key}\n"),
                false => text += &format!("{key} v{number}.{index}\n"),
            }
            transactions.push((TxId::from(format!("{number}-{index}-{:x}", rng.number())), index as u8));
        }
        TestBlock { number, header_hash, previous_hash: tip.header_hash, text, transactions }
    }

    async fn append(&self, blocks: &dyn Blocks) -> Result<(), Error> {
        self.append_under(blocks, 0).await
    }

    /// As `append`, for a store that keeps the block's epoch.
    async fn append_under(&self, blocks: &dyn Blocks, epoch: u64) -> Result<(), Error> {
        let (head, tail) = self.text.as_bytes().split_at(self.text.len() / 2);
        let new = NewBlock {
            number: BlockNumber(self.number),
            header_hash: self.header_hash,
            previous_hash: self.previous_hash,
            epoch: Epoch(epoch),
            parts: &[Bytes::copy_from_slice(head), Bytes::copy_from_slice(tail)],
            transactions: &self.transactions,
        };
        blocks.append(new).await
    }
}

/// The end of an empty chain.
fn nothing() -> ChainTip {
    ChainTip { height: 0, header_hash: NO_PREVIOUS, epoch: Epoch(0) }
}
