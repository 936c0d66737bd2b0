//! `heddle ledger verify`.
//!
//! 1. Take the directory's lock, so that the network cannot start meanwhile.
//! 2. Check the blocks of each peer and of each orderer in the network's current orderer set (`ledger::verify`).
//! 3. Replay each peer's valid transactions up to the height at which its stored state is durable, and compare the
//!    result with that state, key by key. Later blocks are not part of the comparison: the next start applies them
//!    again.
//! 4. Compare the ledgers with each other. After a crash ledgers may differ in length. So each ledger's blocks are
//!    compared with those of the longest ledger. The validation codes of each peer are compared, by commit hash, with
//!    those of the peer that has the longest ledger.
//!
//! A replayed state takes memory for each key: its name, its version and the hash of its value.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use base::{BlockNumber, Version};
use indicatif::{ProgressBar, ProgressStyle};
use ledger::verify::{LedgerReport, VerifyConfig};
use ledger::{Block, Hash};
use node::network::orderer_set::OrdererSet;
use storage::DataDirectory;
use storage::blocks::BlockStore;
use storage::tables::{RangeQuery, Tables, TablesEngine};

use crate::cli::exit;
use crate::cli::ledger::VerifyArguments;
use crate::failure::CommandError;
use crate::{instance, output};

/// The number of rows of a state that are read at once.
const PAGE_ROWS: usize = 1_000;

pub async fn run(arguments: &VerifyArguments) -> Result<(), CommandError> {
    let dir = &arguments.directory.dir;
    if let Some(endpoints) = instance::running(dir)? {
        let message = format!(
            "process {} runs the network in {shown}; stop it with `heddle down --dir {shown}` and verify then",
            endpoints.process,
            shown = dir.display()
        );
        return Err(CommandError::new(message));
    }
    let node::config::HeddleConfig { network: config, ordering, .. } = super::config(dir)?;
    let node::config::NetworkConfig { channel, organizations, .. } = config;
    let names = match &arguments.peer {
        None => organizations,
        Some(wanted) => vec![organizations[super::organization(organizations.iter(), wanted)?].clone()],
    };
    let network = node::network::open_directory(dir).await?;
    let mut ledgers = Vec::new();
    for name in names {
        ledgers.push(check_peer(dir, &network, &name, &channel).await?);
    }
    if arguments.peer.is_none() {
        let orderer_set = OrdererSet::load(dir, ordering.count()).map_err(CommandError::new)?;
        for (name, path) in orderer_set.folders(dir) {
            if !path.is_dir() {
                output::print(&format!("{name:<8} has no blocks yet\n"))?;
                continue;
            }
            let store = super::store_in(&path, &channel).await?;
            let options = VerifyConfig { validated: false, ..VerifyConfig::default() };
            let report = check_blocks(&name, &store, options).await?;
            output::print(&line(&name, &report, None))?;
            ledgers.push(CheckedLedger { name, store, report, has_verdicts: false });
        }
    }
    compare(&ledgers)?;
    output::print("sound: the ledgers agree and hold what they should\n")
}

/// A ledger that is consistent in itself.
struct CheckedLedger {
    name: String,
    store: super::StoppedStore,
    report: LedgerReport,
    /// Whether it is a peer's: a peer has validated its blocks.
    has_verdicts: bool,
}

async fn check_peer(
    dir: &Path,
    network: &DataDirectory,
    name: &str,
    channel: &str,
) -> Result<CheckedLedger, CommandError> {
    let store = super::block_store(network, name, channel).await?;
    let report = check_blocks(name, &store, VerifyConfig::default()).await?;
    let engine = super::state_engine(dir, name).await?;
    let tables = engine.tables(channel).await.map_err(|error| damaged(name, &error))?;
    let keys = check_state(name, &store, tables.as_ref()).await?;
    output::print(&line(name, &report, Some((keys, tables.savepoint().height))))?;
    Ok(CheckedLedger { name: name.to_owned(), store, report, has_verdicts: true })
}

fn line(name: &str, report: &LedgerReport, state: Option<(u64, u64)>) -> String {
    let hash = report.block_hash.map(|hash| identity::hex::encode(hash)[..16].to_owned()).unwrap_or_default();
    let state = state.map_or(String::new(), |(keys, height)| format!(", state of {keys} keys after {height} blocks"));
    let LedgerReport { blocks, transactions, valid, .. } = report;
    format!("{name:<8} {blocks} blocks, {transactions} transactions, {valid} valid, last block {hash}…{state}\n")
}

fn damaged(name: &str, reason: impl std::fmt::Display) -> CommandError {
    CommandError::with_code(exit::DAMAGED, format!("{name}: {reason}"))
}

fn progress(name: &str, doing: &str, length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:>9} {msg} [{bar:30}] {pos}/{len} blocks, {eta} left");
    ProgressBar::new(length)
        .with_style(style.expect("the template is well formed").progress_chars("=> "))
        .with_prefix(name.to_owned())
        .with_message(doing.to_owned())
}

