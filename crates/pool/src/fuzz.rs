//! Harness of the messages between owners and memory nodes; see [`base::fuzz`].

use base::Epoch;
use base::fuzz::{Shape, Target, authenticated};
use rma::{CAPABILITY_BYTES, Capability};

use crate::message::{NOTICE, PROTOCOL_VERSION, Refusal, Reply, Request};

/// The targets of this module.
pub const TARGETS: &[Target] = &[Target { name: "pool-messages", shape: Shape::Bytes, run: messages, seeds }];

fn seeds() -> Vec<Vec<u8>> {
    let capability = Capability::decode(&[0; CAPABILITY_BYTES]).expect("a capability without rights is one");
    let requests = [
        Request::Hello { version: PROTOCOL_VERSION, section_bytes: 16 << 20 },
        Request::Fence { epoch: Epoch(3), holder: 0xA1 },
        Request::Grant { bytes: 16 << 20 },
        Request::Release { section: 9 },
        Request::List,
        Request::Room,
        Request::Share { section: 9, reader: 5 },
        Request::Unshare { reader: 5 },
    ];
    let replies = [
        Reply::Granted { free_bytes: 4096, section: 9, bytes: 4096, capability },
        Reply::Released { free_bytes: 4096 },
        Reply::Fenced { free_bytes: 4096, revoked: 2 },
        Reply::Listed { free_bytes: 4096, sections: vec![(9, 4096), (10, 8192)] },
        Reply::Refused { refusal: Refusal::Fenced, detail: 4, text: "no".to_owned() },
    ];
    let requests = requests.iter().map(|request| request.encode(1).to_vec());
    requests.chain(replies.iter().map(|reply| reply.encode(2).to_vec())).collect()
}

/// Both decoders, on whatever bytes; what decodes has only that one encoding.
pub fn messages(bytes: &[u8]) {
    if let Ok((number, request)) = authenticated(bytes, || Request::decode(bytes)) {
        let whole = !matches!(request, Request::Hello { version, .. } if version != PROTOCOL_VERSION);
        assert!(!whole || request.encode(number)[..] == *bytes, "{request:?}");
        assert!(number != NOTICE);
    }
    if let Ok((number, reply)) = authenticated(bytes, || Reply::decode(bytes)) {
        assert_eq!(reply.encode(number)[..], *bytes, "{reply:?}");
    }
}
