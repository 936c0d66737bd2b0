//! The cost of a verb of the `tcp` provider compared with an echo of the same bytes over a bare socket whose two ends spin.
//!
//! `cargo run --release -p heddle-rma --example tcp_costs [ROUNDS [NAME [verb|floor]]]`
//!
//! Verbs and echoes alternate, batch by batch, with a client on one core and a server on another. The output shows
//! medians of single round trips, and of rates with many in flight. NAME selects the measurements whose name contains
//! it, such as `read` or `write 1024`. With the third argument only the verbs (`verb`) or only the echoes (`floor`)
//! run, for a profiler or a count of system calls.

#![allow(clippy::disallowed_methods, reason = "it measures the machine's time")]

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use base::{Bytes, BytesMut};
use rma::tcp::{TcpConfig, TcpProvider};
use rma::{Capability, Credential, Endpoint, HostConfig, IncomingEvent, NodeId, Provider, Rights, Token};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{CpuSet, Pid, sched_setaffinity};

const REGION_BYTES: u64 = 8 << 20;
const OFFSET: u64 = 4096;

fn pin(thread: Option<Pid>, processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    // On a machine with one core both share it.
    let _ = sched_setaffinity(thread, &set);
}

fn pin_named(name: &str, processor: usize) {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs is there");
    for task in tasks.flatten() {
        if std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name) {
            pin(task.file_name().to_str().and_then(|id| Pid::from_raw(id.parse().ok()?)), processor);
        }
    }
}

/// A bare socket to a thread that answers requests of a fixed size with replies of a fixed size.
struct Echo {
    socket: TcpStream,
    request: Vec<u8>,
    reply: Vec<u8>,
}

/// The bytes that a call has moved; 0 when it would have blocked.
fn now(done: io::Result<usize>) -> usize {
    match done {
        Ok(0) => std::process::exit(0),
        Ok(count) => count,
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        Err(error) => panic!("a socket: {error}"),
    }
}

impl Echo {
    fn start(request: usize, reply: usize, depth: usize) -> Echo {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let socket = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
        let (mut served, _) = listener.accept().expect("it was connected");
        for socket in [&socket, &served] {
            socket.set_nodelay(true).expect("it is open");
            socket.set_nonblocking(true).expect("it is open");
        }
        let frames = |bytes: usize| vec![7u8; (65536 / bytes).max(1) * bytes];
        let (mut requests, replies) = (frames(request), frames(reply));
        let client = Echo {
            socket,
            request: frames(request),
            reply: vec![0; if reply >= 65536 { depth * reply } else { 65536 / reply * reply }],
        };
        let spin = TcpConfig::default().spin;
        std::thread::spawn(move || {
            pin(None, 1);
            let (mut received, mut sent) = (0, 0);
            let mut last = Instant::now();
            loop {
                let at = received % requests.len();
                match served.read(&mut requests[at..]) {
                    Ok(0) => return,
                    Ok(count) => received += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        // It shares its core with the provider's thread.
                        if last.elapsed() > spin {
                            let _ = poll(&mut [PollFd::new(&served, PollFlags::IN)], None);
                            last = Instant::now();
                        }
                        continue;
                    }
                    Err(_) => return,
                }
                last = Instant::now();
                let owed = received / request * reply;
                while sent < owed {
                    let at = sent % replies.len();
                    let end = replies.len().min(at + owed - sent);
                    match served.write(&replies[at..end]) {
                        Ok(count) => sent += count,
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        Err(_) => return,
                    }
                }
            }
        });
        client
    }

    fn exchange(&mut self, request: usize, reply: usize, count: usize, depth: usize) {
        let (mut sent, mut received) = (0, 0);
        while received < count * reply {
            let may_send = count.min(received / reply + depth) * request;
            if sent < may_send {
                let at = sent % self.request.len();
                let end = self.request.len().min(at + may_send - sent);
                sent += now(self.socket.write(&self.request[at..end]));
            }
            if sent == may_send || depth > 1 {
                let at = received % self.reply.len();
                let end = self.reply.len().min(at + count * reply - received);
                received += now(self.socket.read(&mut self.reply[at..end]));
            }
        }
    }
}

