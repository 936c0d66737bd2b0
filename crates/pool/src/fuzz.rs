//! Fuzz harness for the messages between owners and memory nodes; see [`base::fuzz`].

use base::Epoch;
use base::fuzz::{FuzzTarget, InputShape, authenticated};
use rma::{CAPABILITY_BYTES, Capability};

use crate::message::{NOTIFICATION, PROTOCOL_VERSIONS, Rejection, Request, Response};

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] =
    &[FuzzTarget { name: "pool-messages", shape: InputShape::Bytes, run: messages, seeds }];

fn seeds() -> Vec<Vec<u8>> {
    let capability = Capability::decode(&[0; CAPABILITY_BYTES]).expect("a capability without rights is one");
    let requests = [
        Request::Hello { versions: PROTOCOL_VERSIONS, section_bytes: 16 << 20 },
        Request::Fence { epoch: Epoch(3), nonce: 0xA1, keep: true },
        Request::Grant { bytes: 16 << 20, number: 7 },
        Request::Release { section: 9 },
        Request::List,
        Request::Capacity,
        Request::GrantRead { section: 9, follower: 5 },
        Request::RevokeReads { follower: 5 },
        Request::Adopt { section: 9 },
    ];
    let replies = [
        Response::Granted { free_bytes: 4096, section: 9, bytes: 4096, capability },
        Response::Adopted { free_bytes: 4096, section: 9, bytes: 4096, number: 7, capability },
        Response::Released { free_bytes: 4096 },
        Response::Fenced { free_bytes: 4096, revoked: 2 },
        Response::Listed { free_bytes: 4096, sections: vec![(9, 4096), (10, 8192)] },
        Response::Rejected { rejection: Rejection::Fenced, detail: 4, text: "no".to_owned() },
    ];
    let requests = requests.iter().map(|request| request.encode(1).to_vec());
    requests.chain(replies.iter().map(|reply| reply.encode(2).to_vec())).collect()
}

/// Both decoders, on arbitrary bytes; bytes that decode are the only encoding of their message, if it is one of our versions.
pub fn messages(bytes: &[u8]) {
    if let Ok((number, request)) = authenticated(bytes, || Request::decode(bytes)) {
        let encoded = request.encode(number);
        let is_whole = !matches!(request, Request::OtherVersions(_));
        assert!(if is_whole { encoded[..] == *bytes } else { bytes.starts_with(&encoded) }, "{request:?}");
        assert!(number != NOTIFICATION);
    }
    if let Ok((number, reply)) = authenticated(bytes, || Response::decode(bytes)) {
        let encoded = reply.encode(number);
        let is_whole = !matches!(reply, Response::OtherVersions(_));
        assert!(if is_whole { encoded[..] == *bytes } else { bytes.starts_with(&encoded) }, "{reply:?}");
    }
}
