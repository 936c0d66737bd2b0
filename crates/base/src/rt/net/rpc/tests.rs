//! Tests of the guarantees to callers: in production, and with several seeds in simulation, where links are cut.

use std::slice;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use super::frame::{IncomingFrame, OutgoingFrame, RpcFrameKind};
use super::*;
use crate::rt::net::{GatherList, Link, connect, listen};
use crate::rt::simulation::{Prng, Simulation};
use crate::rt::{self, CancellationToken};

/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(60);

/// Answers `n` with `n + 1` after a random pause; refuses 13; panics at 99.
#[derive(Default)]
struct Next {
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    order: Arc<Mutex<Vec<u64>>>,
    notifier: Mutex<Option<Notifier>>,
}

fn number(body: &[u8]) -> u64 {
    u64::from_le_bytes(body[..8].try_into().expect("a number has 8 bytes"))
}

fn request(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

impl RpcHandler for Next {
    fn opened(&self, notifier: Notifier) {
        *self.notifier.lock().expect("nobody panics") = Some(notifier);
    }

    fn request(&self, request: GatherList) -> ResponseFuture {
        let request = request.concat();
        let number = number(&request);
        self.order.lock().expect("nobody panics").push(number);
        let (running, most) = (Arc::clone(&self.running), Arc::clone(&self.most));
        Box::pin(async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            rt::sleep(Duration::from_micros(rt::random_below(300))).await;
            running.fetch_sub(1, Ordering::SeqCst);
            match number {
                13 => Err(Rejection::new(crate::ErrorKind::Fenced, "unlucky")),
                99 => panic!("told to"),
                _ => Ok(vec![Bytes::copy_from_slice(&(number + 1).to_le_bytes()), request.slice(8..)].into()),
            }
        })
    }
}

async fn pair(name: &str) -> (Link, Link) {
    let mut listener = listen(name).await.expect("the address is free");
    let near = connect(name).await.expect("somebody listens");
    (near, listener.accept().await.expect("the link is there"))
}

fn in_both_worlds<F, Fut>(scenario: F)
where
    F: Fn(String) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let name = format!("call-test-{}", RUNS.fetch_add(1, Ordering::Relaxed));
    rt::production::run(async {
        let task = rt::spawn(scenario(name.clone()));
        rt::timeout(LONG, task).await.expect("the scenario ends").expect("nobody aborts it");
    });
    for seed in 0..20 {
        let report = Simulation::new(seed).time_max(LONG).check(|_| scenario(name.clone()));
        report.expect("the scenario succeeds");
    }
}

#[test]
fn answers_belong_to_their_requests_however_they_overtake_each_other() {
    in_both_worlds(|name| async move {
        let (near, far) = pair(&name).await;
        let handler = Arc::new(Next::default());
        let server = rt::spawn(serve(far, handler.clone(), 8, CancellationToken::new()));
        let caller = RpcClient::new(near, 20, |_| {});
        let calls: Vec<_> = (0..200u64)
            .filter(|number| *number != 99)
            .map(|number| {
                let caller = caller.clone();
                rt::spawn(async move {
                    let tail = Bytes::from(vec![7; (number as usize % 5) * 20_000]);
                    let body = vec![request(number), tail.clone()];
                    match caller.call(body).await {
                        Ok(reply) => {
                            assert_eq!(reply[..8], (number + 1).to_le_bytes());
                            assert_eq!(reply[8..], tail);
                        }
                        Err(error) => {
                            assert_eq!((number, error.kind()), (13, crate::ErrorKind::Fenced));
                            assert_eq!(error.to_string(), "unlucky");
                        }
                    }
                })
            })
            .collect();
        for call in calls {
            call.await.expect("nobody aborts it");
        }
        assert!(handler.most.load(Ordering::SeqCst) <= 8, "no more run than may");
        drop(caller);
        assert_eq!(server.await, Ok(ServeEnd::Link));
    });
}

#[test]
fn requests_arrive_in_the_order_in_which_they_began_and_notices_in_theirs() {
    in_both_worlds(|name| async move {
        let (near, far) = pair(&name).await;
        let handler = Arc::new(Next::default());
        let stop = CancellationToken::new();
        let server = rt::spawn(serve(far, handler.clone(), 3, stop.clone()));
        let noticed = Arc::new(Mutex::new(Vec::new()));
        let caller = RpcClient::new(near, 50, {
            let noticed = Arc::clone(&noticed);
            move |notice| noticed.lock().expect("nobody panics").push(number(&notice))
        });
        let mut pending = Vec::new();
        for number in 100..140 {
            let reply = caller.start(request(number)).await.expect("the link is whole");
            // Every third answer is abandoned; its request is served all the same.
            if number % 3 > 0 {
                pending.push((number, reply));
            }
        }
        for (asked, reply) in pending {
            assert_eq!(number(&reply.await.expect("the link is whole")), asked + 1);
        }
        assert_eq!(*handler.order.lock().expect("nobody panics"), (100..140).collect::<Vec<_>>());
        let notifier = handler.notifier.lock().expect("nobody panics").clone().expect("the link was opened");
        for number in 0..300 {
            notifier.notify(request(number)).await.expect("the link is whole");
        }
        caller.call(request(1)).await.expect("the link is whole");
        assert_eq!(*noticed.lock().expect("nobody panics"), (0..300).collect::<Vec<_>>());
        stop.cancel();
        assert_eq!(server.await, Ok(ServeEnd::Stopped));
        caller.ended().await;
        assert_eq!(caller.call(request(1)).await, Err(RpcError::Closed));
        assert!(notifier.notify(request(1)).await.is_err());
    });
}