struct MessageClient {
    endpoint: Endpoint,
    accepted: Endpoint,
    capability: Capability,
    payload: [Bytes; 1],
    buffers: Vec<BytesMut>,
    bytes: usize,
}

fn message(incoming: IncomingEvent) -> Bytes {
    match incoming {
        IncomingEvent::Message(message) => message,
        IncomingEvent::Immediate { .. } => panic!("nobody sent immediate data"),
    }
}

impl MessageClient {
    async fn one(&mut self, verb: &str) {
        let MessageClient { endpoint, accepted, capability, payload, buffers, bytes } = self;
        match verb {
            "read" => {
                let read = endpoint.read(capability, OFFSET, *bytes, std::mem::take(&mut buffers[0])).await;
                buffers[0] = read.expect("it is granted");
                buffers[0].clear();
            }
            "write" => endpoint.write(capability, OFFSET, payload).await.expect("it is granted"),
            "immediate" => {
                endpoint.write_with_immediate(capability, OFFSET, payload, 1).await.expect("it is granted");
            }
            "add" => {
                endpoint.fetch_add(capability, OFFSET, 1).await.expect("it is granted");
            }
            _ => {
                let sent = endpoint.send(payload);
                let message = message(accepted.receive().await.expect("it is connected"));
                sent.await.expect("it is connected");
                let sent = accepted.send(&[message]);
                drop(self::message(endpoint.receive().await.expect("it is connected")));
                sent.await.expect("it is connected");
            }
        }
    }

    async fn many(&mut self, verb: &str, count: usize, depth: usize) {
        for _ in 0..count / depth {
            let MessageClient { endpoint, accepted, capability, payload, buffers, bytes } = self;
            match verb {
                "read" => {
                    let reads: Vec<_> = buffers
                        .iter_mut()
                        .map(|into| endpoint.read(capability, OFFSET, *bytes, std::mem::take(into)))
                        .collect();
                    endpoint.flush();
                    for (read, into) in reads.into_iter().zip(buffers) {
                        *into = read.await.expect("it is granted");
                        into.clear();
                    }
                }
                "write" | "immediate" => {
                    let writes: Vec<_> = (0..depth)
                        .map(|_| match verb {
                            "write" => endpoint.write(capability, OFFSET, payload),
                            _ => endpoint.write_with_immediate(capability, OFFSET, payload, 1),
                        })
                        .collect();
                    endpoint.flush();
                    for write in writes {
                        write.await.expect("it is granted");
                        if verb == "immediate" {
                            accepted.receive().await.expect("it is connected");
                        }
                    }
                }
                "add" => {
                    let words: Vec<_> = (0..depth).map(|_| endpoint.fetch_add(capability, OFFSET, 1)).collect();
                    endpoint.flush();
                    for word in words {
                        word.await.expect("it is granted");
                    }
                }
                _ => {
                    let sent: Vec<_> = (0..depth).map(|_| endpoint.send(payload)).collect();
                    let mut answered = Vec::new();
                    for _ in 0..depth {
                        let message = message(accepted.receive().await.expect("it is connected"));
                        answered.push(accepted.send(&[message]));
                    }
                    for _ in 0..depth {
                        drop(message(endpoint.receive().await.expect("it is connected")));
                    }
                    for sent in sent.into_iter().chain(answered) {
                        sent.await.expect("it is connected");
                    }
                }
            }
        }
    }
}

