//! How two ends of a link agree on the version of their protocol.
//!
//! ```
//! use wire::hello::{Hello, HelloAnswer};
//! use wire::{Reader, VersionRange};
//!
//! const PURPOSE: [u8; 8] = *b"HDLEXMPL";
//! const OURS: VersionRange = VersionRange::new(2, 4);
//! let theirs = VersionRange::new(1, 3);
//!
//! // The end that opens the link says first what it speaks; the other end chooses.
//! let first = Hello { purpose: PURPOSE, versions: theirs }.encode();
//! let hello = Hello::read(&mut Reader::new(&first[..]), PURPOSE).expect("it was just encoded");
//! let chosen = OURS.choose(hello.versions).expect("both speak 2 and 3");
//! let answer = HelloAnswer::accept(OURS, chosen).encode();
//! let answer = HelloAnswer::read(&mut Reader::new(&answer[..])).expect("it was just encoded");
//! assert_eq!(answer.chosen_by(theirs), Ok(3));
//!
//! let old = VersionRange::new(1, 1);
//! let refusal = HelloAnswer::refuse(OURS).chosen_by(old).expect_err("they share none");
//! assert_eq!(
//!     refusal.to_string(),
//!     "this side speaks version 1 and the other side versions 2 to 4: upgrade this side, which is older",
//! );
//! ```
//!
//! ```text
//!  hello   purpose 8 bytes | oldest u32 | newest u32
//!  answer  chosen u32, 0 for none | oldest u32 | newest u32
//! ```
//!
//! 1. The end that opens a link sends a [`Hello`]: what the link is for, and the oldest and the newest version that it
//!    speaks. Every version of a protocol that uses the hello begins in this way; the bytes after the hello may differ
//!    between versions.
//! 2. The other end reads these 16 bytes, and nothing after them until it knows that the ranges overlap. It chooses the
//!    newest version that both speak.
//! 3. Its answer holds the chosen version and its own range. If the ranges do not overlap, the answer refuses, and the
//!    link ends; each end then knows both ranges, and which end is older.
//! 4. The first end checks that the chosen version is one that it speaks.
//!
//! Neither end needs memory beyond these fixed sizes. The bytes are not authenticated here: a handshake that proves
//! identities includes both hellos in what it proves, so that an attacker cannot talk two ends into an older version.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::fmt;

use crate::{Input, Malformed, Reader, array};

/// Bytes of a [`Hello`].
pub const HELLO_BYTES: usize = 16;
/// Bytes of a [`HelloAnswer`].
pub const ANSWER_BYTES: usize = 12;

/// The versions of a protocol that one side speaks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VersionRange {
    oldest: u32,
    newest: u32,
}

impl VersionRange {
    /// The versions from `oldest` to `newest`, both included.
    ///
    /// # Panics
    /// If there is none, or one is 0, which no version is.
    pub const fn new(oldest: u32, newest: u32) -> VersionRange {
        assert!(0 < oldest && oldest <= newest, "a range of versions has one at least, and none is 0");
        VersionRange { oldest, newest }
    }

    /// The only version that a program speaks.
    ///
    /// # Panics
    /// If it is 0.
    pub const fn only(version: u32) -> VersionRange {
        VersionRange::new(version, version)
    }

    /// The oldest version.
    pub const fn oldest(self) -> u32 {
        self.oldest
    }

    /// The newest version.
    pub const fn newest(self) -> u32 {
        self.newest
    }

    /// Whether a version is one of these.
    pub const fn contains(self, version: u32) -> bool {
        self.oldest <= version && version <= self.newest
    }

    /// The newest version of both.
    ///
    /// # Errors
    /// [`VersionMismatch`] if no version is in both ranges.
    pub const fn choose(self, theirs: VersionRange) -> Result<u32, VersionMismatch> {
        let newest = if self.newest < theirs.newest { self.newest } else { theirs.newest };
        if self.contains(newest) && theirs.contains(newest) {
            return Ok(newest);
        }
        Err(VersionMismatch { ours: self, theirs })
    }

    /// The range in eight bytes: the oldest, the newest.
    pub fn encode(self) -> [u8; 8] {
        array(|writer| {
            writer.u32(self.oldest).u32(self.newest);
        })
    }

    /// Reads a range.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are no range of versions.
    pub fn read<I: Input>(reader: &mut Reader<I>) -> Result<VersionRange, Malformed> {
        let at = reader.at();
        let (oldest, newest) = (reader.u32()?, reader.u32()?);
        match 0 < oldest && oldest <= newest {
            true => Ok(VersionRange { oldest, newest }),
            false => Err(Malformed { what: "not a range of versions", at }),
        }
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.oldest == self.newest {
            true => write!(f, "version {}", self.newest),
            false => write!(f, "versions {} to {}", self.oldest, self.newest),
        }
    }
}