/// Regression: a handler that panicked sent no answer, and its caller waited for ever.
#[test]
fn a_panic_of_the_handler_ends_the_link() {
    rt::production::run(async {
        let (near, far) = pair("call-test-panic").await;
        let server = rt::spawn(serve(far, Arc::new(Next::default()), 8, CancellationToken::new()));
        let caller = RpcClient::new(near, 4, |_| {});
        assert_eq!(caller.call(request(99)).await, Err(RpcError::Ambiguous));
        assert_eq!(server.await, Ok(ServeEnd::Panicked));
    });
}

/// Takes requests and never answers.
struct Silent;

impl RpcHandler for Silent {
    fn request(&self, _: GatherList) -> ResponseFuture {
        Box::pin(std::future::pending())
    }
}

#[test]
fn a_link_that_ends_leaves_sent_requests_ambiguous_and_others_unsent() {
    in_both_worlds(|name| async move {
        let (near, far) = pair(&name).await;
        let stop = CancellationToken::new();
        let server = rt::spawn(serve(far, Arc::new(Silent), 100, stop.clone()));
        let caller = RpcClient::new(near, 2, |_| {});
        let first = caller.start(request(1)).await.expect("the link is whole");
        let second = caller.start(request(2)).await.expect("the link is whole");
        let third = rt::spawn({
            let caller = caller.clone();
            async move { caller.call(request(3)).await }
        });
        let given_up = caller.start(request(4));
        assert!(rt::timeout(Duration::from_millis(20), given_up).await.is_err(), "two are in flight");
        stop.cancel();
        assert_eq!(server.await, Ok(ServeEnd::Stopped));
        assert_eq!(first.await, Err(RpcError::Ambiguous));
        assert_eq!(second.await, Err(RpcError::Ambiguous));
        assert_eq!(third.await, Ok(Err(RpcError::Closed)), "it had no place, so it was not sent");
        assert_eq!(caller.call(request(5)).await, Err(RpcError::Closed));
    });
}

#[test]
fn a_request_that_was_said_to_be_unsent_is_never_served() {
    for seed in 0..200 {
        let run = Simulation::new(seed).time_max(LONG).run(|sim| async move {
            let served = Arc::new(Mutex::new(Vec::new()));
            let server = sim.node("server");
            server.start({
                let served = Arc::clone(&served);
                move || {
                    let served = Arc::clone(&served);
                    async move {
                        let mut listener = listen("server").await.expect("the address is free");
                        while let Ok(link) = listener.accept().await {
                            let handler = Next { order: Arc::clone(&served), ..Next::default() };
                            drop(rt::spawn(serve(link, Arc::new(handler), 4, CancellationToken::new())));
                        }
                    }
                }
            });
            let mut rng = sim.rng();
            rt::sleep(Duration::from_millis(1)).await;
            let mut unsent = Vec::new();
            let mut answered = Vec::new();
            for round in 0..10u64 {
                let Ok(link) = connect("server").await else {
                    rt::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let caller = RpcClient::new(link, 8, |_| {});
                let calls: Vec<_> = (0..30u64)
                    .map(|index| {
                        let (caller, number) = (caller.clone(), 1000 * (round + 1) + index);
                        rt::spawn(async move { (number, caller.call(request(number)).await) })
                    })
                    .collect();
                rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(2)))).await;
                match rng.index(4) {
                    0 => sim.break_links("driver", "server"),
                    1 => {
                        server.crash();
                        server.restart();
                    }
                    2 => caller.end(),
                    _ => {}
                }
                for call in calls {
                    match call.await.expect("nobody aborts it") {
                        (number, Ok(_)) => answered.push(number),
                        (number, Err(RpcError::Closed)) => unsent.push(number),
                        (_, Err(error)) => assert_eq!(error, RpcError::Ambiguous),
                    }
                }
            }
            rt::sleep(Duration::from_secs(5)).await;
            let served = served.lock().expect("nobody panics");
            assert!(unsent.iter().all(|number| !served.contains(number)), "an unsent request was served");
            assert!(answered.iter().all(|number| served.contains(number)));
            let mut once = served.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), served.len(), "no request is served twice");
        });
        run.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

