//! Fuzz harnesses of the messages between caller and executor, and between a program and the role; see [`base::fuzz`].

use std::num::NonZeroU32;

use base::Bytes;
use base::fuzz::{FuzzTarget, InputShape, authenticated, untrusted};
use page_coherence::{Access, CallId, PageNumber};

use crate::message::{Ended, MappingKind, Registers, Stamps, ToCaller, ToExecutor};
use crate::ring::Frame;
use crate::role_messages::{ProgramElsewhere, ROLE_VERSION, RoleHello, RoleNotice, RoleRequest};

/// The targets of this module. The first four bytes of an input of `pushdown-messages` are the kind of the frame, the others its bytes.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "pushdown-messages", shape: InputShape::Bytes, run: messages, seeds: samples },
    FuzzTarget { name: "pushdown-role-messages", shape: InputShape::Bytes, run: role_messages, seeds: role_samples },
];

fn input_of((kind, bytes): (u32, Bytes)) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &bytes].concat()
}

/// One of each message.
fn samples() -> Vec<Vec<u8>> {
    let call = CallId(7);
    let (page, access) = (PageNumber(0x7f00_1234), Access::Write);
    let fetch = page_coherence::ToExecutor::Fetch { page, access, holds: true };
    let request = page_coherence::ToCaller::Request { page, access };
    let (start, end) = (0x7f00_1234_0000, 0x7f00_1235_0000);
    let registers = Registers {
        function: 0x40_1000,
        argument: start,
        stack: end,
        thread_block: 0x7f00_0000_0740,
        vector_control: 0x1f80,
        float_control: 0x37f,
    };
    let kind = MappingKind::Constant;
    let to_executor = [
        ToExecutor::Coherence(fetch.encode()),
        ToExecutor::Start(call, registers, NonZeroU32::new(1500)),
        ToExecutor::Start(call, registers, None),
        ToExecutor::Ping(3),
        ToExecutor::Mapping { wanted: start + 8, start, end, protection: 5, kind },
        ToExecutor::Pages(start, Bytes::from_static(&[0xcc; 64])),
        ToExecutor::Returned(call, -14),
        ToExecutor::Unmapped(start, end),
        ToExecutor::Protected { start, end, protection: 1 },
    ];
    let ended = Ended { signal: 11, code: -2, address: start, instruction: 0x40_1010 };
    let stamps = Stamps { handled: 1 << 50, begun: (1 << 50) + 1_000, returned: (1 << 50) + 9_000, waited: 300 };
    let to_caller = [
        ToCaller::Coherence(request.encode()),
        ToCaller::MappingWanted(start),
        ToCaller::PagesWanted(start),
        ToCaller::SystemCall(call, 202, [start, 1, 2, 3, 4, 5]),
        ToCaller::Ended(call, ended, stamps),
        ToCaller::Pong(3),
    ];
    let to_executor = to_executor.iter().map(|message| input_of(message.encode()));
    to_executor.chain(to_caller.iter().map(|message| input_of(message.encode()))).collect()
}

/// Decodes a frame as either side does: what decodes is the only encoding of its message.
pub fn messages(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first_chunk() else { return };
    let frame = Frame { kind: u32::from_le_bytes(*kind), bytes: Bytes::copy_from_slice(bytes) };
    if let Ok(message) = authenticated(input, || ToExecutor::decode(frame.clone())) {
        assert_eq!(input_of(message.encode()), input, "{message:?}");
    }
    if let Ok(message) = authenticated(input, || ToCaller::decode(frame)) {
        assert_eq!(input_of(message.encode()), input, "{message:?}");
    }
}

/// One of each message to and from the role.
fn role_samples() -> Vec<Vec<u8>> {
    let elsewhere = ProgramElsewhere { user: 1000, group: 100, process: 9, name: "analyse@host".to_owned() };
    let elsewhere = RoleRequest::Hello(RoleHello::of_this_build(4), Some(elsewhere));
    let requests = [RoleRequest::hello(4), elsewhere, RoleRequest::Show { version: ROLE_VERSION }];
    let notices = [
        RoleNotice::Started { process: 77, is_elsewhere: true },
        RoleNotice::Refused("all places are taken".to_owned()),
        RoleNotice::Ended("its memory was full".to_owned()),
        RoleNotice::Shown(Bytes::from_static(b"view")),
    ];
    let requests = requests.iter().map(|request| request.encode().to_vec());
    requests.chain(notices.iter().map(|notice| notice.encode().to_vec())).collect()
}

/// Decodes a message as the role and as a program do. A notice that decodes is its only encoding; of a request of another version only the
/// beginning counts.
pub fn role_messages(input: &[u8]) {
    if let Ok(request) = untrusted(input, || RoleRequest::decode(input)) {
        let again = RoleRequest::decode(&request.encode()).expect("what was encoded decodes");
        assert_eq!(again, request);
    }
    let message = Bytes::copy_from_slice(input);
    if let Ok(notice) = authenticated(input, || RoleNotice::decode(message)) {
        assert_eq!(notice.encode(), input, "{notice:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_decode_at_the_side_that_they_are_for() {
        for sample in samples() {
            messages(&sample);
            let (kind, bytes) = sample.split_first_chunk().expect("it has a kind");
            let frame = Frame { kind: u32::from_le_bytes(*kind), bytes: Bytes::copy_from_slice(bytes) };
            assert!(ToExecutor::decode(frame.clone()).is_ok() || ToCaller::decode(frame).is_ok());
        }
    }
}
