//! The messages of both directions, and their bytes (`docs/formats/page-coherence.md`).
//!
//! A message has a head, which the state machines make and read, and a body of bytes of memory, which the shim around them
//! appends and applies: a page, a difference, or the bytes of a range.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::Bytes;
use wire::{Malformed, Reader, Writer};

use crate::diff::DIFF_BYTES_MAX;
use crate::mode::CoherenceMode;
use crate::page::{Access, CallId, PAGE_BYTES, PAGE_NUMBERS, PageBytes, PageNumber, Right};
use crate::page_list::PageList;

/// What of a page's contents a message carries as its body.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Payload {
    /// Nothing.
    None,
    /// All bytes of the page.
    Page,
    /// The page's difference from its twin ([`crate::diff()`]).
    Diff,
}

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CallOutcome {
    /// The function returned.
    Done,
    /// The executor ended the function: what it wrote is incomplete. The reply lists the pages.
    Killed,
    /// The queue was full: the function has not run.
    Busy,
    /// The call was cancelled before it ran.
    Cancelled,
}

/// From the caller to the executor.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ToExecutor {
    /// Run a function; the body says which, and is the shim's.
    Call {
        /// The call.
        call: CallId,
        /// How coherent it is.
        mode: CoherenceMode,
        /// The caller's resident pages and outstanding faults.
        resident: PageList,
    },
    /// Remove the call from the queue.
    Cancel(CallId),
    /// A thread of the caller needs a page.
    Fetch {
        /// The page.
        page: PageNumber,
        /// For what.
        access: Access,
        /// Whether the caller has its newest contents.
        holds: bool,
    },
    /// The caller sends contents of a page home, or says that it dropped the page.
    Home {
        /// The page.
        page: PageNumber,
        /// The right that the caller keeps.
        left: Right,
        /// The contents.
        payload: Payload,
    },
    /// The answer to [`ToCaller::Request`].
    Answer {
        /// The page.
        page: PageNumber,
        /// The right that the caller keeps.
        left: Right,
        /// The contents, if pool memory does not have them.
        payload: Payload,
    },
    /// The caller's program dropped the contents of pages: they read as zeros from now on, and the caller has them.
    Discard {
        /// The first page.
        first: PageNumber,
        /// How many: at least one.
        count: u64,
    },
    /// With coherence off: what the caller has written to the bytes of a range, as a difference.
    Push(PageBytes),
    /// With coherence off: the caller asks for bytes.
    Pull(PageBytes),
}

/// From the executor to the caller.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ToCaller {
    /// The answer to [`ToExecutor::Fetch`].
    Grant {
        /// The page.
        page: PageNumber,
        /// What the caller may do now.
        access: Access,
        /// The contents, if the caller does not have them.
        payload: Payload,
    },
    /// A thread of the executor needs a page that the caller may have.
    Request {
        /// The page.
        page: PageNumber,
        /// For what.
        access: Access,
    },
    /// A call has ended; the body is the function's result.
    Reply {
        /// The call.
        call: CallId,
        /// How it ended.
        outcome: CallOutcome,
        /// Pages of which the caller must drop old copies; after [`CallOutcome::Killed`] the pages that may be incomplete.
        written: PageList,
    },
    /// The answer to [`ToExecutor::Cancel`].
    CancelAnswer {
        /// The call.
        call: CallId,
        /// Whether it was removed; otherwise it runs or has ended.
        removed: bool,
    },
    /// With shared writes: pages that the executor wrote before a synchronisation point.
    Written(PageList),
    /// The answer to [`ToExecutor::Pull`].
    Pulled(PageBytes),
}

const CALL: u8 = 1;
const CANCEL: u8 = 2;
const FETCH: u8 = 3;
const HOME: u8 = 4;
const ANSWER: u8 = 5;
const PUSH: u8 = 6;
const PULL: u8 = 7;
const DISCARD: u8 = 8;
const GRANT: u8 = 0x81;
const REQUEST: u8 = 0x82;
const REPLY: u8 = 0x83;
const CANCEL_ANSWER: u8 = 0x84;
const WRITTEN: u8 = 0x85;
const PULLED: u8 = 0x86;

