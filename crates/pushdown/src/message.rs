//! The messages beside those of the coherence protocol.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::num::NonZeroU32;

use base::Bytes;
use page_coherence::CallId;
use wire::{Malformed, Reader, Writer};

use crate::ring::Frame;

/// A message of [`page_coherence`], in both directions.
const COHERENCE: u32 = 1;
const START: u32 = 2;
const MAPPING: u32 = 3;
const PAGES: u32 = 4;
const RETURNED: u32 = 5;
const UNMAPPED: u32 = 6;
const PROTECTED: u32 = 7;
const PING: u32 = 8;
const MAPPING_WANTED: u32 = 0x102;
const PAGES_WANTED: u32 = 0x103;
const SYSTEM_CALL: u32 = 0x104;
const ENDED: u32 = 0x105;
const PONG: u32 = 0x106;

/// With what a function begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registers {
    /// The address of the function, which takes one pointer.
    pub function: u64,
    /// The pointer.
    pub argument: u64,
    /// The stack pointer: a multiple of 16.
    pub stack: u64,
    /// The address of the thread block (`fs`).
    pub thread_block: u64,
    /// Control and status of the vector unit (`mxcsr`).
    pub vector_control: u32,
    /// The control word of the floating-point unit.
    pub float_control: u32,
}

/// What lies at an address of the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MappingKind {
    /// Nothing that the executor may have.
    Refused,
    /// Memory whose pages the coherence protocol moves.
    Ordinary,
    /// Memory that nobody writes.
    Constant,
}

/// [`Ended::signal`] of a function that has called `exit`. What has to be done at the exit is the caller's.
pub const EXITS: u32 = u32::MAX;

/// The number of the system call, which no kernel has, by which a function says so. Its argument is the exit status.
pub const EXIT_CALL: u64 = 0x4845_4444;

/// The number of the system call, which no kernel has, by which a function synchronises: `heddle_syncmem`.
pub const SYNCHRONISE_CALL: u64 = 0x4845_4445;

/// How a function ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ended {
    /// The signal that ended it; 0 if it returned, or was ended by its limit; [`EXITS`] if it wants the process to exit.
    pub signal: u32,
    /// The signal's code (`si_code`), or the exit status.
    pub code: i32,
    /// The address of the access, or 0.
    pub address: u64,
    /// The address of the instruction, also of one that the limit has found.
    pub instruction: u64,
}

/// When the executor did something for a call, in cycles of the clock that both sides have. For measurements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stamps {
    /// It handled the message that starts the function.
    pub handled: u64,
    /// The function began.
    pub begun: u64,
    /// The function returned, or was ended.
    pub returned: u64,
    /// How many of the cycles in between the function waited for pages and mappings.
    pub waited: u64,
}

/// From the caller to the executor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToExecutor {
    /// A message of the coherence protocol.
    Coherence(Bytes),
    /// With what the function of a call begins, and for how many milliseconds it may run, if there is a limit; the coherence protocol's
    /// call follows.
    Start(CallId, Registers, Option<NonZeroU32>),
    /// What lies at `wanted`.
    Mapping {
        /// The address that was asked for.
        wanted: u64,
        /// The first address of the mapping.
        start: u64,
        /// The address behind it.
        end: u64,
        /// `PROT_*`.
        protection: u32,
        /// What it is.
        kind: MappingKind,
    },
    /// Pages of constant memory, from this address on.
    Pages(u64, Bytes),
    /// What a system call returned.
    Returned(CallId, i64),
    /// Memory of the caller was unmapped: from the first address to the second one. Its pages were discarded before.
    Unmapped(u64, u64),
    /// Memory of the caller has another protection (`PROT_*`).
    Protected {
        /// The first address.
        start: u64,
        /// The address behind it.
        end: u64,
        /// `PROT_*`.
        protection: u32,
    },
    /// A question whether the executor's service thread is there, with the question's number.
    Ping(u64),
}

/// From the executor to the caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToCaller {
    /// A message of the coherence protocol.
    Coherence(Bytes),
    /// What lies at this address?
    MappingWanted(u64),
    /// Pages of constant memory from this address on; at least the first.
    PagesWanted(u64),
    /// The function of a call makes a system call.
    SystemCall(CallId, u64, [u64; 6]),
    /// A function has ended, and when it did what; the coherence protocol's reply follows.
    Ended(CallId, Ended, Stamps),
    /// The service thread's answer to the ping with this number.
    Pong(u64),
}