#[test]
fn frames_have_the_documented_bytes() {
    let frame = OutgoingFrame {
        kind: RpcFrameKind::Request,
        number: 0x0102,
        body: vec![Bytes::from("he"), Bytes::from("y")].into(),
    };
    let message = frame::message(slice::from_ref(&frame)).concat();
    assert_eq!(message[..], *b"\x01\0\0\0\x03\0\0\0\x02\x01\0\0\0\0\0\0hey");
    assert_eq!(message.len(), frame.bytes());
    let refusal = Rejection::new(crate::ErrorKind::Fenced, "no");
    let body = frame::encode_rejection(&refusal);
    assert_eq!(body.concat()[..], *b"\x02no");
    assert_eq!(frame::decode_rejection(b"\x02no"), Ok(refusal));
    let mut both = GatherList::from([&message[..], &message[..]].concat());
    for _ in 0..2 {
        let incoming = IncomingFrame { kind: RpcFrameKind::Request, number: 0x0102, body: Bytes::from("hey").into() };
        assert_eq!(frame::next(&mut both), Ok(Some(incoming)));
    }
    assert_eq!(frame::next(&mut both), Ok(None));
    let long = Rejection::new(crate::ErrorKind::Retry, "ä".repeat(REJECTION_BYTES_MAX));
    assert!(long.text.len() <= REJECTION_BYTES_MAX && long.text.chars().all(|letter| letter == 'ä'));
}

#[test]
fn long_parts_are_not_copied_into_the_message() {
    let long = Bytes::from(vec![7; 10_000]);
    let short = Bytes::from("short");
    let bodies = [vec![short.clone(), long.clone(), short.clone()], vec![short.clone()], vec![long.clone()], vec![]];
    let frame = |(number, body): (u64, &Vec<Bytes>)| OutgoingFrame {
        kind: RpcFrameKind::Request,
        number,
        body: body.clone().into(),
    };
    let frames: Vec<OutgoingFrame> = (0..).zip(&bodies).map(frame).collect();
    let message = frame::message(&frames);
    let shared = message.as_slice().iter().filter(|part| part.as_ptr() == long.as_ptr()).count();
    assert_eq!((shared, message.as_slice().len()), (2, 5));
    assert_eq!(message.len(), frames.iter().map(OutgoingFrame::bytes).sum());
    let mut uncopied = 0;
    for mut rest in [message.clone(), message.concat().into()] {
        for (number, body) in (0..).zip(&bodies) {
            let incoming = frame::next(&mut rest).expect("they are frames").expect("there are as many");
            assert_eq!(incoming, IncomingFrame { kind: RpcFrameKind::Request, number, body: body.concat().into() });
            uncopied += incoming.body.as_slice().iter().filter(|part| part.as_ptr() == long.as_ptr()).count();
        }
        assert_eq!(frame::next(&mut rest), Ok(None));
    }
    assert_eq!(uncopied, 2, "what comes in parts is left in parts");
}

