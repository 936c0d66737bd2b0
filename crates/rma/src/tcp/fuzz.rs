//! Fuzzing harnesses for what the other end of a TCP connection sends; see [`base::fuzz`].

use base::fuzz::{FuzzTarget, InputShape, untrusted};
use base::untrusted::Untrusted;

use super::handshake::{CHALLENGE_BYTES, HELLO_BYTES, HelloResponse, VERDICT_BYTES, answer, challenge, hello, verdict};
use super::wire::{FrameHeader, FrameKind, HEADER_BYTES, VERB_BYTES, VerbFrame, VerbStatus};
use crate::{CAPABILITY_BYTES, Capability, Credential, NodeId, Token};

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "rma-tcp-frames", shape: InputShape::Bytes, run: frames, seeds: frame_seeds },
    FuzzTarget { name: "rma-tcp-handshake", shape: InputShape::Bytes, run: handshake, seeds: handshake_seeds },
];

fn frame_seeds() -> Vec<Vec<u8>> {
    let capability = Capability::decode(&[0; CAPABILITY_BYTES]).expect("a capability without rights is one");
    let verb = VerbFrame { capability, offset: Untrusted::new(64), first: 1, second: 2 }.encode();
    let of = |kind| [&FrameHeader::new(kind, 7, 8).encode()[..], &verb[..], &[9; 8]].concat();
    [
        FrameKind::Read,
        FrameKind::Write,
        FrameKind::CompareSwap,
        FrameKind::Message,
        FrameKind::Credit,
        FrameKind::Reply,
        FrameKind::LongReply,
    ]
    .map(of)
    .to_vec()
}

/// Header and verb have one encoding, and no length exceeds its bound.
fn frames(input: &[u8]) {
    let Some((header_bytes, rest)) = input.split_first_chunk::<HEADER_BYTES>() else { return };
    let Ok(header) = untrusted(input, || FrameHeader::decode(header_bytes)) else { return };
    assert_eq!(header.encode(), *header_bytes);
    let bounded = header.length <= crate::TRANSFER_BYTES_MAX.max(crate::MESSAGE_BYTES_MAX) as u64;
    assert!(bounded || header.kind == FrameKind::Credit, "{header:?}");
    let _ = VerbStatus::from_code(header.status).map(|status| assert_eq!(status.code(), header.status));
    let Some((verb_bytes, _)) = rest.split_first_chunk::<VERB_BYTES>() else { return };
    if header.kind.is_verb()
        && let Ok(verb) = untrusted(input, || VerbFrame::decode(verb_bytes))
    {
        assert_eq!(verb.encode(), *verb_bytes);
    }
}

const NONCE: [u8; 32] = [1; 32];

fn handshake_seeds() -> Vec<Vec<u8>> {
    let hello = hello("compute0", &NONCE).expect("the name is short");
    let (_, challenge) = challenge(&hello, NodeId(7), NONCE, [0; 32], |_| Some(Token::new([3; 32]))).expect("a hello");
    vec![[&hello[..], &challenge, &[0; VERDICT_BYTES]].concat()]
}

/// Hello, challenge and verdict, one behind the other: none of them panics, and no proof is accepted without the token.
fn handshake(input: &[u8]) {
    let Some((hello_bytes, rest)) = input.split_first_chunk::<HELLO_BYTES>() else { return };
    let token_of = |name: &str| (name == "compute0").then(|| Token::new([3; 32]));
    let answered = untrusted(input, || challenge(hello_bytes, NodeId(7), NONCE, [0; 32], token_of));
    if let Ok((HelloResponse::Challenged(challenged), _)) = answered {
        assert!(!challenged.check(&[0; 32]), "a proof cannot be guessed");
    }
    let Some((challenge_bytes, rest)) = rest.split_first_chunk::<CHALLENGE_BYTES>() else { return };
    let credential = Credential { name: "compute0".to_owned(), token: Token::new([3; 32]) };
    let _ = untrusted(input, || answer(hello_bytes, challenge_bytes, &[0; 32], &credential));
    if let Some(verdict_bytes) = rest.first_chunk::<VERDICT_BYTES>() {
        let _ = verdict(verdict_bytes);
    }
}