async fn check_blocks(name: &str, store: &BlockStore, options: VerifyConfig) -> Result<LedgerReport, CommandError> {
    let bar = progress(name, "checking blocks", store.height());
    let checked = ledger::verify::verify(store, options, |progress| bar.set_position(progress.blocks)).await;
    bar.finish_and_clear();
    checked.map_err(|error| damaged(name, error))
}

type StateKey = (Arc<str>, Arc<str>);

/// Compares a stored state with the result of the blocks below its savepoint, and returns its number of keys.
async fn check_state(name: &str, store: &BlockStore, tables: &dyn Tables) -> Result<u64, CommandError> {
    let height = tables.savepoint().height;
    if height > store.height() {
        let reason = format!("the state includes block {}, which the ledger does not hold", height - 1);
        return Err(damaged(name, reason));
    }
    let mut expected = replay(name, store, height)?;
    if height == 0 {
        return Ok(0);
    }
    let keys = expected.len() as u64;
    let through = BlockNumber(height - 1);
    for namespace in tables.namespaces().map_err(|error| damaged(name, error))? {
        let mut start = base::Bytes::new();
        loop {
            let page = tables
                .range(RangeQuery { namespace: &namespace, start: &start, end: &[], through, limit: PAGE_ROWS })
                .map_err(|error| damaged(name, error))?;
            for entry in page.entries {
                let key = String::from_utf8_lossy(&entry.key).into_owned();
                let place: StateKey = (namespace.as_str().into(), key.as_str().into());
                let found = Some((entry.version, ledger::sha256(&entry.value)));
                let wanted = expected.remove(&place);
                if wanted != found {
                    return Err(damaged(name, difference(&namespace, &key, wanted, Some(entry.version))));
                }
            }
            match page.next {
                Some(next) => start = next,
                None => break,
            }
            tokio::task::yield_now().await;
        }
    }
    match expected.into_iter().next() {
        None => Ok(keys),
        Some(((namespace, key), wanted)) => Err(damaged(name, difference(&namespace, &key, Some(wanted), None))),
    }
}

fn difference(namespace: &str, key: &str, wanted: Option<(Version, Hash)>, found: Option<Version>) -> String {
    let key = format!("the state's key {key:?} of {namespace}");
    match (wanted, found) {
        (None, _) => format!("{key} was written by no valid transaction"),
        (Some((version, _)), None) => format!("{key}, written by {version}, is missing"),
        (Some((version, _)), Some(found)) if version == found => {
            format!("{key}, written by {version}, has another value")
        }
        (Some((version, _)), Some(found)) => format!("{key} has version {found}, not {version}"),
    }
}

/// The result of the valid transactions in the blocks below `height`: version and hash of each key's value.
fn replay(name: &str, store: &BlockStore, height: u64) -> Result<BTreeMap<StateKey, (Version, Hash)>, CommandError> {
    let bar = progress(name, "replaying", height);
    let mut state = BTreeMap::new();
    // Block 0 is the channel's configuration; it is unsigned and writes nothing.
    for number in 1..height {
        let bytes = store.read(BlockNumber(number)).map_err(|error| damaged(name, error))?;
        let bytes = bytes.ok_or_else(|| damaged(name, format!("block {number} is missing")))?;
        let block = Block::parse(&bytes).map_err(|error| damaged(name, error))?;
        let updates = chain::commit::replay::stored_updates(&block).map_err(|error| damaged(name, error))?;
        for (namespace, key, update) in updates.iter() {
            let place = (Arc::clone(namespace), Arc::clone(key));
            match &update.value {
                Some(value) => drop(state.insert(place, (update.version, ledger::sha256(value)))),
                None => drop(state.remove(&place)),
            }
        }
        bar.set_position(number + 1);
    }
    bar.finish_and_clear();
    Ok(state)
}

/// Checks that every ledger is a prefix of the longest one, and that every peer's verdicts are a prefix of the longest
/// peer's. Orderers have no verdicts, so a comparison with an orderer says nothing about them.
fn compare(ledgers: &[CheckedLedger]) -> Result<(), CommandError> {
    let Some(longest) = ledgers.iter().max_by_key(|ledger| ledger.report.blocks) else { return Ok(()) };
    let peers = || ledgers.iter().filter(|ledger| ledger.has_verdicts);
    let longest_peer = peers().max_by_key(|ledger| ledger.report.blocks);
    for ledger in ledgers {
        // Each block contains its predecessor's hash, so comparing the last block compares all.
        let Some(last) = ledger.report.blocks.checked_sub(1) else { continue };
        let own = hash_of(ledger, last)?;
        if own.is_none() || own != hash_of(longest, last)? {
            let message = format!("{} and {} hold different blocks up to block {last}", ledger.name, longest.name);
            return Err(CommandError::with_code(exit::DAMAGED, message));
        }
    }
    for (peer, longest) in peers().filter_map(|peer| Some((peer, longest_peer?))) {
        // Likewise a block's commit hash covers all verdicts up to it.
        let Some(last) = peer.report.blocks.checked_sub(1) else { continue };
        if commit_hash_of(peer, last)? != commit_hash_of(longest, last)? {
            let first = first_difference(peer, longest, last)?;
            let message = format!(
                "{} and {} reached different verdicts from block {first} on; compare their configurations and logs of that \
                 time, and rebuild the wrong peer from the blocks",
                peer.name, longest.name
            );
            return Err(CommandError::with_code(exit::DAMAGED, message));
        }
    }
    Ok(())
}

