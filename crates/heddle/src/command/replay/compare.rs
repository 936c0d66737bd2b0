//! Compares the peer's validation codes, commit hashes and state with the recorded ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use chain::Channel;
use identity::hex;
use ledger::Block;
use ledger::namespace::{self, NamespaceContent};
use serde_json::{Value, json};

use super::recording::{ExpectedTransaction, Recording, StatePlace, StateRow};
use crate::failure::CommandError;

/// The most differences that are printed.
const DIFFERENCES_SHOWN_MAX: usize = 20;
/// The number of entries of the state that are read at once.
const PAGE_ENTRIES: usize = 1_000;

/// The result of a replay.
#[derive(Default)]
pub struct Comparison {
    blocks: u64,
    codes: Tally,
    commit_hashes: Tally,
    state: Tally,
    /// `None` if no answers were recorded.
    answers: Option<Tally>,
    /// A line for each difference: first those of the blocks, in their order, then those of the state, in the order of
    /// keys, then those of the answers, in their order.
    pub differences: Vec<String>,
    /// The answers that differ, each with what differs.
    different_answers: Vec<Value>,
}

impl Comparison {
    /// The first differences, then the shares of equal results, a line each.
    pub fn report(&self) -> String {
        let mut lines: Vec<String> = self.differences.iter().take(DIFFERENCES_SHOWN_MAX).cloned().collect();
        if let Some(more) = self.differences.len().checked_sub(DIFFERENCES_SHOWN_MAX).filter(|more| *more > 0) {
            lines.push(format!("and {more} more differences"));
        }
        let kinds = [
            ("codes", &self.codes, "transactions"),
            ("commit hashes", &self.commit_hashes, "blocks"),
            ("state", &self.state, "entries"),
        ];
        let answers = self.answers.iter().map(|tally| ("responses", tally, "proposals"));
        for (kind, tally, unit) in kinds.into_iter().chain(answers) {
            let Tally { equal, total } = tally;
            lines.push(format!("{kind:<13} {:.6} equal, {equal} of {total} {unit}", tally.share()));
        }
        lines.join("\n") + "\n"
    }

    /// The counts of blocks, transactions and answers, the shares of equal results, and the answers that differ.
    pub fn to_json(&self) -> Value {
        let mut report = json!({
            "blocks": self.blocks,
            "transactions": self.codes.total,
            "codes_equal": self.codes.share(),
            "commit_hashes_equal": self.commit_hashes.share(),
            "state_equal": self.state.share(),
        });
        if let Some(answers) = &self.answers {
            report["responses"] = json!(answers.total);
            report["responses_equal"] = json!(answers.share());
            report["responses_different"] = json!(self.different_answers);
        }
        report
    }

    /// Counts an answer to a proposal; `different` says what differs from the recorded one.
    pub fn count_answer(&mut self, label: &str, peer: &str, different: &[String]) {
        self.answers.get_or_insert_default().count(different.is_empty());
        for what in different {
            self.differences.push(format!("answer of {peer} ({label}): {what}"));
        }
        if !different.is_empty() {
            self.different_answers.push(json!({ "label": label, "peer": peer, "differences": different }));
        }
    }
}

/// The number of results of one kind that were compared, and how many of them are equal.
#[derive(Default)]
struct Tally {
    equal: u64,
    total: u64,
}

impl Tally {
    fn count(&mut self, is_equal: bool) {
        self.equal += u64::from(is_equal);
        self.total += 1;
    }

    /// The share of equal results; 1 if there are none to compare.
    fn share(&self) -> f64 {
        if self.total == 0 { 1.0 } else { self.equal as f64 / self.total as f64 }
    }
}

