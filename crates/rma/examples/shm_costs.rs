//! The cost of a verb of the `shm` provider compared with the memcpy or the atomic instruction that it contains.
//!
//! `cargo run --release -p heddle-rma --example shm_costs`
//!
//! The verb and its memcpy or instruction are measured alternately, batch by batch, so that a temporary slowdown of the machine
//! affects both. The output shows medians of batches.

#![allow(clippy::disallowed_methods, reason = "it measures the machine's time")]

use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use base::{Bytes, BytesMut};
use rma::shm::ShmProvider;
use rma::{Credential, HostConfig, NodeId, Provider, Rights, Token};

const BATCHES: usize = 101;
const RING_BYTES: usize = 256 << 10;
const REGION_BYTES: u64 = 256 << 20;

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Nanoseconds per call of each, measured alternately.
fn compare(calls: usize, mut floor: impl FnMut(), mut verb: impl FnMut()) -> (f64, f64) {
    let (mut floors, mut verbs) = (Vec::new(), Vec::new());
    for _ in 0..BATCHES {
        for (times, call) in [(&mut floors, &mut floor as &mut dyn FnMut()), (&mut verbs, &mut verb)] {
            let start = Instant::now();
            for _ in 0..calls {
                call();
            }
            times.push(start.elapsed().as_secs_f64() * 1e9 / calls as f64);
        }
    }
    (median(floors), median(verbs))
}

fn show(what: &str, (floor, verb): (f64, f64)) {
    println!(
        "{what:<22} floor {floor:>9.1} ns   shm {verb:>9.1} ns   + {:>7.1} ns   x {:.2}",
        verb - floor,
        verb / floor
    );
}

fn main() {
    base::rt::production::run(async {
        let token = Token::random();
        let known = token.clone();
        let tokens = Arc::new(move |_: &str| Some(known.clone()));
        let provider = ShmProvider::default();
        let host = provider.host("local:", HostConfig { node: NodeId(1), tokens }).await.expect("the name is new");
        let credential = Credential { name: "bench".to_owned(), token };
        let endpoint = provider.connect(&host.address(), &credential).await.expect("the token is right");
        let region = host.register("bench", REGION_BYTES).await.expect("there is memory");
        let capability = host.grant(region, Rights::ALL, "bench").expect("it has grants left");

        for size in [8usize, 64, 256, 1 << 10, 4 << 10, 10 << 10, 1 << 20] {
            let calls = ((4 << 20) / (size + 1024)).max(4);
            let remote = vec![7u8; size];
            let mut into = BytesMut::with_capacity(size);
            let mut local = BytesMut::with_capacity(size);
            show(
                &format!("read {size}"),
                compare(
                    calls,
                    || {
                        local.clear();
                        local.extend_from_slice(black_box(&remote));
                        black_box(&mut local);
                    },
                    || {
                        into.clear();
                        let read = endpoint.read(&capability, 4096, size, std::mem::take(&mut into)).now();
                        into = read.map_err(|_| "pending").expect("it is synchronous").expect("it is granted");
                        black_box(&mut into);
                    },
                ),
            );
            let bytes = Bytes::from(vec![7u8; size]);
            let parts = [bytes.clone()];
            let mut remote = vec![7u8; size];
            show(
                &format!("write {size}"),
                compare(
                    calls,
                    || {
                        black_box(&mut remote[..]).copy_from_slice(black_box(&bytes));
                    },
                    || {
                        let written = endpoint.write(&capability, 4096, black_box(&parts)).now();
                        written.map_err(|_| "pending").expect("it is synchronous").expect("it is granted");
                    },
                ),
            );
        }

        // A message and its receipt: into the shared ring, and from there into the receiver's own memory.
        let accepted = host.accept().await.expect("it was connected");
        let mut ring = vec![1u8; RING_BYTES];
        let mut cx = Context::from_waker(Waker::noop());
        for size in [8usize, 64, 1 << 10, 4 << 10, 10 << 10, 32 << 10] {
            let parts = [Bytes::from(vec![7u8; size])];
            let mut at = 0;
            show(
                &format!("send {size}"),
                compare(
                    ((4 << 20) / (size + 1024)).max(4),
                    || {
                        at = if at + size > RING_BYTES { 0 } else { at };
                        ring[at..at + size].copy_from_slice(black_box(&parts[0]));
                        black_box(&mut ring);
                        black_box(Bytes::copy_from_slice(&ring[at..at + size]));
                        at += size;
                    },
                    || {
                        let sent = endpoint.send(black_box(&parts)).now();
                        let received = pin!(accepted.receive()).poll(&mut cx);
                        assert!(matches!(black_box(received), Poll::Ready(Ok(_))), "it is there at once");
                        sent.map_err(|_| "pending").expect("there is room").expect("it is connected");
                    },
                ),
            );
        }

        let word = AtomicU64::new(0);
        show(
            "fetch_add",
            compare(
                2000,
                || {
                    black_box(black_box(&word).fetch_add(1, Ordering::SeqCst));
                },
                || {
                    let added = endpoint.fetch_add(&capability, 0, 1).now();
                    black_box(added.map_err(|_| "pending").expect("it is synchronous").expect("it is granted"));
                },
            ),
        );
        show(
            "compare_swap",
            compare(
                2000,
                || {
                    black_box(black_box(&word).compare_exchange(0, 0, Ordering::SeqCst, Ordering::SeqCst)).ok();
                },
                || {
                    let swapped = endpoint.compare_swap(&capability, 8, 0, 0).now();
                    black_box(swapped.map_err(|_| "pending").expect("it is synchronous").expect("it is granted"));
                },
            ),
        );

        // Reads at random offsets of more memory than the caches hold.
        let mut big = vec![1u8; REGION_BYTES as usize];
        big.iter_mut().step_by(4096).for_each(|byte| *byte = 2);
        for size in [64usize, 1 << 10, 10 << 10] {
            let mut state = 1u64;
            let mut next = move || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 20) % (REGION_BYTES - size as u64) / 64 * 64
            };
            let mut next_floor = next;
            let mut into = BytesMut::with_capacity(size);
            let mut local = BytesMut::with_capacity(size);
            show(
                &format!("cold read {size}"),
                compare(
                    2000,
                    || {
                        local.clear();
                        let at = next_floor() as usize;
                        local.extend_from_slice(&big[at..at + size]);
                        black_box(&mut local);
                    },
                    || {
                        into.clear();
                        let read = endpoint.read(&capability, next(), size, std::mem::take(&mut into)).now();
                        into = read.map_err(|_| "pending").expect("it is synchronous").expect("it is granted");
                        black_box(&mut into);
                    },
                ),
            );
        }
    });
}
