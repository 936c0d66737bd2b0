//! Fuzzing harness for the frames of calls; see [`crate::fuzz`].

use bytes::Bytes;

use super::frame::{self, OutgoingFrame, RpcFrameKind};
use super::{Rejection, frame::decode_rejection, frame::encode_rejection};
use crate::ErrorKind;
use crate::fuzz::{FuzzTarget, InputShape, authenticated};
use crate::rt::net::GatherList;

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] =
    &[FuzzTarget { name: "base-call-frames", shape: InputShape::Bytes, run: frames, seeds: frames_seeds }];

fn frames_seeds() -> Vec<Vec<u8>> {
    let refusal = encode_rejection(&Rejection::new(ErrorKind::Rejected, "no"));
    let frames = [
        OutgoingFrame { kind: RpcFrameKind::Request, number: 1, body: Bytes::from_static(b"question").into() },
        OutgoingFrame { kind: RpcFrameKind::Response, number: u64::MAX, body: GatherList::default() },
        OutgoingFrame { kind: RpcFrameKind::Rejection, number: 2, body: refusal },
        OutgoingFrame { kind: RpcFrameKind::Notification, number: 0, body: Bytes::from_static(b"news").into() },
    ];
    vec![frame::message(&frames).concat().to_vec(), frame::message(&frames[..1]).concat().to_vec()]
}

/// Frames decoded from a message encode to the same message, in however many parts it comes.
fn frames(input: &[u8]) {
    // The first byte determines where the message is divided into parts, as a link may do.
    let Some((cut, input)) = input.split_first() else { return };
    let whole = Bytes::copy_from_slice(input);
    let at = usize::from(*cut).min(whole.len());
    let mut message: GatherList = vec![whole.slice(..at), whole.slice(at..)].into();
    let mut found = Vec::new();
    let ended = loop {
        match authenticated(input, || frame::next(&mut message)) {
            Ok(Some(incoming)) => {
                if incoming.kind == RpcFrameKind::Rejection {
                    let body = incoming.body.clone().concat();
                    if let Ok(refusal) = authenticated(input, || decode_rejection(&body)) {
                        let again = encode_rejection(&refusal).concat();
                        assert_eq!(decode_rejection(&again), Ok(refusal));
                    }
                }
                found.push(OutgoingFrame { kind: incoming.kind, number: incoming.number, body: incoming.body });
            }
            Ok(None) => break true,
            Err(_) => break false,
        }
    };
    if ended {
        assert_eq!(frame::message(&found).concat(), whole, "a message has one encoding");
    }
}
