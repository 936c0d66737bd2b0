//! Harness of the messages on a shared memory's socket; see [`base::fuzz`].

use base::fuzz::{Shape, Target, untrusted};

use super::message::Message;
use crate::{CAPABILITY_BYTES, Capability, NodeId, RegionId, Rights};

/// The targets of this module.
pub const TARGETS: &[Target] = &[Target { name: "rma-shm-messages", shape: Shape::Bytes, run: messages, seeds }];

fn seeds() -> Vec<Vec<u8>> {
    let capability = Capability::decode(&[0; CAPABILITY_BYTES]).expect("a capability without rights is one");
    let messages = [
        Message::greeting(0x0102),
        Message::Hello { version: 1, nonce: 7, token: [0xAA; 32], name: "org1".to_owned() },
        Message::Welcome { node: NodeId(3), life: [4; 16] },
        Message::Refused { version: 1, reason: "no".to_owned() },
        Message::Confirm { mapped: true, capability },
        Message::Confirmed { rights: Rights::ALL, bytes: 4096 },
        Message::Denied { revoked: true },
        Message::Gone { region: RegionId(0x1002) },
    ];
    messages.iter().map(Message::encode).collect()
}

fn messages(input: &[u8]) {
    if let Ok(message) = untrusted(input, || Message::decode(input)) {
        assert_eq!(message.encode(), input, "{message:?}");
    }
}
