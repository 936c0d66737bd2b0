//! Fuzzing harness for the messages on the socket of the `shm` provider; see [`base::fuzz`].

use base::fuzz::{FuzzTarget, InputShape, untrusted};
use wire::VersionRange;
use wire::hello::HelloAnswer;

use super::message::SocketMessage;
use crate::{CAPABILITY_BYTES, Capability, NodeId, RegionId, Rights};

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] =
    &[FuzzTarget { name: "rma-shm-messages", shape: InputShape::Bytes, run: messages, seeds }];

fn seeds() -> Vec<Vec<u8>> {
    let capability = Capability::decode(&[0; CAPABILITY_BYTES]).expect("a capability without rights is one");
    let versions = VersionRange::new(1, 2);
    let messages = [
        SocketMessage::greeting(0x0102),
        SocketMessage::Hello {
            answer: HelloAnswer::accept(versions, 2),
            nonce: 7,
            token: [0xAA; 32],
            name: "org1".to_owned(),
        },
        SocketMessage::Welcome { node: NodeId(3), life: [4; 16] },
        SocketMessage::Rejected { reason: "no".to_owned() },
        SocketMessage::OtherVersions(HelloAnswer::refuse(versions)),
        SocketMessage::Confirm { mapped: true, capability },
        SocketMessage::Confirmed { rights: Rights::ALL, bytes: 4096 },
        SocketMessage::Denied { revoked: true },
        SocketMessage::Gone { region: RegionId(0x1002) },
    ];
    messages.iter().map(SocketMessage::encode).collect()
}

fn messages(input: &[u8]) {
    if let Ok(message) = untrusted(input, || SocketMessage::decode(input)) {
        assert_eq!(message.encode(), input, "{message:?}");
    }
}
