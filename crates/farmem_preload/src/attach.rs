//! Attaching to the server. A program that cannot be attached ends: it was started to have a far heap.

#![allow(unsafe_code)]

use std::slice;

use bare::system_call::{Errno, Outcome, SignalsBlocked, map_anonymous, system_call};
use farmem_control::{Memory, PAGE_BYTES, SHARED_BYTES, Verdict, Welcome};

use crate::connection::{Connection, Descriptor, Received};
use crate::environment::ServerAddress;
use crate::extents::Extents;
use crate::far_heap::{FAR_HEAP, HeapState, Reservation};
use crate::message::{end_program, end_program_after};
use crate::{agent, userfault};

/// Bytes of the largest region: its pages have numbers of 32 bits.
const REGION_BYTES_MAX: u64 = (u32::MAX as u64) * PAGE_BYTES as u64;

/// Attaches the program, and returns the length of the region in bytes.
pub(crate) fn attach_to(server: ServerAddress) -> usize {
    let _blocked = SignalsBlocked::new();
    let mut met = meet(&server, 0);
    let reservation = must("cannot reserve addresses", Reservation::new(met.region_bytes));
    let faults = userfault::open(met.second.take().as_ref()).and_then(Descriptor::above_standard_streams);
    let faults = must("cannot open a userfaultfd", faults);
    let memory = Memory {
        region: reservation.region as u64,
        doorbell: reservation.doorbell() as u64,
        buffer: reservation.buffer() as u64,
    };
    must("cannot write to the server", met.connection.send(&memory, Some(&faults)));
    let verdict = verdict(&must("cannot read from the server", met.connection.receive()));
    let shared = must("cannot map the memory shared with the server", map_shared(&met.shared, None));
    let extents = must("cannot map the heap's bits", extents(reservation));
    let can_fork = verdict.can_fork != 0;
    if !can_fork {
        reservation.keep_from_children();
    }
    must("cannot start the agent", agent::start(met.connection.socket(), &faults, reservation, shared));
    FAR_HEAP.attach(reservation, shared, can_fork, HeapState { extents, server });
    reservation.region_bytes
}

/// Attaches the child of a fork, which has inherited the memory. Its only thread holds the lock of the heap.
pub(crate) fn attach_child(server: &ServerAddress, reservation: Reservation, fork: u64) {
    let mut met = meet(server, fork);
    let Some(faults) = met.second.take() else { end_protocol() };
    let faults = must("cannot keep the userfaultfd", faults.above_standard_streams());
    let shared = FAR_HEAP.shared();
    must("cannot map the memory shared with the server", map_shared(&met.shared, Some(shared)));
    must("cannot start the agent", agent::start(met.connection.socket(), &faults, reservation, shared));
}

/// What the server gives to a program that it welcomes.
struct Met {
    connection: Connection,
    region_bytes: usize,
    shared: Descriptor,
    /// `/dev/userfaultfd`, or the userfaultfd of a child.
    second: Option<Descriptor>,
}

fn meet(server: &ServerAddress, fork: u64) -> Met {
    let connection = must("cannot connect to the server", Connection::open(server));
    must("cannot write to the server", connection.send_hello(server, fork));
    let mut received = must("cannot read from the server", connection.receive());
    let Some(welcome) = received.message::<Welcome>() else {
        verdict(&received);
        end_protocol()
    };
    let [Some(shared), second] = received.descriptors.each_mut().map(Option::take) else { end_protocol() };
    if welcome.region_bytes == 0
        || welcome.region_bytes > REGION_BYTES_MAX
        || !welcome.region_bytes.is_multiple_of(PAGE_BYTES as u64)
    {
        end_protocol();
    }
    Met { connection, region_bytes: welcome.region_bytes as usize, shared, second }
}

/// Ends the program if the server refuses it.
fn verdict(received: &Received) -> Verdict {
    let Some(verdict) = received.message::<Verdict>() else { end_protocol() };
    if let Some(reason) = verdict.reason() {
        end_program(&["the far heap: the server refuses this program: ", reason]);
    }
    verdict
}

fn map_shared(file: &Descriptor, at: Option<usize>) -> Outcome {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = libc::MAP_SHARED | if at.is_some() { libc::MAP_FIXED } else { 0 };
    let arguments = [at.unwrap_or(0), SHARED_BYTES, protection, flags as usize, file.number() as usize, 0];
    // SAFETY: a new mapping, or one in place of the parent's shared memory, which the child uses no more.
    unsafe { system_call(libc::SYS_mmap, arguments) }
}

/// The pages of a region, all of them free.
pub(crate) fn extents(reservation: Reservation) -> Result<Extents<'static>, Errno> {
    let pages = reservation.region_bytes / PAGE_BYTES;
    let words = pages.div_ceil(u64::BITS as usize);
    let start = map_anonymous(words * size_of::<u64>())?;
    // SAFETY: the mapping was just made, is as long, consists of zeros, and is never unmapped.
    let words = unsafe { slice::from_raw_parts_mut(start as *mut u64, words) };
    Ok(Extents::new(words, pages))
}

fn must<T>(what: &str, outcome: Result<T, Errno>) -> T {
    outcome.unwrap_or_else(|error| end_program_after(what, error))
}

fn end_protocol() -> ! {
    end_program(&["the far heap: the server answers in another way than this library expects"])
}
