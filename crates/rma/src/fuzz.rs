//! Harnesses of what other hosts and processes send; see [`base::fuzz`].

use base::fuzz::{Shape, Target, untrusted};

use crate::{CAPABILITY_BYTES, Capability};

/// The targets of this crate.
pub fn targets() -> Vec<Target> {
    [TARGETS, crate::tcp::fuzz::TARGETS, crate::shm::fuzz::TARGETS].concat()
}

const TARGETS: &[Target] =
    &[Target { name: "rma-capability", shape: Shape::Bytes, run: capability, seeds: capabilities }];

fn capabilities() -> Vec<Vec<u8>> {
    let mut bytes = [7; CAPABILITY_BYTES];
    bytes[11..16].fill(0);
    vec![bytes.to_vec(), vec![0; CAPABILITY_BYTES]]
}

fn capability(input: &[u8]) {
    if let Ok(capability) = untrusted(input, || Capability::decode(input)) {
        assert_eq!(capability.encode()[..], *input);
    }
}
