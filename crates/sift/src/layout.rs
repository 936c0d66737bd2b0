//! The memory layout of a memory node: `docs/formats/consensus.md`.
//!
//! ```text
//!  administrative region   | term u64 | node u64 | timestamp u64 | admitted u64 | zeros … 4096
//!  replicated region       | header 0 (64) | header 1 (64) | made u64 | zeros … 4096 | log | unlogged region | logged memory |
//! ```
//!
//! Every CPU node that may coordinate can access the administrative region; only the newest coordinator can access the
//! replicated region. A [`CopyHeader`] records how up to date a node's copy is. Headers are written to the two slots in turn,
//! so a torn write leaves the previous header intact. `made` is the generation to which the copy belongs: the term of the last
//! reformatting, or 0 if the group was never reformatted. Copies of two generations have nothing in common
//! ([`format`](mod@crate::format)).
//!
//! In an erasure-coded group, a node holds its own shard of each block of the logged memory ([`crate::shards`]); the log and
//! the unlogged region are stored in full.
//!
//! Invariant: the unlogged region and the logged memory have one address space, in this order; each consists of whole blocks.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use rma::TRANSFER_BYTES_MAX;
use twox_hash::XxHash3_64;
use wire::{u32_at, u64_at};

use crate::erasure_code::DATA_MAX;
use crate::{Error, Term};

/// Bytes of the administrative region.
pub(crate) const ADMIN_BYTES: u64 = 4096;
/// Bytes of it that are in use.
pub(crate) const ADMIN_WORDS_BYTES: usize = 32;
pub(crate) const TERM_AT: u64 = 0;
pub(crate) const NODE_AT: u64 = 8;
pub(crate) const ADMITTED_AT: u64 = 24;
/// Bytes before the log.
const HEAD_BYTES: u64 = 4096;
/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 64;
/// Offset of the word that holds the generation of the copy.
pub(crate) const FORMAT_TERM_AT: u64 = 2 * HEADER_BYTES as u64;
/// Bytes of the headers and of that word.
pub(crate) const HEADS_BYTES: u64 = FORMAT_TERM_AT + 8;
/// The format version of everything in a region.
pub const FORMAT_VERSION: u32 = 1;
/// Log entries start at multiples of this.
pub const LOG_UNIT_BYTES: u64 = 64;
/// Bytes of a layout in a message.
pub(crate) const LAYOUT_BYTES: usize = 40;
/// The smallest log.
pub const LOG_BYTES_MIN: u64 = 4096;
/// The largest log: a takeover holds the logs of all nodes in memory at once.
pub const LOG_BYTES_MAX: u64 = 1 << 32;
/// The largest unlogged region or logged memory.
pub const MEMORY_BYTES_MAX: u64 = 1 << 40;
/// Bound on indexes and header numbers: far beyond any log, and so far below the largest number that adding to them
/// cannot overflow.
pub const NUMBER_MAX: u64 = 1 << 62;
/// The smallest and the largest block.
pub const BLOCK_BYTES: std::ops::RangeInclusive<u64> = 64..=1 << 20;
/// Shards consist of whole words.
const SHARD_UNIT_BYTES: u64 = 8;

/// The sizes of a group, the same at all of its memory nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupLayout {
    /// Bytes of the log: a multiple of 4096.
    pub log_bytes: u64,
    /// Bytes that are written without the log: a multiple of the block.
    pub unlogged_bytes: u64,
    /// Bytes that are written through the log: a multiple of the block.
    pub memory_bytes: u64,
    /// Bytes of a block, the unit of locks and of shards: a power of two.
    pub block_bytes: u64,
    /// 1: every memory node holds all of the logged memory. F+1: the group is erasure-coded, and each of its 2F+1 nodes
    /// holds one shard of each block; any F+1 shards give the block back.
    pub data_shards: u32,
}

impl GroupLayout {
    /// The layout of an ordering group: a log of `log_bytes` and nothing else.
    pub const fn of_log(log_bytes: u64) -> GroupLayout {
        GroupLayout { log_bytes, unlogged_bytes: 0, memory_bytes: 0, block_bytes: 64, data_shards: 1 }
    }

