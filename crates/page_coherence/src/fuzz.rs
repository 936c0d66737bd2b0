//! Fuzz harnesses of the messages, those of a call's list of resident pages among them; see [`base::fuzz`].

use base::Bytes;
use base::fuzz::{FuzzTarget, InputShape, authenticated};

use crate::message::{CallOutcome, Payload, ToCaller, ToExecutor};
use crate::mode::CoherenceMode;
use crate::page::{Access, CallId, PAGE_BYTES, PageBytes, PageNumber, Right};
use crate::page_list::PageList;
use crate::run_map::RunMap;

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "page-coherence-calls", shape: InputShape::Bytes, run: from_caller, seeds: samples },
    FuzzTarget { name: "page-coherence-replies", shape: InputShape::Bytes, run: from_executor, seeds: samples },
];

fn list(runs: &[(u64, u64, Right)]) -> PageList {
    let mut rights = RunMap::default();
    runs.iter().for_each(|(start, end, right)| rights.insert(*start..*end, *right));
    PageList::of_rights(&rights).expect("it has few runs")
}

/// One of each message, with its body.
pub(crate) fn samples() -> Vec<Vec<u8>> {
    let page = PageNumber(0x7f00_1234);
    let range = PageBytes { page, offset: 4090, count: 6 };
    let resident = list(&[(3, 9, Right::Write), (9, 10, Right::Read), (5000, 70_000, Right::Write)]);
    let (body, difference) = (vec![7; PAGE_BYTES as usize], crate::diff::diff(&[0; 4096], &[1; 4096]).to_vec());
    let to_executor = [
        (ToExecutor::Call { call: CallId(5), mode: CoherenceMode::Pso, resident }, b"function".to_vec()),
        (ToExecutor::Cancel(CallId(5)), Vec::new()),
        (ToExecutor::Fetch { page, access: Access::Write, holds: true }, Vec::new()),
        (ToExecutor::Home { page, left: Right::Write, payload: Payload::Diff }, difference.clone()),
        (ToExecutor::Answer { page, left: Right::Read, payload: Payload::Page }, body.clone()),
        (ToExecutor::Discard { first: page, count: 300 }, Vec::new()),
        (ToExecutor::Push(range), difference),
        (ToExecutor::Pull(range), Vec::new()),
    ];
    let written = list(&[(3, 9, Right::Write)]);
    let reply = ToCaller::Reply { call: CallId(5), outcome: CallOutcome::Killed, written: written.clone() };
    let to_caller = [
        (ToCaller::Grant { page, access: Access::Write, payload: Payload::Page }, body),
        (ToCaller::Request { page, access: Access::Read }, Vec::new()),
        (reply, b"result".to_vec()),
        (ToCaller::CancelAnswer { call: CallId(5), removed: true }, Vec::new()),
        (ToCaller::Written(written), Vec::new()),
        (ToCaller::Pulled(range), vec![1; 6]),
    ];
    let to_executor = to_executor.iter().map(|(message, body)| [&message.encode()[..], body].concat());
    to_executor.chain(to_caller.iter().map(|(message, body)| [&message.encode()[..], body].concat())).collect()
}

/// Decodes bytes as an executor does: what decodes is the only encoding of its message.
pub fn from_caller(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    if let Ok((message, body)) = authenticated(input, || ToExecutor::decode(bytes)) {
        assert_eq!([message.encode(), body].concat(), input, "{message:?}");
        if let ToExecutor::Call { resident, .. } = message {
            let runs: Vec<_> = resident.runs().take(1000).collect();
            assert!(runs.windows(2).all(|two| two[0].0.end <= two[1].0.start), "runs are in order");
        }
    }
}

/// Decodes bytes as a caller does: what decodes is the only encoding of its message.
pub fn from_executor(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    if let Ok((message, body)) = authenticated(input, || ToCaller::decode(bytes)) {
        assert_eq!([message.encode(), body].concat(), input, "{message:?}");
    }
}