fn block_of(checked: &CheckedLedger, number: u64) -> Result<Option<Block>, CommandError> {
    let bytes = checked.store.read(BlockNumber(number)).map_err(|error| damaged(&checked.name, error))?;
    bytes.map(|bytes| Block::parse(&bytes)).transpose().map_err(|error| damaged(&checked.name, error))
}

fn hash_of(checked: &CheckedLedger, number: u64) -> Result<Option<Hash>, CommandError> {
    Ok(block_of(checked, number)?.map(|block| block.hash()))
}

fn commit_hash_of(checked: &CheckedLedger, number: u64) -> Result<Option<Hash>, CommandError> {
    let Some(block) = block_of(checked, number)? else { return Ok(None) };
    block.metadata().commit_hash().map_err(|error| damaged(&checked.name, error))
}

/// The first block whose commit hashes differ, given that those of block `last` do.
fn first_difference(one: &CheckedLedger, other: &CheckedLedger, last: u64) -> Result<u64, CommandError> {
    let (mut equal_below, mut different) = (0, last);
    while equal_below < different {
        let middle = equal_below + (different - equal_below) / 2;
        match commit_hash_of(one, middle)? == commit_hash_of(other, middle)? {
            true => equal_below = middle + 1,
            false => different = middle,
        }
    }
    Ok(different)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_the_key_and_what_is_wrong_with_it() {
        let (old, new) = (Version::new(3, 1), Version::new(4, 0));
        let cases = [
            (None, Some(new), "the state's key \"k\" of bank was written by no valid transaction"),
            (Some((old, [0; 32])), None, "the state's key \"k\" of bank, written by 3:1, is missing"),
            (Some((old, [0; 32])), Some(old), "the state's key \"k\" of bank, written by 3:1, has another value"),
            (Some((new, [0; 32])), Some(old), "the state's key \"k\" of bank has version 3:1, not 4:0"),
        ];
        for (wanted, found, text) in cases {
            assert_eq!(difference("bank", "k", wanted, found), text);
        }
    }

    /// A ledger with these commit hashes; an orderer's ledger has none.
    async fn ledger(folder: &Path, name: &str, commit_hashes: &[Option<Hash>]) -> CheckedLedger {
        let store = super::super::store_in(&folder.join(name), "alpha").await.expect("a store");
        let mut previous = None;
        for (number, commit_hash) in commit_hashes.iter().enumerate() {
            let number = BlockNumber(number as u64);
            let mut block = Block::build(number, previous, &[base::Bytes::from(format!("envelope {number}"))]);
            if let Some(commit_hash) = commit_hash {
                let mut metadata = block.metadata().clone();
                metadata.set_commit_hash(commit_hash);
                block = block.with_metadata(metadata);
            }
            let new = storage::blocks::NewBlock {
                number,
                header_hash: block.hash(),
                previous_hash: previous.unwrap_or(storage::blocks::NO_PREVIOUS),
                epoch: base::Epoch(0),
                parts: &block.parts(),
                transactions: &[],
            };
            store.append(new).await.expect("it follows");
            previous = Some(block.hash());
        }
        let report = LedgerReport { blocks: commit_hashes.len() as u64, ..LedgerReport::default() };
        let has_verdicts = commit_hashes.iter().any(Option::is_some);
        CheckedLedger { name: name.to_owned(), store, report, has_verdicts }
    }

    /// Regression: from block 24 on a peer had other verdicts than all others. Each ledger was consistent in itself,
    /// and each was compared only with the orderer's, which has no verdicts: "sound: the ledgers agree".
    #[test]
    fn peers_whose_verdicts_parted_are_found_although_their_blocks_agree() {
        base::rt::production::run(async {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let hashes =
                |from: usize| (0..6u8).map(move |at| Some([at + if usize::from(at) < from { 0 } else { 100 }; 32]));
            let sound: Vec<Option<Hash>> = hashes(6).collect();
            let parted: Vec<Option<Hash>> = hashes(4).collect();
            let one = ledger(folder.path(), "Org1", &sound).await;
            let other = ledger(folder.path(), "Org2", &parted).await;
            let behind = ledger(folder.path(), "Org3", &sound[..4]).await;
            let orderer = ledger(folder.path(), "orderer", &[None; 7]).await;
            let failure = compare(&[one, other, behind, orderer]).expect_err("Org1 and Org2 parted");
            assert_eq!(failure.code(), exit::DAMAGED);
            let text = failure.message().unwrap_or_default();
            assert!(text.contains("Org1") && text.contains("Org2") && text.contains("from block 4 on"), "{text}");

            let one = ledger(folder.path(), "Org4", &sound).await;
            let behind = ledger(folder.path(), "Org5", &parted[..4]).await;
            let orderer = ledger(folder.path(), "orderer-2", &[None; 6]).await;
            assert!(compare(&[one, behind, orderer]).is_ok(), "one that is behind is no other ledger");
        });
    }
}