    /// Checks that the sizes are valid.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn check(&self) -> Result<(), Error> {
        let invalid = |what: String| Err(Error::Invalid(what));
        if !BLOCK_BYTES.contains(&self.block_bytes) || !self.block_bytes.is_power_of_two() {
            return invalid(format!("a block of {} bytes: choose a power of two in {BLOCK_BYTES:?}", self.block_bytes));
        }
        if !self.log_bytes.is_multiple_of(4096) || !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&self.log_bytes) {
            return invalid(format!(
                "a log of {} bytes: choose a multiple of 4096, at most {LOG_BYTES_MAX}",
                self.log_bytes
            ));
        }
        if self.data_shards == 0 || self.data_shards as usize > DATA_MAX {
            return invalid(format!(
                "{} data shards: choose 1, or one more than the losses to survive",
                self.data_shards
            ));
        }
        for (what, bytes) in [("unlogged region", self.unlogged_bytes), ("memory", self.memory_bytes)] {
            if !bytes.is_multiple_of(self.block_bytes) || bytes > MEMORY_BYTES_MAX {
                return invalid(format!("{what} of {bytes} bytes: choose a multiple of the block, at most 2^40"));
            }
        }
        Ok(())
    }

    /// Bytes of the address space: the unlogged region and the logged memory.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub const fn address_bytes(&self) -> u64 {
        self.unlogged_bytes + self.memory_bytes
    }

    /// Bytes of the replicated region.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub const fn region_bytes(&self) -> u64 {
        let blocks = self.memory_bytes / self.block_bytes;
        (HEAD_BYTES + self.log_bytes + self.unlogged_bytes + blocks * self.shard_bytes()).next_multiple_of(4096)
    }

    /// Whether memory nodes hold shards.
    pub const fn is_erasure_coded(&self) -> bool {
        self.data_shards > 1
    }

    /// Bytes of a block that one node holds.
    pub const fn shard_bytes(&self) -> u64 {
        match self.is_erasure_coded() {
            true => self.block_bytes.div_ceil(self.data_shards as u64).next_multiple_of(SHARD_UNIT_BYTES),
            false => self.block_bytes,
        }
    }

    /// Blocks of the address space.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) const fn blocks(&self) -> usize {
        (self.address_bytes() / self.block_bytes) as usize
    }

    /// The region offset of an offset in the log.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) const fn log_at(&self, offset: u64) -> u64 {
        HEAD_BYTES + offset
    }

    /// The region offset of an address: an address of the unlogged region, or any address of a group that is not
    /// erasure-coded.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) const fn memory_at(&self, address: u64) -> u64 {
        assert!(
            !self.is_erasure_coded() || address <= self.unlogged_bytes,
            "blocks of a coded group have no one place"
        );
        HEAD_BYTES + self.log_bytes + address
    }

    /// The region offset of a node's shard of the block that starts at an address of the logged memory.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) const fn shard_at(&self, address: u64) -> u64 {
        assert!(address >= self.unlogged_bytes && address.is_multiple_of(self.block_bytes), "a block of the memory");
        let block = (address - self.unlogged_bytes) / self.block_bytes;
        HEAD_BYTES + self.log_bytes + self.unlogged_bytes + block * self.shard_bytes()
    }

    /// Bytes of the longest entry: a quarter of the log, so that a caller that waits for space eventually gets it, and
    /// at most what one verb moves.
    pub const fn entry_bytes_max(&self) -> u64 {
        let (quarter, verb) = (self.log_bytes / 4, TRANSFER_BYTES_MAX as u64);
        if quarter < verb { quarter } else { verb }
    }

    /// The layout as it is stored and sent.
    pub(crate) fn encode(&self) -> [u8; LAYOUT_BYTES] {
        wire::array(|writer| {
            writer.u64s([
                self.log_bytes,
                self.unlogged_bytes,
                self.memory_bytes,
                self.block_bytes,
                self.data_shards.into(),
            ]);
        })
    }

    pub(crate) fn decode(bytes: &[u8; LAYOUT_BYTES]) -> GroupLayout {
        GroupLayout {
            log_bytes: u64_at(bytes, 0),
            unlogged_bytes: u64_at(bytes, 8),
            memory_bytes: u64_at(bytes, 16),
            block_bytes: u64_at(bytes, 24),
            data_shards: u32_at(bytes, 32),
        }
    }
}

/// The words of the administrative region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct AdminWords {
    pub term: Term,
    pub node: u64,
    pub timestamp: u64,
    /// The group's number once the node holds a copy; a node without one has no vote.
    pub admitted: u64,
}

