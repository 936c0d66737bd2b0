//! The memory that reading a request allocates before any signature is checked: at most twice the request's size.
//!
//! The test is the only one in its binary, because the binary's allocator counts the allocations of all its tests.
#![expect(unsafe_code, reason = "an allocator that counts has to be one; it hands everything to the system's")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bytes::Bytes;
use gateway::grpc::message::decode;
use gateway::service::{OrdererMethod, PeerMethod};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use prost::Message as _;
use proto::heddle::kv;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn count(change: isize) {
    LIVE.set(LIVE.get() + change);
    PEAK.set(PEAK.get().max(LIVE.get()));
}

// SAFETY: the system's allocator does all the work; counting allocates nothing and touches no memory that it returns.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The peak of bytes allocated while `work` ran.
fn peak(work: impl FnOnce()) -> isize {
    let before = LIVE.get();
    PEAK.set(before);
    work();
    PEAK.get() - before
}

/// For the texts of errors, and for a request that contains none of the bytes that its reader needs.
const SLACK: isize = 8 << 10;

const PEER: [PeerMethod; 12] = [
    PeerMethod::Evaluate,
    PeerMethod::Endorse,
    PeerMethod::Submit,
    PeerMethod::CommitStatus,
    PeerMethod::ChaincodeEvents,
    PeerMethod::ProcessProposal,
    PeerMethod::Deliver,
    PeerMethod::DeliverFiltered,
    PeerMethod::DeliverWithPrivateData,
    PeerMethod::Discover,
    PeerMethod::HealthCheck,
    PeerMethod::HealthWatch,
];
const ORDERER: [OrdererMethod; 4] =
    [OrdererMethod::Broadcast, OrdererMethod::Deliver, OrdererMethod::HealthCheck, OrdererMethod::HealthWatch];

type DecodeCase = (String, Box<dyn Fn(Bytes)>);

fn readers() -> Vec<DecodeCase> {
    fn of<M: prost::Message + Default + 'static>(name: &str) -> DecodeCase {
        // Read or refused: both are correct; likewise below.
        (format!("kv {name}"), Box::new(|message| drop(decode::<M>(message))))
    }
    let peer = PEER
        .map(|method| -> DecodeCase { (format!("{method:?}"), Box::new(move |message| drop(method.read(message)))) });
    let orderer = ORDERER.map(|method| -> DecodeCase {
        (format!("orderer {method:?}"), Box::new(move |message| drop(method.read(message))))
    });
    let store = [
        of::<kv::GetRequest>("Get"),
        of::<kv::PutRequest>("Put"),
        of::<kv::DeleteRequest>("Delete"),
        of::<kv::CompareAndSetRequest>("CompareAndSet"),
        of::<kv::WatchRequest>("Watch"),
        of::<kv::StatusRequest>("Status"),
        of::<kv::Request>("Exchange"),
    ];
    peer.into_iter().chain(orderer).chain(store).collect()
}

/// Bytes in protobuf's encoding: fields of a few numbers and kinds, repeated, some of them nested messages.
#[derive(Clone, Debug)]
enum Field {
    Number(u32, u64),
    Bytes(u32, usize),
    Empty(u32, usize),
    Message(u32, Vec<Field>),
}

fn field() -> impl Strategy<Value = Field> {
    let leaf = prop_oneof![
        (1..12_u32, any::<u64>()).prop_map(|(number, value)| Field::Number(number, value)),
        (1..12_u32, 0..3000_usize).prop_map(|(number, length)| Field::Bytes(number, length)),
        (1..12_u32, 1..20_000_usize).prop_map(|(number, count)| Field::Empty(number, count)),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        (1..12_u32, prop::collection::vec(inner, 0..8)).prop_map(|(number, fields)| Field::Message(number, fields))
    })
}

fn encode(fields: &[Field], out: &mut Vec<u8>) {
    use prost::encoding::{WireType, encode_key, encode_varint};
    for field in fields {
        match field {
            Field::Number(number, value) => {
                encode_key(*number, WireType::Varint, out);
                encode_varint(*value, out);
            }
            Field::Bytes(number, length) => {
                encode_key(*number, WireType::LengthDelimited, out);
                encode_varint(*length as u64, out);
                out.extend(std::iter::repeat_n(b'x', *length));
            }
            Field::Empty(number, count) => {
                for _ in 0..*count {
                    encode_key(*number, WireType::LengthDelimited, out);
                    out.push(0);
                }
            }
            Field::Message(number, fields) => {
                let mut inner = Vec::new();
                encode(fields, &mut inner);
                encode_key(*number, WireType::LengthDelimited, out);
                encode_varint(inner.len() as u64, out);
                out.extend(inner);
            }
        }
    }
}

fn check(readers: &[DecodeCase], bytes: &[u8]) {
    for (name, read) in readers {
        let message = Bytes::copy_from_slice(bytes);
        let most = peak(|| read(message.clone()));
        let allowed = 2 * bytes.len() as isize + SLACK;
        assert!(most <= allowed, "{name} allocated {most} bytes to read {}", bytes.len());
    }
}

/// The story: a request of 90 MiB that consisted only of organisations with empty names, two bytes each, took 1.2 GiB in
/// memory, and sending it needed no certificate.
#[test]
fn reading_a_request_allocates_no_more_than_twice_its_size() {
    let readers = readers();
    for number in 1..12 {
        // Empty names, in every field of the first three levels.
        let mut fields = vec![Field::Empty(number, 500_000)];
        for outer in [3, 1, 1] {
            let mut bytes = Vec::new();
            encode(&fields, &mut bytes);
            check(&readers, &bytes);
            fields = vec![Field::Message(outer, fields)];
        }
    }
    let many =
        proto::gateway::EvaluateRequest { target_organizations: vec![String::new(); 1 << 20], ..Default::default() };
    check(&readers, &many.encode_to_vec());
    let long =
        proto::gateway::EvaluateRequest { target_organizations: vec!["x".repeat(1 << 20)], ..Default::default() };
    check(&readers, &long.encode_to_vec());

    let mut runner = TestRunner::new(Config { cases: 200, ..Config::default() });
    let generated = prop::collection::vec(field(), 0..12);
    let outcome = runner.run(&generated, |fields| {
        let mut bytes = Vec::new();
        encode(&fields, &mut bytes);
        check(&readers, &bytes);
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
