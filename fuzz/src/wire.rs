//! The reader that all our own binary formats share, and the hello of links.

use base::fuzz::{FuzzTarget, InputShape, authenticated};
use wire::VersionRange;
use wire::hello::{Hello, HelloAnswer};

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "wire-reader", shape: InputShape::Bytes, run: read, seeds: scripts },
    FuzzTarget { name: "wire-hello", shape: InputShape::Bytes, run: hello, seeds: hellos },
];

fn read(input: &[u8]) {
    authenticated(input, || wire::fuzz::read(input));
}

fn hello(input: &[u8]) {
    authenticated(input, || wire::fuzz::hello(input));
}

/// A script with one of each read, and one that claims lengths that are not there.
fn scripts() -> Vec<Vec<u8>> {
    let mut script = wire::Writer::new();
    script.u8(0).u8(1).u8(1).u16(2).u8(2).u32(3).u8(3).u64(4).u8(4).u128(5).u8(5).flag(true).u8(62).zeros(3);
    script.u8(7).short(b"seven").u8(22).long(b"twenty-two").u8(9).text("nine").u8(12).short(b"twelve");
    script.u8(11).u64(2).put(b"it").u8(13).put(b"five5");
    let claims = wire::Writer::new().u8(8).u32(u32::MAX).u8(11).u64(u64::MAX).u8(24).u32(200).done();
    vec![script.done().to_vec(), claims.to_vec()]
}

fn hellos() -> Vec<Vec<u8>> {
    let versions = VersionRange::new(1, 3);
    vec![
        Hello { purpose: *b"HDLTESTS", versions }.encode().to_vec(),
        HelloAnswer::accept(versions, 2).encode().to_vec(),
        HelloAnswer::refuse(versions).encode().to_vec(),
    ]
}