/// Kind, three flags, and the number of a page or a call.
fn head(kind: u8, flags: [u8; 3], number: u64) -> Writer {
    let mut writer = Writer::with_capacity(32);
    writer.u8(kind).put(&flags).u64(number);
    writer
}

impl ToExecutor {
    /// The head of the message; the body follows.
    pub fn encode(&self) -> Bytes {
        match self {
            ToExecutor::Call { call, mode, resident } => {
                let mut writer = head(CALL, [mode.number(), 0, 0], call.0);
                resident.write(&mut writer);
                writer.done()
            }
            ToExecutor::Cancel(call) => head(CANCEL, [0; 3], call.0).done(),
            ToExecutor::Fetch { page, access, holds } => {
                head(FETCH, [*access as u8, u8::from(*holds), 0], page.0).done()
            }
            ToExecutor::Home { page, left, payload } => head(HOME, [*left as u8, *payload as u8, 0], page.0).done(),
            ToExecutor::Answer { page, left, payload } => head(ANSWER, [*left as u8, *payload as u8, 0], page.0).done(),
            ToExecutor::Discard { first, count } => head(DISCARD, [0; 3], first.0).u64(*count).done(),
            ToExecutor::Push(range) => put_range(PUSH, *range),
            ToExecutor::Pull(range) => put_range(PULL, *range),
        }
    }

    /// The message, and its body.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not the only encoding of a message, or the body has a size that the head forbids.
    pub fn decode(bytes: Bytes) -> Result<(ToExecutor, Bytes), Malformed> {
        let mut reader = Reader::new(bytes);
        let (kind, flags) = read_kind(&mut reader)?;
        let (message, body) = match (kind, flags) {
            (CALL, [mode, 0, 0]) => {
                let mode = CoherenceMode::of_number(mode).ok_or_else(|| reader.malformed("unknown mode"))?;
                let call = CallId(reader.u64()?);
                let resident = PageList::read(&mut reader)?;
                return Ok((ToExecutor::Call { call, mode, resident }, reader.rest()));
            }
            (CANCEL, [0, 0, 0]) => (ToExecutor::Cancel(CallId(reader.u64()?)), Payload::None),
            (FETCH, [access, holds @ (0 | 1), 0]) => {
                let access = access_of(&reader, access)?;
                (ToExecutor::Fetch { page: read_page(&mut reader)?, access, holds: holds == 1 }, Payload::None)
            }
            (HOME | ANSWER, [left, payload, 0]) => {
                let (left, payload) = (right_of(&reader, left)?, payload_of(&reader, payload)?);
                let page = read_page(&mut reader)?;
                let message = match kind {
                    HOME => ToExecutor::Home { page, left, payload },
                    _ => ToExecutor::Answer { page, left, payload },
                };
                (message, payload)
            }
            (DISCARD, [0, 0, 0]) => {
                let (first, count) = (read_page(&mut reader)?, reader.u64()?);
                if count == 0 || count > PAGE_NUMBERS.saturating_sub(first.0) {
                    return Err(reader.malformed("a range of pages is empty, or ends behind the last page"));
                }
                (ToExecutor::Discard { first, count }, Payload::None)
            }
            (PUSH, [0, 0, 0]) => (ToExecutor::Push(read_range(&mut reader)?), Payload::Diff),
            (PULL, [0, 0, 0]) => (ToExecutor::Pull(read_range(&mut reader)?), Payload::None),
            _ => return Err(reader.malformed("unknown kind of message to the executor, or unknown flags")),
        };
        Ok((message, read_body(reader, body)?))
    }
}

impl ToCaller {
    /// Whether a message that begins with this byte is about a call alone, if its mode is coherent: no page is changed by it.
    pub fn is_about_a_call(first: u8) -> bool {
        matches!(first, REPLY | CANCEL_ANSWER)
    }

