//! Harness of the frames of calls; see [`crate::fuzz`].

use bytes::Bytes;

use super::frame::{self, Kind, Outgoing};
use super::{Refusal, frame::decode_refusal, frame::encode_refusal};
use crate::ErrorKind;
use crate::fuzz::{Shape, Target, authenticated};
use crate::rt::net::Parts;

/// The targets of this module.
pub const TARGETS: &[Target] =
    &[Target { name: "base-call-frames", shape: Shape::Bytes, run: frames, seeds: frames_seeds }];

fn frames_seeds() -> Vec<Vec<u8>> {
    let refusal = encode_refusal(&Refusal::new(ErrorKind::Rejected, "no"));
    let frames = [
        Outgoing { kind: Kind::Request, number: 1, body: Bytes::from_static(b"question").into() },
        Outgoing { kind: Kind::Reply, number: u64::MAX, body: Parts::default() },
        Outgoing { kind: Kind::Refusal, number: 2, body: refusal },
        Outgoing { kind: Kind::Notice, number: 0, body: Bytes::from_static(b"news").into() },
    ];
    vec![frame::message(&frames).concat().to_vec(), frame::message(&frames[..1]).concat().to_vec()]
}

/// Frames that are taken off a message are, written again, the message; in however many parts it comes.
fn frames(input: &[u8]) {
    // The first byte says where the message is cut into parts, as a link may have it.
    let Some((cut, input)) = input.split_first() else { return };
    let whole = Bytes::copy_from_slice(input);
    let at = usize::from(*cut).min(whole.len());
    let mut message: Parts = vec![whole.slice(..at), whole.slice(at..)].into();
    let mut found = Vec::new();
    let ended = loop {
        match authenticated(input, || frame::next(&mut message)) {
            Ok(Some(incoming)) => {
                if incoming.kind == Kind::Refusal {
                    let body = incoming.body.clone().concat();
                    if let Ok(refusal) = authenticated(input, || decode_refusal(&body)) {
                        let again = encode_refusal(&refusal).concat();
                        assert_eq!(decode_refusal(&again), Ok(refusal));
                    }
                }
                found.push(Outgoing { kind: incoming.kind, number: incoming.number, body: incoming.body });
            }
            Ok(None) => break true,
            Err(_) => break false,
        }
    };
    if ended {
        assert_eq!(frame::message(&found).concat(), whole, "a message has one encoding");
    }
}