/// Compares the results of a peer that has committed all recorded blocks.
pub async fn compare(recording: &Recording, channel: &Channel) -> Result<Comparison, CommandError> {
    let mut comparison = Comparison { blocks: recording.blocks.len() as u64, ..Comparison::default() };
    let mut namespaces = recording.namespaces.clone();
    for (number, expected) in (0_u64..).zip(&recording.blocks).skip(1) {
        let unreadable = |reason: &dyn Display| CommandError::new(format!("block {number} of the new peer: {reason}"));
        let bytes = channel.read_block(number).await.map_err(|error| unreadable(&error))?;
        let bytes = bytes.ok_or_else(|| unreadable(&"it is missing"))?;
        let block = Block::parse(&bytes).map_err(|error| unreadable(&error))?;
        compare_codes(number, &expected.transactions, block.metadata().filter(), &mut comparison);
        let commit_hash = block.metadata().commit_hash().map_err(|error| unreadable(&error))?;
        let commit_hash = commit_hash.map(hex::encode).unwrap_or_default();
        comparison.commit_hashes.count(commit_hash == expected.commit_hash);
        if commit_hash != expected.commit_hash {
            let line = format!("block {number}: the commit hash is {commit_hash}, not {}", expected.commit_hash);
            comparison.differences.push(line);
        }
        let writes = ledger::materialize::stored_writes(&block).map_err(|error| unreadable(&error))?;
        let written = writes.into_iter().map(|write| write.namespace.into_owned());
        namespaces.extend(written.filter(|name| holds_entries(name)));
    }
    let found = state_rows(channel, &namespaces).await?;
    compare_state(&recording.state, &found, &mut comparison);
    Ok(comparison)
}

fn compare_codes(number: u64, expected: &[ExpectedTransaction], found: &[u8], comparison: &mut Comparison) {
    let shown = |code: Option<u8>| code.map_or_else(|| "none".to_owned(), |code| ledger::Code(code).to_string());
    for position in 0..expected.len().max(found.len()) {
        let (wanted, found) = (expected.get(position), found.get(position).copied());
        let code = wanted.map(|wanted| wanted.code);
        comparison.codes.count(code == found);
        if code != found {
            let label = wanted.and_then(|wanted| wanted.label.as_ref()).map(|label| format!(" ({label})"));
            let label = label.unwrap_or_default();
            comparison.differences.push(format!(
                "block {number}, transaction {position}{label}: the code is {}, not {}",
                shown(found),
                shown(code)
            ));
        }
    }
}

/// Whether a namespace holds public values or hashes of private ones. Metadata are compared together with their keys.
fn holds_entries(namespace: &str) -> bool {
    matches!(namespace::content(namespace), NamespaceContent::Values(_) | NamespaceContent::Hashes(..))
}

/// The entries of these namespaces after the last block.
async fn state_rows(
    channel: &Channel,
    namespaces: &BTreeSet<String>,
) -> Result<BTreeMap<StatePlace, StateRow>, CommandError> {
    let unreadable = |reason: &dyn Display| CommandError::new(format!("the state of the new peer: {reason}"));
    let snapshot = channel.snapshot().await.map_err(|error| unreadable(&error))?;
    let mut rows = BTreeMap::new();
    for name in namespaces {
        let (contract, collection) = match namespace::content(name) {
            NamespaceContent::Hashes(contract, collection) => (contract, collection),
            _ => (name.as_str(), ""),
        };
        let metadata_namespace = namespace::metadata_of(contract, collection);
        let mut start = String::new();
        loop {
            let page = snapshot.range(name, &start, "", PAGE_ENTRIES).await.map_err(|error| unreadable(&error))?;
            if let Some(last) = page.entries.last() {
                // The smallest key after the last one.
                start = format!("{}\0", last.key);
            }
            for entry in page.entries {
                let metadata =
                    snapshot.get(&metadata_namespace, &entry.key).await.map_err(|error| unreadable(&error))?;
                // The keys of collections are hashes that are in hexadecimal already.
                let key = if collection.is_empty() { hex::encode(&*entry.key) } else { entry.key.to_string() };
                let version = entry.versioned.version;
                let row = StateRow {
                    value_sha256: hex::encode(ledger::sha256(&entry.versioned.value)),
                    metadata_hex: metadata.map(|metadata| hex::encode(metadata.value)).unwrap_or_default(),
                    version: [version.block, u64::from(version.tx)],
                };
                rows.insert((name.clone(), key), row);
            }
            if !page.more {
                break;
            }
        }
    }
    Ok(rows)
}