/// The two sides of a link share no version of its protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "this side speaks {ours} and the other side {theirs}: upgrade {} side, which is older",
    if self.is_ours_older() { "this" } else { "the other" }
)]
pub struct VersionMismatch {
    /// What this side speaks.
    pub ours: VersionRange,
    /// What the other side speaks.
    pub theirs: VersionRange,
}

impl VersionMismatch {
    /// Whether this side is the older one.
    pub const fn is_ours_older(self) -> bool {
        self.ours.newest < self.theirs.oldest
    }
}

/// The first bytes of the end that opens a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// What the link is for: a constant of the protocol that no other protocol has.
    pub purpose: [u8; 8],
    /// What this end speaks.
    pub versions: VersionRange,
}

impl Hello {
    /// The bytes.
    pub fn encode(self) -> [u8; HELLO_BYTES] {
        array(|writer| {
            writer.put(&self.purpose).put(&self.versions.encode());
        })
    }

    /// Reads a hello of the protocol `purpose`; what follows it stays in the reader.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are of another protocol, or hold no range of versions.
    pub fn read<I: Input>(reader: &mut Reader<I>, purpose: [u8; 8]) -> Result<Hello, Malformed> {
        reader.expect(&purpose, "the other side does not speak this protocol")?;
        Ok(Hello { purpose, versions: VersionRange::read(reader)? })
    }
}

/// The answer to a [`Hello`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HelloAnswer {
    /// The version that the link has from here on; `None` if the ranges do not overlap.
    chosen: Option<u32>,
    /// What the answering end speaks.
    versions: VersionRange,
}

impl HelloAnswer {
    /// The version of `versions` that the link has.
    ///
    /// # Panics
    /// If it is none of them: a version is chosen by [`VersionRange::choose`].
    pub fn accept(versions: VersionRange, chosen: u32) -> HelloAnswer {
        assert!(versions.contains(chosen), "a side chooses a version that it speaks");
        HelloAnswer { chosen: Some(chosen), versions }
    }

    /// A refusal by a side that speaks `versions`.
    pub const fn refuse(versions: VersionRange) -> HelloAnswer {
        HelloAnswer { chosen: None, versions }
    }

    /// The answer of a side that speaks `ours` to one that speaks `theirs`.
    pub fn to(ours: VersionRange, theirs: VersionRange) -> HelloAnswer {
        HelloAnswer { chosen: ours.choose(theirs).ok(), versions: ours }
    }

    /// Whether the answering side refuses.
    pub const fn is_refusal(&self) -> bool {
        self.chosen.is_none()
    }

    /// What the answering side speaks.
    pub const fn versions(&self) -> VersionRange {
        self.versions
    }

    /// The version of the link, for the side that said in its hello that it speaks `ours`. A version that this side does not
    /// speak counts as a refusal, whatever the answer says.
    ///
    /// # Errors
    /// [`VersionMismatch`] if the other side refuses.
    pub fn chosen_by(&self, ours: VersionRange) -> Result<u32, VersionMismatch> {
        match self.chosen {
            Some(version) if ours.contains(version) => Ok(version),
            _ => Err(VersionMismatch { ours, theirs: self.versions }),
        }
    }

    /// The bytes.
    pub fn encode(self) -> [u8; ANSWER_BYTES] {
        array(|writer| {
            writer.u32(self.chosen.unwrap_or(0)).put(&self.versions.encode());
        })
    }

