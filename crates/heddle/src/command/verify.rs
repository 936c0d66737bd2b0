//! `heddle ledger verify`.
//!
//! 1. Take the directory's lock, so that nothing changes meanwhile.
//! 2. Check the blocks of each peer and of each orderer that the network has now (`ledger::verify`).
//! 3. Replay each peer's valid transactions and compare what they leave behind with the peer's stored state, key by key,
//!    at the height up to which the state is durable; later blocks are applied again at the next start.
//! 4. Compare the ledgers with each other: same blocks, same verdicts. After a crash one may hold more than another.
//!
//! A replayed state takes memory for each key: its name, its version and the hash of its value.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use base::{BlockNumber, Version};
use indicatif::{ProgressBar, ProgressStyle};
use ledger::verify::{Report, VerifyOptions};
use ledger::{Block, Hash};
use node::network::roster::Roster;
use storage::DataDirectory;
use storage::blocks::BlockStore;
use storage::tables::{Tables, TablesEngine};

use crate::cli::exit;
use crate::cli::ledger::Verify;
use crate::failure::Failure;
use crate::{instance, output};

/// Rows of a state that are read at once.
const PAGE_ROWS: usize = 1_000;

pub async fn run(arguments: &Verify) -> Result<(), Failure> {
    let dir = &arguments.directory.dir;
    if let Some(endpoints) = instance::running(dir)? {
        let message = format!(
            "process {} runs the network in {shown}; stop it with `heddle down --dir {shown}` and verify then",
            endpoints.process,
            shown = dir.display()
        );
        return Err(Failure::new(message));
    }
    let node::config::Config { network: config, ordering, .. } = super::config(dir)?;
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
        let roster = Roster::load(dir, ordering.count()).map_err(Failure::new)?;
        for (name, path) in roster.places(dir) {
            if !path.is_dir() {
                output::print(&format!("{name:<8} has no blocks yet\n"))?;
                continue;
            }
            let store = super::store_in(&path, &channel).await?;
            let options = VerifyOptions { validated: false, ..VerifyOptions::default() };
            let report = check_blocks(&name, &store, options).await?;
            output::print(&line(&name, &report, None))?;
            ledgers.push(Checked { name, store, report });
        }
    }
    compare(&ledgers)?;
    output::print("sound: the ledgers agree and hold what they should\n")
}

/// A ledger that is sound in itself.
struct Checked {
    name: String,
    store: super::HeldStore,
    report: Report,
}

async fn check_peer(dir: &Path, network: &DataDirectory, name: &str, channel: &str) -> Result<Checked, Failure> {
    let store = super::block_store(network, name, channel).await?;
    let report = check_blocks(name, &store, VerifyOptions::default()).await?;
    let engine = super::state_engine(dir, name).await?;
    let tables = engine.tables(channel).await.map_err(|error| damaged(name, &error))?;
    let keys = check_state(name, &store, tables.as_ref()).await?;
    output::print(&line(name, &report, Some((keys, tables.savepoint().height))))?;
    Ok(Checked { name: name.to_owned(), store, report })
}

fn line(name: &str, report: &Report, state: Option<(u64, u64)>) -> String {
    let hash = report.block_hash.map(|hash| identity::hex::encode(hash)[..16].to_owned()).unwrap_or_default();
    let state = state.map_or(String::new(), |(keys, height)| format!(", state of {keys} keys after {height} blocks"));
    let Report { blocks, transactions, valid, .. } = report;
    format!("{name:<8} {blocks} blocks, {transactions} transactions, {valid} valid, last block {hash}…{state}\n")
}

fn damaged(name: &str, reason: impl std::fmt::Display) -> Failure {
    Failure::with_code(exit::DAMAGED, format!("{name}: {reason}"))
}

fn progress(name: &str, doing: &str, length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:>9} {msg} [{bar:30}] {pos}/{len} blocks, {eta} left");
    ProgressBar::new(length)
        .with_style(style.expect("the template is well formed").progress_chars("=> "))
        .with_prefix(name.to_owned())
        .with_message(doing.to_owned())
}

async fn check_blocks(name: &str, store: &BlockStore, options: VerifyOptions) -> Result<Report, Failure> {
    let bar = progress(name, "checking blocks", store.height());
    let checked = ledger::verify::verify(store, options, |progress| bar.set_position(progress.blocks)).await;
    bar.finish_and_clear();
    checked.map_err(|error| damaged(name, error))
}

type Key = (Arc<str>, Arc<str>);

/// Compares a stored state with what the blocks below its savepoint leave behind, and returns its number of keys.
async fn check_state(name: &str, store: &BlockStore, tables: &dyn Tables) -> Result<u64, Failure> {
    let height = tables.savepoint().height;
    if height > store.height() {
        let reason = format!("the state is after block {}, which the ledger does not hold", height - 1);
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
            let page =
                tables.range(&namespace, &start, &[], through, PAGE_ROWS).map_err(|error| damaged(name, error))?;
            for entry in page.entries {
                let key = String::from_utf8_lossy(&entry.key).into_owned();
                let place: Key = (namespace.as_str().into(), key.as_str().into());
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
        (Some((version, _)), Some(found)) => format!("{key} is that of {found}, not of {version}"),
    }
}

/// What the valid transactions of the blocks below `height` leave behind: version and hash of each key's value.
fn replay(name: &str, store: &BlockStore, height: u64) -> Result<BTreeMap<Key, (Version, Hash)>, Failure> {
    let bar = progress(name, "replaying", height);
    let mut state = BTreeMap::new();
    // Block 0 is the channel's configuration, which nobody signed and which writes nothing.
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

/// Every ledger is a beginning of the longest.
fn compare(ledgers: &[Checked]) -> Result<(), Failure> {
    let Some(longest) = ledgers.iter().max_by_key(|ledger| ledger.report.blocks) else { return Ok(()) };
    for ledger in ledgers {
        let Some(last) = ledger.report.blocks.checked_sub(1) else { continue };
        let of = |checked: &Checked| -> Result<Option<Block>, Failure> {
            let bytes = checked.store.read(BlockNumber(last)).map_err(|error| damaged(&checked.name, error))?;
            bytes.map(|bytes| Block::parse(&bytes)).transpose().map_err(|error| damaged(&checked.name, error))
        };
        let (own, other) = (of(ledger)?, of(longest)?);
        // Each block names its predecessor's hash, so that the last one stands for all; so does its commit hash.
        let equal = |one: &Block, other: &Block| {
            let verdicts = |block: &Block| block.metadata().commit_hash().ok().flatten();
            let comparable = verdicts(one).is_some() && verdicts(other).is_some();
            one.hash() == other.hash() && (!comparable || verdicts(one) == verdicts(other))
        };
        if !own.as_ref().zip(other.as_ref()).is_some_and(|(own, other)| equal(own, other)) {
            let message = format!("{} and {} hold different blocks up to block {last}", ledger.name, longest.name);
            return Err(Failure::with_code(exit::DAMAGED, message));
        }
    }
    Ok(())
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
            (Some((new, [0; 32])), Some(old), "the state's key \"k\" of bank is that of 3:1, not of 4:0"),
        ];
        for (wanted, found, text) in cases {
            assert_eq!(difference("bank", "k", wanted, found), text);
        }
    }
}