    /// The head of the message; the body follows.
    pub fn encode(&self) -> Bytes {
        match self {
            ToCaller::Grant { page, access, payload } => head(GRANT, [*access as u8, *payload as u8, 0], page.0).done(),
            ToCaller::Request { page, access } => head(REQUEST, [*access as u8, 0, 0], page.0).done(),
            ToCaller::Reply { call, outcome, written } => {
                let mut writer = head(REPLY, [*outcome as u8, 0, 0], call.0);
                written.write(&mut writer);
                writer.done()
            }
            ToCaller::CancelAnswer { call, removed } => head(CANCEL_ANSWER, [u8::from(*removed), 0, 0], call.0).done(),
            ToCaller::Written(pages) => {
                let mut writer = head(WRITTEN, [0; 3], 0);
                pages.write(&mut writer);
                writer.done()
            }
            ToCaller::Pulled(range) => put_range(PULLED, *range),
        }
    }

    /// The message, and its body.
    ///
    /// # Errors
    /// As [`ToExecutor::decode`].
    pub fn decode(bytes: Bytes) -> Result<(ToCaller, Bytes), Malformed> {
        let mut reader = Reader::new(bytes);
        let (kind, flags) = read_kind(&mut reader)?;
        let (message, body) = match (kind, flags) {
            (GRANT, [access, payload, 0]) => {
                let (access, payload) = (access_of(&reader, access)?, payload_of(&reader, payload)?);
                if payload == Payload::Diff {
                    return Err(reader.malformed("the executor has no twins"));
                }
                (ToCaller::Grant { page: read_page(&mut reader)?, access, payload }, payload)
            }
            (REQUEST, [access, 0, 0]) => {
                let access = access_of(&reader, access)?;
                (ToCaller::Request { page: read_page(&mut reader)?, access }, Payload::None)
            }
            (REPLY, [outcome, 0, 0]) => {
                let outcome = outcome_of(&reader, outcome)?;
                let call = CallId(reader.u64()?);
                let written = PageList::read(&mut reader)?;
                return Ok((ToCaller::Reply { call, outcome, written }, reader.rest()));
            }
            (CANCEL_ANSWER, [removed @ (0 | 1), 0, 0]) => {
                (ToCaller::CancelAnswer { call: CallId(reader.u64()?), removed: removed == 1 }, Payload::None)
            }
            (WRITTEN, [0, 0, 0]) => {
                reader.zeros(8)?;
                (ToCaller::Written(PageList::read(&mut reader)?), Payload::None)
            }
            (PULLED, [0, 0, 0]) => {
                let range = read_range(&mut reader)?;
                return Ok((ToCaller::Pulled(range), read_exactly(reader, usize::from(range.count))?));
            }
            _ => return Err(reader.malformed("unknown kind of message to the caller, or unknown flags")),
        };
        Ok((message, read_body(reader, body)?))
    }
}

fn read_kind(reader: &mut Reader<Bytes>) -> Result<(u8, [u8; 3]), Malformed> {
    Ok((reader.u8()?, reader.array()?))
}

fn read_page(reader: &mut Reader<Bytes>) -> Result<PageNumber, Malformed> {
    match reader.u64()? {
        page if page < PAGE_NUMBERS => Ok(PageNumber(page)),
        _ => Err(reader.malformed("a page lies behind the last page")),
    }
}

fn put_range(kind: u8, range: PageBytes) -> Bytes {
    head(kind, [0; 3], range.page.0).u16(range.offset).u16(range.count).done()
}

fn read_range(reader: &mut Reader<Bytes>) -> Result<PageBytes, Malformed> {
    let (page, offset, count) = (read_page(reader)?, reader.u16()?, reader.u16()?);
    let end = u64::from(offset).saturating_add(count.into());
    match count > 0 && end <= PAGE_BYTES {
        true => Ok(PageBytes { page, offset, count }),
        false => Err(reader.malformed("a range is empty, or ends behind its page")),
    }
}

fn access_of(reader: &Reader<Bytes>, number: u8) -> Result<Access, Malformed> {
    match number {
        0 => Ok(Access::Read),
        1 => Ok(Access::Write),
        _ => Err(reader.malformed("unknown access")),
    }
}

