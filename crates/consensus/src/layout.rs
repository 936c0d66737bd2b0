//! What lies where on a memory node: `docs/formats/consensus.md`.
//!
//! ```text
//!  administrative region   | term u64 | node u64 | timestamp u64 | admitted u64 | zeros … 4096
//!  replicated region       | header 0 (64) | header 1 (64) | made u64 | zeros … 4096 | log | direct area | logged memory |
//! ```
//!
//! Every processor that may coordinate reaches the administrative region; only the newest coordinator reaches the
//! replicated one. A [`Header`] says how far a node's copy is: it is written to its two places in turn, so that one whose
//! write was torn leaves the one before. `made` is the term under which the group was made anew whose copy it is, 0 for one that
//! was formatted: copies of two makings are none of each other ([`crate::format`]).
//!
//! The logged memory of a coded group is not there as it is, but as this node's share of each of its blocks
//! ([`crate::shares`]); log and direct area are plain.
//!
//! Invariant: the memory behind the log has one address space, the direct area first, both made of whole blocks.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use rma::TRANSFER_BYTES_MAX;
use twox_hash::XxHash3_64;

use crate::code::DATA_MAX;
use crate::{Error, Term};

/// Bytes of the administrative region.
pub(crate) const ADMIN_BYTES: u64 = 4096;
/// Bytes of it that have a meaning.
pub(crate) const ADMIN_WORDS_BYTES: usize = 32;
pub(crate) const TERM_AT: u64 = 0;
pub(crate) const NODE_AT: u64 = 8;
pub(crate) const ADMITTED_AT: u64 = 24;
/// Bytes before the log.
const HEAD_BYTES: u64 = 4096;
/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 64;
/// Where the word lies that tells one making of a group from another.
pub(crate) const MADE_AT: u64 = 2 * HEADER_BYTES as u64;
/// Bytes of the headers and of that word.
pub(crate) const HEADS_BYTES: u64 = MADE_AT + 8;
/// The version of everything that lies in a region.
pub const FORMAT_VERSION: u32 = 1;
/// Entries of the log begin at multiples of this.
pub const LOG_UNIT_BYTES: u64 = 64;
/// Bytes of a layout in a message.
pub(crate) const LAYOUT_BYTES: usize = 40;
/// The smallest log.
pub const LOG_BYTES_MIN: u64 = 4096;
/// The largest log: a takeover has those of all nodes in memory at once.
pub const LOG_BYTES_MAX: u64 = 1 << 32;
/// The largest direct area or logged memory.
pub const AREA_BYTES_MAX: u64 = 1 << 40;
/// Indexes, and numbers of headers, are below this: far beyond any log, and so far from the end of all numbers that they can be
/// counted on from.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;
/// The smallest and the largest block.
pub const BLOCK_BYTES: std::ops::RangeInclusive<u64> = 64..=1 << 20;
/// Shares have whole words.
const SHARE_UNIT_BYTES: u64 = 8;

/// The sizes of a group, the same at all of its memory nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Bytes of the log: a multiple of 4096.
    pub log_bytes: u64,
    /// Bytes that are written without the log: a multiple of the block.
    pub direct_bytes: u64,
    /// Bytes that are written through the log: a multiple of the block.
    pub memory_bytes: u64,
    /// Bytes of a block, the unit of locks and of shares: a power of two.
    pub block_bytes: u64,
    /// 1: every memory node holds all of the logged memory. F+1: it is coded, and each of the 2F+1 nodes holds one share of
    /// each block, of which any F+1 make the block.
    pub data_shares: u32,
}

impl Layout {
    /// That of a group which orders: a log of so many bytes and nothing else.
    pub const fn of_log(log_bytes: u64) -> Layout {
        Layout { log_bytes, direct_bytes: 0, memory_bytes: 0, block_bytes: 64, data_shares: 1 }
    }

