//! Fuzz harness for the messages between orderers on Sift; see [`base::fuzz`].

use base::fuzz::{FuzzTarget, InputShape, authenticated};
use base::{Bytes, FenceToken};

use super::message::{AcceptorRequest, AcceptorResponse, EntryDigest};
use crate::Term;

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] =
    &[FuzzTarget { name: "consensus-sift-messages", shape: InputShape::Bytes, run: messages, seeds }];

fn seeds() -> Vec<Vec<u8>> {
    let token = FenceToken { term: Term(3), nonce: 4 };
    let entries = vec![Bytes::from_static(b"one"), Bytes::new(), Bytes::from_static(b"three")];
    let commands = [
        AcceptorRequest::GetStatus,
        AcceptorRequest::Fence { leader: 2 },
        AcceptorRequest::GetDigests { from: 4, count: 5 },
        AcceptorRequest::Read { from: 6, bytes: 7 },
        AcceptorRequest::Align { position: 10, entries: entries.clone() },
        AcceptorRequest::Append { position: 11, deliverable: 10, entries: entries.clone() },
    ];
    let answers = [
        AcceptorResponse::Status { promised: Term(1), adopted: Term(2), height: 3 },
        AcceptorResponse::Digests(vec![1, EntryDigest::MAX]),
        AcceptorResponse::Entries(entries),
        AcceptorResponse::Progress { height: 4, durable: 3 },
    ];
    let commands = commands.into_iter().map(|command| command.encode(token).concat().to_vec());
    commands.chain(answers.into_iter().map(|answer| answer.encode().concat().to_vec())).collect()
}

/// A message that decodes has exactly one encoding.
fn messages(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    if let Ok((token, command)) = authenticated(input, || AcceptorRequest::decode(bytes.clone())) {
        assert_eq!(command.encode(token).concat(), bytes);
    }
    if let Ok(answer) = authenticated(input, || AcceptorResponse::decode(bytes.clone())) {
        assert_eq!(answer.encode().concat(), bytes);
    }
}
