//! Summaries of long ranges, so that a scan of many keys does not put all of them into the block.
//!
//! The rule, which is Fabric's with a degree of 50:
//! 1. Results are taken in order. As soon as there are more than `degree` of them (51 with Fabric's degree), they are
//!    hashed together: SHA-256 over their encoding as a `QueryReads` message. The hash is a node of level 1.
//! 2. Once more than `degree` nodes of a level wait, they are hashed together (their hashes in sequence) into one node
//!    of the next level, which replaces them.
//! 3. At the end of the scan, the results that are not hashed yet, however few, are hashed into a last node of level 1.
//!    Then each level, from 1 up to the one below the highest, hashes the nodes that are left at it into one node of
//!    the next level; a single node moves up unchanged. If the highest level now has more than `degree` nodes, they are
//!    hashed into one node, which forms a new highest level.
//! 4. The summary is the degree, the highest level and the hashes of that level. If rule 1 never applied, there is no
//!    summary: the results themselves are recorded.
//!
//! Equal summaries mean equal results, up to collisions of SHA-256. The check for phantoms relies on this.

use crate::hash::{Hash, sha256, sha256_of};
use base::{Bytes, Version};

use super::encode::{pair, put_read};

/// The degree that endorsers use.
pub const DEGREE: u32 = 50;

/// The degrees that are accepted in a block: Fabric rejects degrees below two, and the number of waiting results must
/// be bounded.
pub const DEGREES_ACCEPTED: std::ops::RangeInclusive<u32> = 2..=4096;

/// The length of a node's hash.
pub(super) const HASH_BYTES: usize = size_of::<Hash>();

/// The summary of a long range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MerkleSummary {
    /// Children a node has, less one.
    pub degree: u32,
    /// The level of `hashes`; results hash into level 1.
    pub level: u32,
    /// The nodes of the highest level.
    pub hashes: Vec<Bytes>,
}

/// The result of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SummarizerOutcome {
    /// At most `degree` results: their encoding as a `QueryReads` message, empty for none.
    Results(Bytes),
    /// More results than that.
    Summary(MerkleSummary),
}

/// Accepts the results of a scan one by one.
#[derive(Clone, Debug)]
pub struct RangeSummarizer {
    degree: u32,
    /// Encoded results that wait for rule 1.
    waiting: Vec<u8>,
    waiting_count: u32,
    /// `levels[i]` are the nodes that wait at level `i + 1`.
    levels: Vec<Vec<Hash>>,
}

impl RangeSummarizer {
    /// A summarizer of one of the [`DEGREES_ACCEPTED`].
    pub fn new(degree: u32) -> RangeSummarizer {
        assert!(DEGREES_ACCEPTED.contains(&degree), "the degree was checked when it was decoded");
        RangeSummarizer { degree, waiting: Vec::new(), waiting_count: 0, levels: Vec::new() }
    }

    /// Adds the next result.
    pub fn add(&mut self, key: &str, version: Version) {
        put_read(&mut self.waiting, 1, key, Some(pair(version)));
        self.waiting_count += 1;
        if self.waiting_count > self.degree {
            self.hash_waiting();
        }
    }

    fn hash_waiting(&mut self) {
        let node = sha256(&self.waiting);
        self.waiting.clear();
        self.waiting_count = 0;
        let mut level = 0;
        let mut node = node;
        loop {
            if level == self.levels.len() {
                self.levels.push(Vec::new());
            }
            self.levels[level].push(node);
            if self.levels[level].len() as u32 <= self.degree {
                return;
            }
            node = combine(&self.levels[level]);
            self.levels[level].clear();
            level += 1;
        }
    }

    /// Whether the results so far can still end in `expected`: a difference shows before the scan reaches its end.
    pub fn may_become(&self, expected: &MerkleSummary) -> bool {
        let level = self.levels.len() as u32;
        if level < expected.level {
            return true;
        }
        let Some(nodes) = self.levels.last() else { return true };
        level == expected.level
            && nodes.len() <= expected.hashes.len()
            && nodes.iter().zip(&expected.hashes).all(|(node, hash)| node[..] == hash[..])
    }

    /// Ends the scan.
    pub fn finish(mut self) -> SummarizerOutcome {
        if self.levels.is_empty() {
            return SummarizerOutcome::Results(self.waiting.into());
        }
        if self.waiting_count > 0 {
            self.hash_waiting();
        }
        let highest = self.levels.len() - 1;
        for level in 0..highest {
            let nodes = std::mem::take(&mut self.levels[level]);
            match nodes.as_slice() {
                [] => {}
                [one] => self.levels[level + 1].push(*one),
                many => {
                    let node = combine(many);
                    self.levels[level + 1].push(node);
                }
            }
        }
        let mut level = highest as u32 + 1;
        let mut nodes = self.levels.pop().expect("there is a level");
        if nodes.len() as u32 > self.degree {
            nodes = vec![combine(&nodes)];
            level += 1;
        }
        let hashes = nodes.iter().map(|node| Bytes::copy_from_slice(node)).collect();
        SummarizerOutcome::Summary(MerkleSummary { degree: self.degree, level, hashes })
    }
}

fn combine(nodes: &[Hash]) -> Hash {
    let pieces: Vec<&[u8]> = nodes.iter().map(|node| &node[..]).collect();
    sha256_of(&pieces)
}