    /// Whether the sizes make sense.
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
        if self.data_shares == 0 || self.data_shares as usize > DATA_MAX {
            return invalid(format!(
                "{} data shares: choose 1, or one more than the losses to survive",
                self.data_shares
            ));
        }
        for (what, bytes) in [("direct area", self.direct_bytes), ("memory", self.memory_bytes)] {
            if !bytes.is_multiple_of(self.block_bytes) || bytes > AREA_BYTES_MAX {
                return invalid(format!("a {what} of {bytes} bytes: choose a multiple of the block"));
            }
        }
        Ok(())
    }

    /// Bytes of addresses: the direct area and the logged memory.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub const fn address_bytes(&self) -> u64 {
        self.direct_bytes + self.memory_bytes
    }

    /// Bytes of the replicated region.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub const fn region_bytes(&self) -> u64 {
        let blocks = self.memory_bytes / self.block_bytes;
        (HEAD_BYTES + self.log_bytes + self.direct_bytes + blocks * self.share_bytes()).next_multiple_of(4096)
    }

    /// Whether memory nodes hold shares.
    pub const fn is_coded(&self) -> bool {
        self.data_shares > 1
    }

    /// Bytes of a block that one node holds.
    pub const fn share_bytes(&self) -> u64 {
        match self.is_coded() {
            true => self.block_bytes.div_ceil(self.data_shares as u64).next_multiple_of(SHARE_UNIT_BYTES),
            false => self.block_bytes,
        }
    }

    /// Blocks of the address space.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) const fn blocks(&self) -> usize {
        (self.address_bytes() / self.block_bytes) as usize
    }

    /// Where an offset of the log lies in the region.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) const fn log_at(&self, offset: u64) -> u64 {
        HEAD_BYTES + offset
    }

    /// Where an address lies in the region: one of the direct area, or of a group that is not coded.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) const fn memory_at(&self, address: u64) -> u64 {
        assert!(!self.is_coded() || address <= self.direct_bytes, "blocks of a coded group have no one place");
        HEAD_BYTES + self.log_bytes + address
    }

    /// Where a node's share of the block lies that begins at an address of the logged memory.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) const fn share_at(&self, address: u64) -> u64 {
        assert!(address >= self.direct_bytes && address.is_multiple_of(self.block_bytes), "a block of the memory");
        let block = (address - self.direct_bytes) / self.block_bytes;
        HEAD_BYTES + self.log_bytes + self.direct_bytes + block * self.share_bytes()
    }

    /// Bytes of the longest entry: a quarter of the log, so that a full one is never waited for in vain, and no more than one verb
    /// moves.
    pub const fn entry_bytes_max(&self) -> u64 {
        let (quarter, verb) = (self.log_bytes / 4, TRANSFER_BYTES_MAX as u64);
        if quarter < verb { quarter } else { verb }
    }

    /// As stored and sent.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) fn encode(&self) -> [u8; LAYOUT_BYTES] {
        let mut bytes = [0; LAYOUT_BYTES];
        for (word, value) in
            [self.log_bytes, self.direct_bytes, self.memory_bytes, self.block_bytes, self.data_shares.into()]
                .into_iter()
                .enumerate()
        {
            bytes[word * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; LAYOUT_BYTES]) -> Layout {
        Layout {
            log_bytes: word(bytes, 0),
            direct_bytes: word(bytes, 8),
            memory_bytes: word(bytes, 16),
            block_bytes: word(bytes, 24),
            data_shares: half(bytes, 32),
        }
    }
}

/// The little-endian word at an offset that is there.
pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..][..8].try_into().expect("a slice of eight bytes"))
}

/// The little-endian half word at an offset that is there.
pub(crate) fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..][..4].try_into().expect("a slice of four bytes"))
}

/// The words of the administrative region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Admin {
    pub term: Term,
    pub node: u64,
    pub timestamp: u64,
    /// The group's number once the node holds a copy; a node without one has no vote.
    pub admitted: u64,
}

impl Admin {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Admin, Error> {
        if bytes.len() != ADMIN_WORDS_BYTES {
            return Err(Error::Corrupt("administrative words of another length"));
        }
        let [term, node, timestamp, admitted] = [0, 8, 16, 24].map(|at| word(bytes, at));
        // Behind it nobody could be elected.
        Term(term).next_era()?;
        Ok(Admin { term: Term(term), node, timestamp, admitted })
    }
}

