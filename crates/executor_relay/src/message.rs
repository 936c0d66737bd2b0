//! The messages between both ends.
//!
//! ```text
//! hello      kind u8 = 1 | process u32 | memory pages u64 | name (text) | the program's hello to the role
//! started    kind u8 = 2 | process u32
//! refused    kind u8 = 3 | reason (text)
//! state      kind u8 = 4 | state u8 | error u32 | step u32
//! load       kind u8 = 5 | running u32 | waiting u32 | queued ns u64 | begun u64 | ended, 5 × u64
//! frames     kind u8 = 6 | 0 × 3 | frames: length u32 | kind u32 | bytes
//! ended      kind u8 = 7 | reason (text)
//! ```
//!
//! The state is 0 for *starting*, 1 for *ready*, 2 for *failed*, which alone has an error and a step.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::Bytes;
use base::rt::net::GatherList;
use pushdown::{
    CallEnd, CallLoad, ELSEWHERE_NAME_BYTES_MAX, ExecutorState, FRAME_BYTES_MAX, Frame, NO_KIND, REQUEST_BYTES_MAX,
};
use wire::{Malformed, Reader, Writer, beginning};

const HELLO: u8 = 1;
const STARTED: u8 = 2;
const REFUSED: u8 = 3;
const STATE: u8 = 4;
const LOAD: u8 = 5;
const FRAMES: u8 = 6;
const ENDED: u8 = 7;

/// Bytes of frames after which an end takes no more of them into a message.
pub(crate) const FRAMES_BYTES: usize = 128 << 10;
/// Most frames of a message.
pub(crate) const FRAMES_MAX: usize = 4096;
/// Bytes of a message, at most: one frame may come on top of the others.
pub const MESSAGE_BYTES_MAX: usize = FRAMES_BYTES + FRAME_BYTES_MAX + 8 * FRAMES_MAX + 4;
/// Bytes of a reason.
const REASON_BYTES_MAX: usize = 1000;
/// Bytes of a frame's head.
const FRAME_HEAD_BYTES: usize = 8;

/// A message of the relay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RelayMessage {
    /// A program wants an executor.
    Hello {
        /// Its process at its host.
        process: u32,
        /// How many pages the executor is to keep in memory, at most; 0: as many as the role lets it.
        memory_pages: u64,
        /// What it is called there.
        name: String,
        /// What it has sent: a `RoleRequest`.
        request: Bytes,
    },
    /// Its executor has started, as this process of its host.
    Started(u32),
    /// There is none, for this reason.
    Refused(String),
    /// How far the executor is.
    State(ExecutorState),
    /// What the executor says of its calls.
    Load(CallLoad),
    /// Frames of the area, in order.
    Frames(Vec<Frame>),
    /// The executor, or the program, has ended, for this reason.
    Ended(String),
}

impl RelayMessage {
    /// As a message, in parts.
    pub fn encode(&self) -> GatherList {
        let mut writer = Writer::with_capacity(64);
        match self {
            RelayMessage::Hello { process, memory_pages, name, request } => {
                writer
                    .u8(HELLO)
                    .u32(*process)
                    .u64(*memory_pages)
                    .text(beginning(name, ELSEWHERE_NAME_BYTES_MAX))
                    .put(request);
            }
            RelayMessage::Started(process) => {
                writer.u8(STARTED).u32(*process);
            }
            RelayMessage::Refused(reason) => {
                writer.u8(REFUSED).text(beginning(reason, REASON_BYTES_MAX));
            }
            RelayMessage::State(state) => {
                let (state, error, step) = match *state {
                    ExecutorState::Starting => (0, 0, 0),
                    ExecutorState::Ready => (1, 0, 0),
                    ExecutorState::Failed { error, step } => (2, error, step),
                };
                writer.u8(STATE).u8(state).u32(error).u32(step);
            }
            RelayMessage::Load(CallLoad { running, waiting, queued_ns, begun, ended }) => {
                writer.u8(LOAD).u32(*running).u32(*waiting).u64(*queued_ns).u64(*begun).u64s(*ended);
            }
            RelayMessage::Frames(frames) => return encode_frames(frames),
            RelayMessage::Ended(reason) => {
                writer.u8(ENDED).text(beginning(reason, REASON_BYTES_MAX));
            }
        }
        writer.done().into()
    }

