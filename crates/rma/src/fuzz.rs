//! Fuzzing harnesses for bytes from other hosts and processes; see [`base::fuzz`].

use base::fuzz::{FuzzTarget, InputShape, untrusted};

use crate::{CAPABILITY_BYTES, Capability};

/// The fuzz targets of this crate.
pub fn targets() -> Vec<FuzzTarget> {
    [TARGETS, crate::tcp::fuzz::TARGETS, crate::shm::fuzz::TARGETS].concat()
}

const TARGETS: &[FuzzTarget] =
    &[FuzzTarget { name: "rma-capability", shape: InputShape::Bytes, run: capability, seeds: capabilities }];

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