/// Whether a message to the caller, by its kind and the first of its bytes, is about memory, rather than about a call.
pub(crate) fn is_about_memory(kind: u32, first: Option<u8>) -> bool {
    match kind {
        SYSTEM_CALL | ENDED | PONG => false,
        COHERENCE => !first.is_some_and(page_coherence::ToCaller::is_about_a_call),
        _ => true,
    }
}

impl MappingKind {
    const ALL: [MappingKind; 3] = [MappingKind::Refused, MappingKind::Ordinary, MappingKind::Constant];
}

impl ToExecutor {
    /// As a frame. The body of a coherence message follows it.
    pub(crate) fn encode(&self) -> (u32, Bytes) {
        let mut writer = Writer::with_capacity(64);
        let kind = match self {
            ToExecutor::Coherence(head) => return (COHERENCE, head.clone()),
            ToExecutor::Start(call, registers, limit) => {
                let Registers { function, argument, stack, thread_block, vector_control, float_control } = *registers;
                writer.u64(call.0).u64(function).u64(argument).u64(stack).u64(thread_block);
                writer.u32(vector_control).u32(float_control).u32(limit.map_or(0, NonZeroU32::get));
                START
            }
            ToExecutor::Mapping { wanted, start, end, protection, kind } => {
                writer.u64(*wanted).u64(*start).u64(*end).u32(*protection).u32(*kind as u32);
                MAPPING
            }
            ToExecutor::Pages(first, pages) => {
                writer.u64(*first).put(pages);
                PAGES
            }
            ToExecutor::Returned(call, value) => {
                writer.u64(call.0).u64(*value as u64);
                RETURNED
            }
            ToExecutor::Unmapped(start, end) => {
                writer.u64(*start).u64(*end);
                UNMAPPED
            }
            ToExecutor::Protected { start, end, protection } => {
                writer.u64(*start).u64(*end).u32(*protection);
                PROTECTED
            }
            ToExecutor::Ping(number) => {
                writer.u64(*number);
                PING
            }
        };
        (kind, writer.done())
    }

    /// Of a frame.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(frame: Frame) -> Result<ToExecutor, Malformed> {
        if frame.kind == COHERENCE {
            return Ok(ToExecutor::Coherence(frame.bytes));
        }
        let mut reader = Reader::new(frame.bytes);
        let message = match frame.kind {
            START => {
                let call = CallId(reader.u64()?);
                let (function, argument, stack, thread_block) =
                    (reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?);
                let (vector_control, float_control) = (reader.u32()?, reader.u32()?);
                let registers = Registers { function, argument, stack, thread_block, vector_control, float_control };
                ToExecutor::Start(call, registers, NonZeroU32::new(reader.u32()?))
            }
            MAPPING => {
                let (wanted, start, end, protection) = (reader.u64()?, reader.u64()?, reader.u64()?, reader.u32()?);
                let kind = MappingKind::ALL.get(reader.u32()? as usize);
                let kind = *kind.ok_or_else(|| reader.malformed("unknown kind of mapping"))?;
                ToExecutor::Mapping { wanted, start, end, protection, kind }
            }
            PAGES => {
                let first = reader.u64()?;
                return Ok(ToExecutor::Pages(first, reader.rest()));
            }
            RETURNED => ToExecutor::Returned(CallId(reader.u64()?), reader.u64()? as i64),
            UNMAPPED => ToExecutor::Unmapped(reader.u64()?, reader.u64()?),
            PROTECTED => ToExecutor::Protected { start: reader.u64()?, end: reader.u64()?, protection: reader.u32()? },
            PING => ToExecutor::Ping(reader.u64()?),
            _ => return Err(reader.malformed("unknown kind of message to the executor")),
        };
        reader.end()?;
        Ok(message)
    }
}