impl AdminWords {
    pub(crate) fn decode(bytes: &[u8]) -> Result<AdminWords, Error> {
        if bytes.len() != ADMIN_WORDS_BYTES {
            return Err(Error::Corrupt("administrative words of another length"));
        }
        let [term, node, timestamp, admitted] = [0, 8, 16, 24].map(|at| u64_at(bytes, at));
        // After a term of the last era no CPU node could be elected.
        Term(term).next_generation().ok_or(Error::Corrupt("a term at the end of all terms"))?;
        Ok(AdminWords { term: Term(term), node, timestamp, admitted })
    }
}

/// A position in the log: the entry `index` ends at `position`, and has the checksum `chain`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogCursor {
    /// The entry's index.
    pub index: u64,
    /// Where the entry ends.
    pub position: u64,
    /// The entry's checksum.
    pub chain: u64,
}

/// How far a node's copy is.
///
/// ```text
/// checksum | sequence | term | adopted | applied index | position | chain | version u32 | nodes u32
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CopyHeader {
    /// Grows with each header of the node.
    pub sequence: u64,
    /// The term of the last coordinator that adopted this node's log.
    pub term: Term,
    /// Entries up to this index may be of earlier terms; later ones are of [`CopyHeader::term`].
    pub adopted: u64,
    /// The last entry whose writes are certainly in the node's memory.
    pub applied: LogCursor,
    /// How many memory nodes the group has.
    pub nodes: u32,
}

impl CopyHeader {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let LogCursor { index, position, chain } = self.applied;
        let mut bytes: [u8; HEADER_BYTES] = wire::array(|writer| {
            writer.u64s([0, self.sequence, self.term.0, self.adopted, index, position, chain]);
            writer.u32(FORMAT_VERSION).u32(self.nodes);
        });
        let checksum = XxHash3_64::oneshot(&bytes[8..]);
        bytes[..8].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The header that the bytes hold: `None` where nothing was written or a write was torn.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for another version or an impossible header.
    pub(crate) fn decode(bytes: &[u8], layout: &GroupLayout) -> Result<Option<CopyHeader>, Error> {
        if bytes.len() != HEADER_BYTES {
            return Err(Error::Corrupt("a header of another length"));
        }
        if u64_at(bytes, 0) != XxHash3_64::oneshot(&bytes[8..]) {
            return Ok(None);
        }
        if u32_at(bytes, 56) != FORMAT_VERSION {
            return Err(Error::Corrupt("a header of another format version"));
        }
        let applied = LogCursor { index: u64_at(bytes, 32), position: u64_at(bytes, 40), chain: u64_at(bytes, 48) };
        if applied.position > layout.log_bytes || !applied.position.is_multiple_of(LOG_UNIT_BYTES) {
            return Err(Error::Corrupt("a header that points beyond the log"));
        }
        let (sequence, adopted) = (u64_at(bytes, 8), u64_at(bytes, 24));
        if [sequence, adopted, applied.index].into_iter().any(|number| number >= NUMBER_MAX) {
            return Err(Error::Corrupt("a header at the end of all numbers"));
        }
        Ok(Some(CopyHeader { sequence, term: Term(u64_at(bytes, 16)), adopted, applied, nodes: u32_at(bytes, 60) }))
    }