fn right_of(reader: &Reader<Bytes>, number: u8) -> Result<Right, Malformed> {
    let rights = [Right::None, Right::Read, Right::Write];
    rights.get(usize::from(number)).copied().ok_or_else(|| reader.malformed("unknown right"))
}

fn payload_of(reader: &Reader<Bytes>, number: u8) -> Result<Payload, Malformed> {
    let payloads = [Payload::None, Payload::Page, Payload::Diff];
    payloads.get(usize::from(number)).copied().ok_or_else(|| reader.malformed("unknown payload"))
}

fn outcome_of(reader: &Reader<Bytes>, number: u8) -> Result<CallOutcome, Malformed> {
    let outcomes = [CallOutcome::Done, CallOutcome::Killed, CallOutcome::Busy, CallOutcome::Cancelled];
    outcomes.get(usize::from(number)).copied().ok_or_else(|| reader.malformed("unknown outcome"))
}

fn read_body(reader: Reader<Bytes>, payload: Payload) -> Result<Bytes, Malformed> {
    match payload {
        Payload::None => read_exactly(reader, 0),
        Payload::Page => read_exactly(reader, PAGE_BYTES as usize),
        Payload::Diff if reader.left() > DIFF_BYTES_MAX => Err(reader.malformed("a difference is too long")),
        Payload::Diff => {
            let mut reader = reader;
            Ok(reader.rest())
        }
    }
}

fn read_exactly(mut reader: Reader<Bytes>, bytes: usize) -> Result<Bytes, Malformed> {
    let body = reader.bytes(bytes)?;
    reader.end()?;
    Ok(body)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::{from_caller, from_executor, samples};

    #[test]
    fn messages_have_the_documented_layout() {
        let fetch = ToExecutor::Fetch { page: PageNumber(0x1234), access: Access::Write, holds: true };
        assert_eq!(fetch.encode()[..], [3, 1, 1, 0, 0x34, 0x12, 0, 0, 0, 0, 0, 0]);
        let push = ToExecutor::Push(PageBytes { page: PageNumber(9), offset: 16, count: 8 });
        assert_eq!(push.encode()[..], [6, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 16, 0, 8, 0]);
        let discard = ToExecutor::Discard { first: PageNumber(0x1234), count: 300 };
        let bytes = discard.encode();
        assert_eq!(bytes[..], [8, 0, 0, 0, 0x34, 0x12, 0, 0, 0, 0, 0, 0, 0x2c, 1, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_discard_lies_below_the_last_page_and_is_not_empty() {
        let decoded =
            |first, count| ToExecutor::decode(ToExecutor::Discard { first: PageNumber(first), count }.encode());
        assert!(decoded(PAGE_NUMBERS - 1, 1).is_ok() && decoded(0, PAGE_NUMBERS).is_ok());
        for (first, count) in [(5, 0), (PAGE_NUMBERS, 1), (PAGE_NUMBERS - 1, 2), (1, u64::MAX)] {
            assert!(decoded(first, count).is_err(), "{count} pages from {first} on");
        }
    }

    #[test]
    fn every_message_decodes_to_itself_and_no_prefix_of_it_decodes() {
        for sample in samples() {
            let bytes = Bytes::from(sample);
            let is_to_executor = bytes[0] < 0x80;
            assert_eq!(ToExecutor::decode(bytes.clone()).is_ok(), is_to_executor);
            assert_eq!(ToCaller::decode(bytes.clone()).is_ok(), !is_to_executor);
            from_caller(&bytes);
            from_executor(&bytes);
            for end in 0..12 {
                let prefix = bytes.slice(..end);
                assert!(ToExecutor::decode(prefix.clone()).is_err() && ToCaller::decode(prefix).is_err());
            }
        }
    }

    proptest! {
        #[test]
        fn changed_messages_are_the_only_encoding_or_malformed(number: prop::sample::Index, at: prop::sample::Index, byte: u8) {
            let mut bytes = number.get(&samples()).clone();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            from_caller(&bytes);
            from_executor(&bytes);
        }
    }
}