impl ToCaller {
    /// As a frame. The body of a coherence message follows it.
    pub(crate) fn encode(&self) -> (u32, Bytes) {
        let mut writer = Writer::with_capacity(80);
        let kind = match self {
            ToCaller::Coherence(head) => return (COHERENCE, head.clone()),
            ToCaller::MappingWanted(address) => {
                writer.u64(*address);
                MAPPING_WANTED
            }
            ToCaller::PagesWanted(address) => {
                writer.u64(*address);
                PAGES_WANTED
            }
            ToCaller::SystemCall(call, number, arguments) => {
                writer.u64(call.0).u64(*number);
                for argument in arguments {
                    writer.u64(*argument);
                }
                SYSTEM_CALL
            }
            ToCaller::Ended(call, ended, stamps) => {
                let Stamps { handled, begun, returned, waited } = *stamps;
                writer.u64(call.0).u32(ended.signal).u32(ended.code as u32).u64(ended.address).u64(ended.instruction);
                writer.u64(handled).u64(begun).u64(returned).u64(waited);
                ENDED
            }
            ToCaller::Pong(number) => {
                writer.u64(*number);
                PONG
            }
        };
        (kind, writer.done())
    }

    /// Of a frame.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(frame: Frame) -> Result<ToCaller, Malformed> {
        if frame.kind == COHERENCE {
            return Ok(ToCaller::Coherence(frame.bytes));
        }
        let mut reader = Reader::new(frame.bytes);
        let message = match frame.kind {
            MAPPING_WANTED => ToCaller::MappingWanted(reader.u64()?),
            PAGES_WANTED => ToCaller::PagesWanted(reader.u64()?),
            SYSTEM_CALL => {
                let (call, number) = (CallId(reader.u64()?), reader.u64()?);
                let mut arguments = [0; 6];
                for argument in &mut arguments {
                    *argument = reader.u64()?;
                }
                ToCaller::SystemCall(call, number, arguments)
            }
            ENDED => {
                let call = CallId(reader.u64()?);
                let (signal, code) = (reader.u32()?, reader.u32()? as i32);
                let (address, instruction) = (reader.u64()?, reader.u64()?);
                let (handled, begun, returned, waited) = (reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?);
                let stamps = Stamps { handled, begun, returned, waited };
                ToCaller::Ended(call, Ended { signal, code, address, instruction }, stamps)
            }
            PONG => ToCaller::Pong(reader.u64()?),
            _ => return Err(reader.malformed("unknown kind of message to the caller")),
        };
        reader.end()?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_decode_to_themselves_and_prefixes_do_not_decode() {
        let call = CallId(7);
        let registers =
            Registers { function: 1, argument: 2, stack: 3, thread_block: 4, vector_control: 5, float_control: 6 };
        let kind = MappingKind::Constant;
        for message in [
            ToExecutor::Start(call, registers, None),
            ToExecutor::Start(call, registers, NonZeroU32::new(9)),
            ToExecutor::Ping(8),
            ToExecutor::Mapping { wanted: 1, start: 2, end: 3, protection: 4, kind },
            ToExecutor::Returned(call, -14),
            ToExecutor::Unmapped(5, 6),
            ToExecutor::Protected { start: 7, end: 8, protection: 1 },
        ] {
            let (kind, bytes) = message.encode();
            assert_eq!(ToExecutor::decode(Frame { kind, bytes: bytes.clone() }).expect("well-formed"), message);
            for end in 0..bytes.len() {
                assert!(ToExecutor::decode(Frame { kind, bytes: bytes.slice(..end) }).is_err());
            }
        }
        let ended = Ended { signal: 11, code: -2, address: 3, instruction: 4 };
        let stamps = Stamps { handled: 5, begun: 6, returned: 7, waited: 8 };
        for message in [
            ToCaller::MappingWanted(1),
            ToCaller::PagesWanted(2),
            ToCaller::SystemCall(call, 3, [1, 2, 3, 4, 5, 6]),
            ToCaller::Ended(call, ended, stamps),
            ToCaller::Pong(8),
        ] {
            let (kind, bytes) = message.encode();
            assert_eq!(ToCaller::decode(Frame { kind, bytes: bytes.clone() }).expect("well-formed"), message);
            for end in 0..bytes.len() {
                assert!(ToCaller::decode(Frame { kind, bytes: bytes.slice(..end) }).is_err());
            }
            assert!(ToExecutor::decode(Frame { kind, bytes }).is_err());
        }
    }
}