fn compare_state(
    expected: &BTreeMap<StatePlace, StateRow>,
    found: &BTreeMap<StatePlace, StateRow>,
    comparison: &mut Comparison,
) {
    let places: BTreeSet<&StatePlace> = expected.keys().chain(found.keys()).collect();
    for place in places {
        let (wanted, found) = (expected.get(place), found.get(place));
        comparison.state.count(wanted == found);
        if wanted != found {
            let (namespace, key) = place;
            let what = state_difference(wanted, found);
            comparison.differences.push(format!("key 0x{key} of namespace {namespace:?}: {what}"));
        }
    }
}

fn state_difference(wanted: Option<&StateRow>, found: Option<&StateRow>) -> String {
    let shown = |[block, position]: [u64; 2]| format!("{block}:{position}");
    match (wanted, found) {
        (None, _) => "it should not exist".to_owned(),
        (Some(wanted), None) => format!("it is missing; transaction {} wrote it", shown(wanted.version)),
        (Some(wanted), Some(found)) if wanted.version != found.version => {
            format!("its version is {}, not {}", shown(found.version), shown(wanted.version))
        }
        (Some(wanted), Some(found)) if wanted.value_sha256 != found.value_sha256 => {
            format!("the SHA-256 of its value is {}, not {}", found.value_sha256, wanted.value_sha256)
        }
        (Some(wanted), Some(found)) => {
            format!("its metadata are 0x{}, not 0x{}", found.metadata_hex, wanted.metadata_hex)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(value: &str, metadata: &str, version: [u64; 2]) -> StateRow {
        StateRow { value_sha256: value.to_owned(), metadata_hex: metadata.to_owned(), version }
    }

    #[test]
    fn state_differences_say_what_is_wrong() {
        let wanted = row("aa", "01", [3, 1]);
        let cases = [
            (None, Some(&wanted), "it should not exist"),
            (Some(&wanted), None, "it is missing; transaction 3:1 wrote it"),
            (Some(&wanted), Some(&row("bb", "01", [4, 0])), "its version is 4:0, not 3:1"),
            (Some(&wanted), Some(&row("bb", "01", [3, 1])), "the SHA-256 of its value is bb, not aa"),
            (Some(&wanted), Some(&row("aa", "", [3, 1])), "its metadata are 0x, not 0x01"),
        ];
        for (wanted, found, text) in cases {
            assert_eq!(state_difference(wanted, found), text);
        }
    }

    #[test]
    fn shares_count_results_that_one_side_lacks_as_unequal() {
        let mut comparison = Comparison::default();
        let expected = [0, 11].map(|code| ExpectedTransaction { code, label: None });
        compare_codes(1, &expected, &[0], &mut comparison);
        assert_eq!((comparison.codes.share(), comparison.differences.len()), (0.5, 1));
        let place = |key: &str| ("kv".to_owned(), key.to_owned());
        let one = BTreeMap::from([(place("61"), row("aa", "", [1, 0])), (place("62"), row("bb", "", [1, 0]))]);
        let other = BTreeMap::from([(place("61"), row("aa", "", [1, 0])), (place("63"), row("cc", "", [1, 0]))]);
        compare_state(&one, &other, &mut comparison);
        assert_eq!((comparison.state.equal, comparison.state.total), (1, 3));
        assert_eq!(Comparison::default().state.share(), 1.0);
    }

    #[test]
    fn only_the_first_differences_are_shown() {
        let lines = |count: usize| {
            let differences = (0..count).map(|number| format!("difference {number}")).collect();
            Comparison { differences, ..Comparison::default() }.report()
        };
        assert!(!lines(DIFFERENCES_SHOWN_MAX).contains("more differences"));
        let report = lines(DIFFERENCES_SHOWN_MAX + 2);
        assert!(report.contains("difference 19\nand 2 more differences\n") && !report.contains("difference 20"));
    }
}