    /// Of a message.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(message: Bytes) -> Result<RelayMessage, Malformed> {
        let mut reader = Reader::new(message);
        let message = match reader.u8()? {
            HELLO => {
                let (process, memory_pages) = (reader.u32()?, reader.u64()?);
                let name = reader.text(ELSEWHERE_NAME_BYTES_MAX)?;
                let request = reader.rest();
                if request.len() > REQUEST_BYTES_MAX {
                    return Err(reader.malformed("a hello that is too long"));
                }
                return Ok(RelayMessage::Hello { process, memory_pages, name, request });
            }
            STARTED => RelayMessage::Started(reader.u32()?),
            REFUSED => RelayMessage::Refused(reader.text(REASON_BYTES_MAX)?),
            STATE => {
                let (state, error, step) = (reader.u8()?, reader.u32()?, reader.u32()?);
                RelayMessage::State(match (state, error, step) {
                    (0, 0, 0) => ExecutorState::Starting,
                    (1, 0, 0) => ExecutorState::Ready,
                    (2, error, step) => ExecutorState::Failed { error, step },
                    _ => return Err(reader.malformed("unknown state of an executor")),
                })
            }
            LOAD => {
                let (running, waiting) = (reader.u32()?, reader.u32()?);
                let (queued_ns, begun) = (reader.u64()?, reader.u64()?);
                let mut ended = [0; CallEnd::COUNT];
                for count in &mut ended {
                    *count = reader.u64()?;
                }
                RelayMessage::Load(CallLoad { running, waiting, queued_ns, begun, ended })
            }
            FRAMES => RelayMessage::Frames(decode_frames(&mut reader)?),
            ENDED => RelayMessage::Ended(reader.text(REASON_BYTES_MAX)?),
            _ => return Err(reader.malformed("unknown kind of message")),
        };
        reader.end()?;
        Ok(message)
    }
}

fn encode_frames(frames: &[Frame]) -> GatherList {
    let mut parts = vec![Bytes::from_static(&[FRAMES, 0, 0, 0])];
    for Frame { kind, bytes } in frames {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let mut head = Writer::with_capacity(FRAME_HEAD_BYTES);
        head.u32(length).u32(*kind);
        parts.extend([head.done(), bytes.clone()]);
    }
    parts.into()
}

fn decode_frames(reader: &mut Reader<Bytes>) -> Result<Vec<Frame>, Malformed> {
    reader.zeros(3)?;
    let mut frames = Vec::new();
    let mut bytes_left = FRAMES_BYTES.saturating_add(FRAME_BYTES_MAX);
    while !reader.is_empty() {
        let (length, kind) = (reader.u32()? as usize, reader.u32()?);
        if length > FRAME_BYTES_MAX || length > bytes_left || frames.len() == FRAMES_MAX {
            return Err(reader.malformed("more than frames have"));
        }
        if kind == NO_KIND {
            return Err(reader.malformed("a frame of no kind"));
        }
        bytes_left = bytes_left.saturating_sub(length);
        frames.push(Frame { kind, bytes: reader.bytes(length)? });
    }
    Ok(frames)
}

/// One of each, for tests and as a beginning for fuzzing.
pub(crate) fn samples() -> Vec<RelayMessage> {
    let frame = |kind, bytes: &'static [u8]| Frame { kind, bytes: Bytes::from_static(bytes) };
    vec![
        RelayMessage::Hello {
            process: 7,
            memory_pages: 512,
            name: "analyse".to_owned(),
            request: pushdown::RoleRequest::hello(2).encode(),
        },
        RelayMessage::Started(8),
        RelayMessage::Refused("all places are taken".to_owned()),
        RelayMessage::State(ExecutorState::Ready),
        RelayMessage::State(ExecutorState::Failed { error: 13, step: 4 }),
        RelayMessage::Load(CallLoad { running: 1, waiting: 2, queued_ns: 3, begun: 4, ended: [5, 6, 7, 8, 9] }),
        RelayMessage::Frames(vec![frame(2, b"start"), frame(1, b""), frame(0x105, &[7; 40])]),
        RelayMessage::Ended("its memory was full".to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_decode_to_themselves() {
        for message in samples() {
            let bytes = message.encode().concat();
            assert_eq!(RelayMessage::decode(bytes.clone()).expect("well-formed"), message);
            let is_open_ended = matches!(message, RelayMessage::Hello { .. } | RelayMessage::Frames(_));
            for end in 0..bytes.len() {
                // A shorter one may have fewer frames, or less of a request.
                let cut = RelayMessage::decode(bytes.slice(..end));
                assert!(is_open_ended || cut.is_err(), "{message:?} cut to {end} bytes");
                assert_ne!(cut.ok(), Some(message.clone()));
            }
        }
        assert!(RelayMessage::decode(Bytes::new()).is_err());
        assert!(RelayMessage::decode(Bytes::from_static(&[99])).is_err());
    }

    #[test]
    fn frames_have_bounds() {
        let frame = |bytes: usize| Frame { kind: 1, bytes: vec![0; bytes].into() };
        let fits = RelayMessage::Frames(vec![frame(FRAME_BYTES_MAX), frame(FRAMES_BYTES)]);
        let bytes = fits.encode().concat();
        assert!(bytes.len() <= MESSAGE_BYTES_MAX);
        assert_eq!(RelayMessage::decode(bytes).expect("as much as there may be"), fits);
        for frames in [
            vec![frame(FRAME_BYTES_MAX + 1)],
            vec![frame(FRAME_BYTES_MAX), frame(FRAMES_BYTES), frame(1)],
            vec![frame(0); FRAMES_MAX + 1],
            vec![Frame { kind: NO_KIND, bytes: Bytes::new() }],
        ] {
            RelayMessage::decode(RelayMessage::Frames(frames).encode().concat()).expect_err("it is more");
        }
    }
}