    /// The region offset of the header's slot.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) const fn at(&self) -> u64 {
        (self.sequence % 2) * HEADER_BYTES as u64
    }

    /// The newer of a node's two headers, and the generation that it belongs to; no header for a node without a copy.
    pub(crate) fn newest(bytes: &[u8], layout: &GroupLayout) -> Result<(Option<CopyHeader>, Term), Error> {
        if bytes.len() as u64 != HEADS_BYTES {
            return Err(Error::Corrupt("headers of another length"));
        }
        let (headers, made) = bytes.split_at(2 * HEADER_BYTES);
        let (zero, one) = headers.split_at(HEADER_BYTES);
        let both = [CopyHeader::decode(zero, layout)?, CopyHeader::decode(one, layout)?];
        Ok((both.into_iter().flatten().max_by_key(|header| header.sequence), Term(u64_at(made, 0))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: GroupLayout =
        GroupLayout { log_bytes: 8192, unlogged_bytes: 128, memory_bytes: 1024, block_bytes: 64, data_shards: 1 };

    fn header(sequence: u64) -> CopyHeader {
        let applied = LogCursor { index: 9, position: 640, chain: 0x0102 };
        CopyHeader { sequence, term: Term(5), adopted: 7, applied, nodes: 3 }
    }

    #[test]
    fn headers_have_the_documented_layout() {
        let bytes = header(4).encode();
        let words = [4, 5, 7, 9, 640, 0x0102, u64::from(FORMAT_VERSION) | 3 << 32];
        let golden: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        assert_eq!(bytes[8..], golden);
        assert_eq!(u64_at(&bytes, 0), 2_922_393_678_783_150_574, "the checksum's algorithm is part of the format");
        assert_eq!(CopyHeader::decode(&bytes, &LAYOUT), Ok(Some(header(4))));
    }

    #[test]
    fn a_torn_header_leaves_the_one_before() {
        let mut page = [0; HEADS_BYTES as usize];
        assert_eq!(CopyHeader::newest(&page, &LAYOUT), Ok((None, Term(0))));
        page[64..128].copy_from_slice(&header(1).encode());
        page[..64].copy_from_slice(&header(2).encode());
        assert_eq!(CopyHeader::newest(&page, &LAYOUT), Ok((Some(header(2)), Term(0))));
        page[64..72].copy_from_slice(&header(3).encode()[..8]);
        assert_eq!(CopyHeader::newest(&page, &LAYOUT), Ok((Some(header(2)), Term(0))));
        page[64..128].copy_from_slice(&header(3).encode());
        page[128] = 9;
        assert_eq!(CopyHeader::newest(&page, &LAYOUT), Ok((Some(header(3)), Term(9))));
    }

    #[test]
    fn a_header_that_nothing_can_follow_is_refused() {
        let refused = |header: CopyHeader| CopyHeader::decode(&header.encode(), &LAYOUT);
        let good = header(NUMBER_MAX - 1);
        assert_eq!(refused(good), Ok(Some(good)));
        let applied = LogCursor { index: NUMBER_MAX, ..good.applied };
        for bad in [
            CopyHeader { sequence: u64::MAX, ..good },
            CopyHeader { adopted: u64::MAX, ..good },
            CopyHeader { applied, ..good },
            CopyHeader { applied: LogCursor { position: 8192 + 64, ..good.applied }, ..good },
        ] {
            assert!(matches!(refused(bad), Err(Error::Corrupt(_))), "{bad:?}");
        }
    }

    #[test]
    fn an_entry_is_no_longer_than_what_one_verb_moves() {
        let verb = TRANSFER_BYTES_MAX as u64;
        for (log_bytes, longest) in [(8192, 2048), (4 * verb, verb), (LOG_BYTES_MAX, verb)] {
            assert_eq!(GroupLayout { log_bytes, ..LAYOUT }.entry_bytes_max(), longest, "of a log of {log_bytes} bytes");
        }
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        assert!(LAYOUT.check().is_ok());
        assert!(GroupLayout { log_bytes: LOG_BYTES_MAX, ..LAYOUT }.check().is_ok());
        for bad in [
            GroupLayout { block_bytes: 96, ..LAYOUT },
            GroupLayout { block_bytes: 32, ..LAYOUT },
            GroupLayout { log_bytes: 4097, ..LAYOUT },
            GroupLayout { log_bytes: 0, ..LAYOUT },
            GroupLayout { log_bytes: LOG_BYTES_MAX + 4096, ..LAYOUT },
            GroupLayout { unlogged_bytes: 65, ..LAYOUT },
            GroupLayout { data_shards: 0, ..LAYOUT },
            GroupLayout { data_shards: 17, ..LAYOUT },
            GroupLayout { memory_bytes: u64::MAX - 63, ..LAYOUT },
        ] {
            assert!(matches!(bad.check(), Err(Error::Invalid(_))), "{bad:?}");
        }
    }

    #[test]
    fn areas_do_not_overlap() {
        assert_eq!(LAYOUT.log_at(0), 4096);
        assert_eq!(LAYOUT.memory_at(0), 4096 + 8192);
        assert_eq!(LAYOUT.region_bytes(), 4096 + 8192 + 4096);
        assert_eq!(GroupLayout::decode(&LAYOUT.encode()), LAYOUT);
        let coded = GroupLayout { data_shards: 3, memory_bytes: 64 * 200, ..LAYOUT };
        assert_eq!((coded.shard_bytes(), coded.memory_at(0)), (24, 4096 + 8192));
        assert_eq!(coded.shard_at(128), 4096 + 8192 + 128, "the direct area is plain");
        assert_eq!(coded.shard_at(128 + 64 * 199), 4096 + 8192 + 128 + 24 * 199);
        assert_eq!(coded.region_bytes(), (4096 + 8192 + 128 + 24 * 200_u64).next_multiple_of(4096));
        assert_eq!(GroupLayout::decode(&coded.encode()), coded);
    }
}