/// A place in the log: the entry `index` ends at `position`, and has the checksum `chain`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Cursor {
    pub index: u64,
    pub position: u64,
    pub chain: u64,
}

/// How far a node's copy is.
///
/// ```text
/// checksum | sequence | term | adopted | applied index | position | chain | version u32 | nodes u32
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// Grows with each header of the node.
    pub sequence: u64,
    /// The last coordinator that made this node's log its own.
    pub term: Term,
    /// Entries up to this index may be of earlier terms; later ones are of [`Header::term`].
    pub adopted: u64,
    /// The last entry whose effects are in the node's memory for certain.
    pub applied: Cursor,
    /// How many memory nodes the group has.
    pub nodes: u32,
}

impl Header {
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let Cursor { index, position, chain } = self.applied;
        let words = [self.sequence, self.term.0, self.adopted, index, position, chain];
        for (place, value) in words.into_iter().enumerate() {
            bytes[8 + place * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
        bytes[56..60].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[60..64].copy_from_slice(&self.nodes.to_le_bytes());
        let checksum = XxHash3_64::oneshot(&bytes[8..]);
        bytes[..8].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// A header, if the bytes are one: `None` where nothing was written or a write was torn.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for another version or an impossible header.
    pub(crate) fn decode(bytes: &[u8], layout: &Layout) -> Result<Option<Header>, Error> {
        if bytes.len() != HEADER_BYTES {
            return Err(Error::Corrupt("a header of another length"));
        }
        if word(bytes, 0) != XxHash3_64::oneshot(&bytes[8..]) {
            return Ok(None);
        }
        if half(bytes, 56) != FORMAT_VERSION {
            return Err(Error::Corrupt("a header of another format version"));
        }
        let applied = Cursor { index: word(bytes, 32), position: word(bytes, 40), chain: word(bytes, 48) };
        if applied.position > layout.log_bytes || !applied.position.is_multiple_of(LOG_UNIT_BYTES) {
            return Err(Error::Corrupt("a header that points beyond the log"));
        }
        let (sequence, adopted) = (word(bytes, 8), word(bytes, 24));
        if [sequence, adopted, applied.index].into_iter().any(|number| number >= NUMBER_MAX) {
            return Err(Error::Corrupt("a header at the end of all numbers"));
        }
        Ok(Some(Header { sequence, term: Term(word(bytes, 16)), adopted, applied, nodes: half(bytes, 60) }))
    }

    /// Where it goes.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) const fn at(&self) -> u64 {
        (self.sequence % 2) * HEADER_BYTES as u64
    }

    /// The newer of the two that a node has, and the making that it belongs to; no header for a node without a copy.
    pub(crate) fn newest(bytes: &[u8], layout: &Layout) -> Result<(Option<Header>, Term), Error> {
        if bytes.len() as u64 != HEADS_BYTES {
            return Err(Error::Corrupt("headers of another length"));
        }
        let (headers, made) = bytes.split_at(2 * HEADER_BYTES);
        let (zero, one) = headers.split_at(HEADER_BYTES);
        let both = [Header::decode(zero, layout)?, Header::decode(one, layout)?];
        Ok((both.into_iter().flatten().max_by_key(|header| header.sequence), Term(word(made, 0))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout =
        Layout { log_bytes: 8192, direct_bytes: 128, memory_bytes: 1024, block_bytes: 64, data_shares: 1 };

    fn header(sequence: u64) -> Header {
        let applied = Cursor { index: 9, position: 640, chain: 0x0102 };
        Header { sequence, term: Term(5), adopted: 7, applied, nodes: 3 }
    }

    #[test]
    fn headers_have_the_documented_layout() {
        let bytes = header(4).encode();
        let words = [4, 5, 7, 9, 640, 0x0102, u64::from(FORMAT_VERSION) | 3 << 32];
        let golden: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        assert_eq!(bytes[8..], golden);
        assert_eq!(word(&bytes, 0), 2_922_393_678_783_150_574, "the checksum's algorithm is part of the format");
        assert_eq!(Header::decode(&bytes, &LAYOUT), Ok(Some(header(4))));
    }

    #[test]
    fn a_torn_header_leaves_the_one_before() {
        let mut page = [0; HEADS_BYTES as usize];
        assert_eq!(Header::newest(&page, &LAYOUT), Ok((None, Term(0))));
        page[64..128].copy_from_slice(&header(1).encode());
        page[..64].copy_from_slice(&header(2).encode());
        assert_eq!(Header::newest(&page, &LAYOUT), Ok((Some(header(2)), Term(0))));
        page[64..72].copy_from_slice(&header(3).encode()[..8]);
        assert_eq!(Header::newest(&page, &LAYOUT), Ok((Some(header(2)), Term(0))));
        page[64..128].copy_from_slice(&header(3).encode());
        page[128] = 9;
        assert_eq!(Header::newest(&page, &LAYOUT), Ok((Some(header(3)), Term(9))));
    }

    #[test]
    fn a_header_that_nothing_can_follow_is_refused() {
        let refused = |header: Header| Header::decode(&header.encode(), &LAYOUT);
        let good = header(NUMBER_MAX - 1);
        assert_eq!(refused(good), Ok(Some(good)));
        let applied = Cursor { index: NUMBER_MAX, ..good.applied };
        for bad in [
            Header { sequence: u64::MAX, ..good },
            Header { adopted: u64::MAX, ..good },
            Header { applied, ..good },
            Header { applied: Cursor { position: 8192 + 64, ..good.applied }, ..good },
        ] {
            assert!(matches!(refused(bad), Err(Error::Corrupt(_))), "{bad:?}");
        }
    }

    #[test]
    fn an_entry_is_no_longer_than_what_one_verb_moves() {
        let verb = TRANSFER_BYTES_MAX as u64;
        for (log_bytes, longest) in [(8192, 2048), (4 * verb, verb), (LOG_BYTES_MAX, verb)] {
            assert_eq!(Layout { log_bytes, ..LAYOUT }.entry_bytes_max(), longest, "of a log of {log_bytes} bytes");
        }
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        assert!(LAYOUT.check().is_ok());
        assert!(Layout { log_bytes: LOG_BYTES_MAX, ..LAYOUT }.check().is_ok());
        for bad in [
            Layout { block_bytes: 96, ..LAYOUT },
            Layout { block_bytes: 32, ..LAYOUT },
            Layout { log_bytes: 4097, ..LAYOUT },
            Layout { log_bytes: 0, ..LAYOUT },
            Layout { log_bytes: LOG_BYTES_MAX + 4096, ..LAYOUT },
            Layout { direct_bytes: 65, ..LAYOUT },
            Layout { data_shares: 0, ..LAYOUT },
            Layout { data_shares: 17, ..LAYOUT },
            Layout { memory_bytes: u64::MAX - 63, ..LAYOUT },
        ] {
            assert!(matches!(bad.check(), Err(Error::Invalid(_))), "{bad:?}");
        }
    }

    #[test]
    fn areas_do_not_overlap() {
        assert_eq!(LAYOUT.log_at(0), 4096);
        assert_eq!(LAYOUT.memory_at(0), 4096 + 8192);
        assert_eq!(LAYOUT.region_bytes(), 4096 + 8192 + 4096);
        assert_eq!(Layout::decode(&LAYOUT.encode()), LAYOUT);
        let coded = Layout { data_shares: 3, memory_bytes: 64 * 200, ..LAYOUT };
        assert_eq!((coded.share_bytes(), coded.memory_at(0)), (24, 4096 + 8192));
        assert_eq!(coded.share_at(128), 4096 + 8192 + 128, "the direct area is plain");
        assert_eq!(coded.share_at(128 + 64 * 199), 4096 + 8192 + 128 + 24 * 199);
        assert_eq!(coded.region_bytes(), (4096 + 8192 + 128 + 24 * 200_u64).next_multiple_of(4096));
        assert_eq!(Layout::decode(&coded.encode()), coded);
    }
}
