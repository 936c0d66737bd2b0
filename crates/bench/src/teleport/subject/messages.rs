//! What a fault of each side costs, and what a message does beside the link alone.
//!
//! - *A message* is that of an empty call: the coherence protocol's call with its list of pages, and the function's start. Its latency is the time
//!   from the sender's encoding of it until the executor has handled it.
//! - *The link alone* is a frame of eight bytes over a ring of the same kind, with the same imitated link, between two threads that look for
//!   frames as both sides look for messages. Its latency is the time from its sending until the receiver has it.
//!
//! Both are measured in turns, each after a time that is not counted ([`WARM_UP`]).

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farmem::pushdown::Executor;
use measurement::error::Error;
use measurement::interval::median;
use pushdown::{AREA_BYTES, Area, Attending, Frame, Link, Shape, Side, ToCaller, ToExecutor, cycles};

use super::calls::{CALLS_TOUCH, WARM_UP, call_empty};
use super::data::{PAGE_WORDS, shared_pages};
use super::settings::{Measured, named};
use crate::teleport::{LINK_GBIT, part};

/// Pages over which faults are measured.
const FAULT_PAGES: usize = 2_000;
/// Turns of calls and frames, and how many are counted in each.
const TURNS: usize = 3;
const MESSAGES: usize = 5_000;
/// How often a thread looks for a frame at a time, as both sides do.
const LOOKS: u32 = 4_000;
/// For how long two clocks are compared, to see how fast one runs.
const CLOCKS_APART: Duration = Duration::from_millis(20);

/// One fault of each side, and one message.
pub(super) fn messages(executor: &Executor) -> Measured {
    let (at_caller, at_executor) = faults(executor)?;
    let latency = executor.link_latency();
    let frames = Frames::over(latency);
    let (mut calls, mut raw) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        calls.extend(requests(executor)?);
        raw.extend(frames.latencies_us()?);
    }
    Ok(named([
        ("caller_us", at_caller),
        ("executor_us", at_executor),
        ("message_us", median(calls)),
        ("raw_us", median(raw)),
        ("link_us", latency.as_nanos() as f64 / 1e3),
    ]))
}

/// How long a fault of the caller takes, and one of the executor, on pages that the other side has and does not use.
fn faults(executor: &Executor) -> Result<(f64, f64), Error> {
    let pages = shared_pages(FAULT_PAGES);
    // Not in order, so that nothing is asked ahead.
    let touch_scattered = || {
        let start = Instant::now();
        for index in 0..FAULT_PAGES {
            pages[index * 1_237 % FAULT_PAGES * PAGE_WORDS].fetch_add(1, Ordering::Relaxed);
        }
        start.elapsed().as_nanos() as f64 / 1e3 / FAULT_PAGES as f64
    };
    touch_scattered();
    let (mut at_executor, mut at_caller) = (Vec::new(), Vec::new());
    for _ in 0..CALLS_TOUCH {
        at_executor.push(executor.call(touch_scattered).map_err(|error| part(&error))?);
        at_caller.push(touch_scattered());
    }
    Ok((median(at_caller), median(at_executor)))
}

/// The latencies of calls' messages, in microseconds.
fn requests(executor: &Executor) -> Result<Vec<f64>, Error> {
    let begun = Instant::now();
    let mut latencies = Vec::with_capacity(MESSAGES);
    while latencies.len() < MESSAGES {
        call_empty(executor).map_err(|error| part(&error))?;
        if begun.elapsed() > WARM_UP {
            let times = executor.last_times().ok_or_else(|| part(&"the library knows no times of the call"))?;
            latencies.push(times.request.as_nanos() as f64 / 1e3);
        }
    }
    Ok(latencies)
}

/// Two threads that exchange frames.
struct Frames {
    caller: Link,
    executor: Link,
    cycles_per_us: f64,
}

impl Frames {
    /// Over a link with this latency; without one, over the rings alone.
    #[allow(unsafe_code, reason = "only its user can answer for the memory of an area")]
    fn over(latency: Duration) -> Frames {
        let (clock, first) = (Instant::now(), cycles());
        std::thread::sleep(CLOCKS_APART);
        let cycles_per_ns = (cycles() - first) as f64 / clock.elapsed().as_nanos() as f64;
        let bytes_per_ns = LINK_GBIT / 8.0;
        let shape = match latency.is_zero() {
            true => Shape::default(),
            false => Shape {
                latency_cycles: (latency.as_nanos() as f64 * cycles_per_ns) as u64,
                mebibyte_cycles: (f64::from(1 << 20) / bytes_per_ns * cycles_per_ns) as u64,
            },
        };
        let memory = shared_pages(AREA_BYTES.div_ceil(farmem::PAGE_BYTES));
        // SAFETY: the memory is zero, has room for an area, and is never freed; nothing else uses it.
        let area = unsafe { Area::at(memory.as_ptr().addr()) };
        area.prepare(1, 0, shape, None);
        // Both sides look for messages all the time, so nobody is woken through the socket.
        let [caller, executor] = [Side::Caller, Side::Executor].map(|side| Link::new(area, side, -1));
        Frames { caller, executor, cycles_per_us: cycles_per_ns * 1e3 }
    }

    /// The latencies of frames to the one that is the executor's side, in microseconds.
    fn latencies_us(&self) -> Result<Vec<f64>, Error> {
        // A frame says when it was sent, its answer how long it took; one that says 0 is the last.
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| {
                let attending = self.executor.attend();
                loop {
                    let frame = receive(&self.executor, &attending)?;
                    let received = cycles();
                    let Ok(ToExecutor::Ping(sent)) = ToExecutor::decode(frame) else { return Err(broken()) };
                    if sent == 0 {
                        return Ok(());
                    }
                    let answer = ToCaller::Pong(received.saturating_sub(sent));
                    self.executor.send_to_caller(&answer, &[]).map_err(|_| broken())?;
                }
            });
            let latencies = self.exchange();
            self.send(0)?;
            answering.join().expect("it does not panic")?;
            latencies
        })
    }

    fn exchange(&self) -> Result<Vec<f64>, Error> {
        let attending = self.caller.attend();
        let begun = Instant::now();
        let mut latencies = Vec::with_capacity(MESSAGES);
        while latencies.len() < MESSAGES {
            self.send(cycles())?;
            let answer = receive(&self.caller, &attending)?;
            let Ok(ToCaller::Pong(taken)) = ToCaller::decode(answer) else { return Err(broken()) };
            if begun.elapsed() > WARM_UP {
                latencies.push(taken as f64 / self.cycles_per_us);
            }
        }
        Ok(latencies)
    }

    fn send(&self, number: u64) -> Result<(), Error> {
        self.caller.send_to_executor(&ToExecutor::Ping(number), &[]).map_err(|_| broken())
    }
}

/// Waits for a frame.
fn receive(link: &Link, attending: &Attending<'_>) -> Result<Frame, Error> {
    loop {
        if let Some(frame) = link.receive().map_err(|_| broken())? {
            return Ok(frame);
        }
        attending.look(LOOKS);
    }
}

fn broken() -> Error {
    part(&"a frame of the bare link is not what was sent")
}