#[test]
fn hostile_bytes_end_the_link_and_nothing_else() {
    let good = |kind: u8, number: u8| {
        let mut bytes = vec![kind, 0, 0, 0, 8, 0, 0, 0, number, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend_from_slice(&5u64.to_le_bytes());
        bytes
    };
    let mut cases: Vec<Vec<u8>> = vec![vec![1], good(9, 0), good(2, 0), good(3, 0), good(4, 1), good(1, 0)];
    cases.push([&good(1, 0)[..], &[1, 2, 3]].concat());
    cases.push(vec![1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
    cases.push(vec![3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut rng = Prng::new(5);
    for _ in 0..300 {
        let mut bytes = good(1 + rng.index(4) as u8, 0);
        let at = rng.index(bytes.len());
        bytes[at] = rng.number() as u8;
        bytes.truncate(rng.index(bytes.len() + 1));
        cases.push(bytes);
    }
    for bytes in cases {
        let run = Simulation::new(1).time_max(LONG).run(|_| async move {
            // To a server.
            let (near, far) = pair("a").await;
            let server = rt::spawn(serve(far, Arc::new(Silent), 4, CancellationToken::new()));
            near.send(bytes.clone()).await.expect("the link is whole");
            drop(near);
            assert_ne!(server.await.expect("it ends"), ServeEnd::Panicked);
            // To a caller.
            let (near, far) = pair("b").await;
            let caller = RpcClient::new(near, 4, |_| {});
            far.send(bytes).await.expect("the link is whole");
            let answer = rt::timeout(Duration::from_secs(1), caller.call(request(1)));
            // An answer, an error or silence; and no panic.
            let _ = answer.await;
        });
        run.expect("hostile bytes do no harm");
    }
}

/// Regression: an unused link kept its permit for ever, and 140 of them were enough to keep the gateways of other organisations
/// out.
#[test]
fn a_link_on_which_nothing_is_asked_is_ended() {
    for asks in [false, true] {
        Simulation::new(7)
            .time_max(4 * IDLE_TIMEOUT)
            .run(move |_| async move {
                let (mut near, far) = pair("silent").await;
                let serving = rt::spawn(serve(far, Arc::new(Next::default()), 4, CancellationToken::new()));
                let begun = rt::now();
                if asks {
                    let ask = OutgoingFrame { kind: RpcFrameKind::Request, number: 0, body: request(1).into() };
                    near.send(super::frame::message(slice::from_ref(&ask))).await.expect("it is served");
                }
                while near.receive().await.is_ok() {}
                let limit = if asks { FIRST_MESSAGE_TIMEOUT + IDLE_TIMEOUT } else { FIRST_MESSAGE_TIMEOUT };
                assert!(begun.elapsed() >= limit && begun.elapsed() < limit + Duration::from_secs(1));
                assert_eq!(serving.await, Ok(ServeEnd::Idle));
            })
            .expect("the scenario completes");
    }
}

#[test]
fn a_caller_that_asks_nothing_keeps_its_link() {
    Simulation::new(8)
        .time_max(10 * IDLE_TIMEOUT)
        .run(|_| async {
            let (near, far) = pair("patient").await;
            let serving = rt::spawn(serve(far, Arc::new(Next::default()), 4, CancellationToken::new()));
            let caller = RpcClient::new(near, 4, |_| {});
            rt::sleep(5 * IDLE_TIMEOUT).await;
            assert_eq!(caller.call(request(1)).await.map(|answer| number(&answer)), Ok(2));
            caller.end();
            assert_eq!(serving.await, Ok(ServeEnd::Link));
        })
        .expect("the scenario completes");
}

/// Answers when its token is stopped.
struct Held(CancellationToken, Arc<AtomicUsize>);

impl RpcHandler for Held {
    fn request(&self, request: GatherList) -> ResponseFuture {
        let (release, bytes) = (self.0.clone(), Arc::clone(&self.1));
        bytes.fetch_add(request.len(), Ordering::SeqCst);
        Box::pin(async move {
            release.cancelled().await;
            bytes.fetch_sub(request.len(), Ordering::SeqCst);
            Ok(GatherList::default())
        })
    }
}

#[test]
fn a_server_holds_a_bounded_number_of_bytes_of_one_link() {
    Simulation::new(9)
        .time_max(LONG)
        .run(|_| async {
            let (near, far) = pair("heavy").await;
            let (release, held) = (CancellationToken::new(), Arc::<AtomicUsize>::default());
            let handler = Arc::new(Held(release.clone(), Arc::clone(&held)));
            drop(rt::spawn(serve(far, handler, 64, CancellationToken::new())));
            let caller = RpcClient::new(near, 64, |_| {});
            let body = Bytes::from(vec![0; LINK_REQUEST_BYTES_MAX / 4]);
            let calls: Vec<_> = (0..12)
                .map(|_| {
                    let (caller, body) = (caller.clone(), body.clone());
                    rt::spawn(async move { caller.call(body).await })
                })
                .collect();
            rt::sleep(Duration::from_secs(1)).await;
            assert_eq!(held.load(Ordering::SeqCst), LINK_REQUEST_BYTES_MAX);
            release.cancel();
            for call in calls {
                assert_eq!(call.await, Ok(Ok(Bytes::new())));
            }
            // A request longer than the limit is accepted when it is alone.
            assert_eq!(caller.call(vec![0; LINK_REQUEST_BYTES_MAX + 1]).await, Ok(Bytes::new()));
        })
        .expect("the scenario completes");
}

/// Regression: a receiver that read nothing kept the answers that it had asked for in memory for ever.
#[test]
fn a_receiver_that_takes_nothing_loses_its_link() {
    Simulation::new(10)
        .time_max(10 * IDLE_TIMEOUT)
        .run(|_| async {
            let (near, far) = pair("stuck").await;
            let serving = rt::spawn(serve(far, Arc::new(Next::default()), 4, CancellationToken::new()));
            let asking = async {
                for number in 0.. {
                    let ask = OutgoingFrame { kind: RpcFrameKind::Request, number, body: request(1).into() };
                    near.send(super::frame::message(slice::from_ref(&ask))).await?;
                }
                Ok::<(), rt::channel::Closed>(())
            };
            assert!(asking.await.is_err(), "nothing is received, so the link ends");
            assert_eq!(serving.await, Ok(ServeEnd::Link));
        })
        .expect("the scenario completes");
}