    /// Reads an answer; what follows it stays in the reader.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes hold no range of versions, or the chosen version is outside it.
    pub fn read<I: Input>(reader: &mut Reader<I>) -> Result<HelloAnswer, Malformed> {
        let at = reader.at();
        let (chosen, versions) = (reader.u32()?, VersionRange::read(reader)?);
        match chosen {
            0 => Ok(HelloAnswer { chosen: None, versions }),
            chosen if versions.contains(chosen) => Ok(HelloAnswer { chosen: Some(chosen), versions }),
            _ => Err(Malformed { what: "a version is chosen that the answering side does not speak", at }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PURPOSE: [u8; 8] = *b"HDLTESTS";

    #[test]
    fn a_hello_and_its_answer_have_the_documented_layout() {
        let hello = Hello { purpose: PURPOSE, versions: VersionRange::new(2, 0x0103) };
        assert_eq!(hello.encode(), *b"HDLTESTS\x02\0\0\0\x03\x01\0\0");
        assert_eq!(HelloAnswer::accept(hello.versions, 3).encode(), [3, 0, 0, 0, 2, 0, 0, 0, 3, 1, 0, 0]);
        assert_eq!(HelloAnswer::refuse(hello.versions).encode(), [0, 0, 0, 0, 2, 0, 0, 0, 3, 1, 0, 0]);
    }

    #[test]
    fn the_examples_of_the_document_are_the_golden_bytes() {
        let document = include_str!("../../../docs/formats/hello.md");
        let (nodes, newer) = (VersionRange::new(2, 3), VersionRange::only(4));
        let hello = Hello { purpose: *b"HDLRPOOL", versions: VersionRange::new(1, 3) };
        let examples = [
            &hello.encode()[..],
            &HelloAnswer::to(nodes, hello.versions).encode(),
            &HelloAnswer::refuse(newer).encode(),
        ];
        for example in examples {
            let groups = if example.len() == HELLO_BYTES { example.split_at(8) } else { example.split_at(0) };
            let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
            let parts = [groups.0].into_iter().chain(groups.1.chunks(4)).filter(|part| !part.is_empty());
            let shown = parts.map(hex).collect::<Vec<_>>().join("  ");
            assert!(document.contains(&shown), "{shown} is missing in docs/formats/hello.md");
        }
    }

    #[test]
    fn the_newest_version_of_both_is_chosen() {
        for (ours, theirs, chosen) in [
            ((1, 1), (1, 1), Some(1)),
            ((1, 3), (2, 5), Some(3)),
            ((2, 5), (1, 3), Some(3)),
            ((1, 9), (4, 4), Some(4)),
            ((4, 4), (1, 9), Some(4)),
            ((1, 2), (2, 3), Some(2)),
            ((1, 2), (3, 4), None),
            ((3, 4), (1, 2), None),
        ] {
            let (ours, theirs) = (VersionRange::new(ours.0, ours.1), VersionRange::new(theirs.0, theirs.1));
            assert_eq!(ours.choose(theirs).ok(), chosen, "{ours} and {theirs}");
            assert_eq!(HelloAnswer::to(ours, theirs).chosen_by(theirs).ok(), chosen);
        }
    }

    #[test]
    fn a_refusal_says_which_side_is_older_on_both_sides() {
        let (old, new) = (VersionRange::only(1), VersionRange::new(2, 3));
        let at_old = HelloAnswer::to(new, old).chosen_by(old).expect_err("they share none");
        let at_new = HelloAnswer::to(old, new).chosen_by(new).expect_err("they share none");
        assert!(at_old.is_ours_older() && !at_new.is_ours_older());
        assert!(at_old.to_string().ends_with("upgrade this side, which is older"), "{at_old}");
        assert!(at_new.to_string().ends_with("upgrade the other side, which is older"), "{at_new}");
    }

    #[test]
    fn a_version_that_was_not_offered_is_a_refusal() {
        let answer = HelloAnswer::accept(VersionRange::new(1, 9), 7);
        assert!(answer.chosen_by(VersionRange::new(1, 6)).is_err());
    }

    #[test]
    fn garbage_is_malformed() {
        let mut bytes = Hello { purpose: PURPOSE, versions: VersionRange::new(1, 2) }.encode();
        assert!(Hello::read(&mut Reader::new(&bytes[..15]), PURPOSE).is_err(), "cut off");
        assert!(Hello::read(&mut Reader::new(&bytes[..]), *b"HDLOTHER").is_err(), "another protocol");
        bytes[8] = 3;
        assert!(Hello::read(&mut Reader::new(&bytes[..]), PURPOSE).is_err(), "from 3 to 2");
        bytes[8] = 0;
        assert!(Hello::read(&mut Reader::new(&bytes[..]), PURPOSE).is_err(), "version 0");
        let answer = [4, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0];
        assert!(HelloAnswer::read(&mut Reader::new(&answer[..])).is_err(), "4 is not in 1 to 3");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_hello_that_encodes_to_them_or_refused(input in prop::collection::vec(0_u8..4, 0..20)) {
            crate::fuzz::hello(&input);
        }

        #[test]
        fn two_ends_agree(a in 1_u32..9, b in 0_u32..9, c in 1_u32..9, d in 0_u32..9) {
            let (ours, theirs) = (VersionRange::new(a, a + b), VersionRange::new(c, c + d));
            let shared = (1..20).rev().find(|version| ours.contains(*version) && theirs.contains(*version));
            prop_assert_eq!(ours.choose(theirs).ok(), shared);
            prop_assert_eq!(theirs.choose(ours).ok(), shared);
        }
    }
}