/// Segments that this machine has sent, and those that only acknowledge.
fn segments() -> u64 {
    let table = std::fs::read_to_string("/proc/net/snmp").unwrap_or_default();
    let mut lines = table.lines().filter(|line| line.starts_with("Tcp:")).map(|line| line.split(' '));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return 0 };
    names.zip(values).find(|(name, _)| *name == "OutSegs").and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let rounds: usize = arguments.next().and_then(|rounds| rounds.parse().ok()).unwrap_or(21);
    let part = arguments.next().unwrap_or_default();
    let only = arguments.next().unwrap_or_default();
    base::rt::production::run(async move {
        let token = Token::random();
        let known = token.clone();
        let tokens = Arc::new(move |_: &str| Some(known.clone()));
        let provider = TcpProvider::default();
        let host = provider.host("127.0.0.1:0", HostConfig { node: NodeId(1), tokens }).await.expect("a port is free");
        let credential = Credential { name: "bench".to_owned(), token };
        let endpoint = provider.connect(&host.address(), &credential).await.expect("the token is right");
        let accepted = host.accept().await.expect("it was connected");
        let region = host.register("bench", REGION_BYTES).await.expect("there is memory");
        let capability = host.grant(region, Rights::ALL, "bench").expect("it has grants left");
        let zeroes = Bytes::from(vec![0; 1 << 20]);
        for at in (0..REGION_BYTES).step_by(1 << 20) {
            endpoint.write(&capability, at, std::slice::from_ref(&zeroes)).await.expect("it is granted");
        }
        pin(None, 0);
        pin_named("rma-tcp", 1);
        for verb in ["read", "write", "immediate", "add", "send"] {
            for bytes in [8usize, 1 << 10, 10 << 10, 1 << 20] {
                let name = format!("{verb} {bytes}");
                if !name.contains(&part) || (verb == "add" && bytes > 8) {
                    continue;
                }
                let (request, reply) = match verb {
                    "read" | "add" => (8, bytes),
                    "send" => (bytes, bytes),
                    _ => (bytes, 8),
                };
                let depth = ((4 << 20) / bytes).clamp(1, 64);
                let mut caller = MessageClient {
                    endpoint: endpoint.clone(),
                    accepted: accepted.clone(),
                    capability,
                    payload: [Bytes::from(vec![7; bytes])],
                    buffers: (0..depth).map(|_| BytesMut::with_capacity(bytes)).collect(),
                    bytes,
                };
                let mut echo = Echo::start(request, reply, depth);
                let count = if bytes > 65536 { 32 } else { 256 };
                let many = count.max(depth * 4) / depth * depth;
                let (mut times, mut rates, mut sent) = ([vec![], vec![]], [vec![], vec![]], [0, 0]);
                for round in 0..2 * rounds {
                    let side = round % 2;
                    if (only == "verb" && side == 1) || (only == "floor" && side == 0) {
                        continue;
                    }
                    let before = segments();
                    for _ in 0..count {
                        let begin = Instant::now();
                        match side {
                            0 => caller.one(verb).await,
                            _ => echo.exchange(request, reply, 1, 1),
                        }
                        times[side].push(begin.elapsed().as_nanos() as f64);
                        if side == 0 && verb == "immediate" {
                            accepted.receive().await.expect("it is connected");
                        }
                    }
                    sent[side] += segments() - before;
                    let begin = Instant::now();
                    match side {
                        0 => caller.many(verb, many, depth).await,
                        _ => echo.exchange(request, reply, many, depth),
                    }
                    rates[side].push(many as f64 / begin.elapsed().as_secs_f64());
                }
                let median = |values: &mut Vec<f64>| {
                    values.sort_by(f64::total_cmp);
                    values.get(values.len() / 2).copied().unwrap_or(0.0)
                };
                let [time, floor] = times.each_mut().map(median);
                let [rate, floor_rate] = rates.each_mut().map(median);
                let segments = sent.map(|sent| sent as f64 / (rounds * count) as f64);
                println!(
                    "{name:<18} {time:>8.0} ns, floor {floor:>8.0}, x {:.2}; segments {:.1}, floor {:.1}; many {rate:>8.0}/s, \
                     floor {floor_rate:>8.0}, x {:.2}",
                    time / floor,
                    segments[0],
                    segments[1],
                    rate / floor_rate
                );
            }
        }
    });
}
