//! Fuzz harness of the relay's messages; see [`base::fuzz`].

use base::Bytes;
use base::fuzz::{FuzzTarget, InputShape, authenticated};

use crate::message::{RelayMessage, samples};

/// The target of this module.
pub const TARGETS: &[FuzzTarget] =
    &[FuzzTarget { name: "executor-relay-messages", shape: InputShape::Bytes, run: messages, seeds }];

fn seeds() -> Vec<Vec<u8>> {
    samples().iter().map(|message| message.encode().concat().to_vec()).collect()
}

/// Decodes a message: what decodes is its only encoding.
pub fn messages(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    if let Ok(message) = authenticated(input, || RelayMessage::decode(bytes)) {
        assert_eq!(message.encode().concat(), input, "{message:?}");
    }
}
