//! A hostile member, in the place of one of three, that sends arbitrary messages.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::rt::net;
use base::rt::net::BoxFuture;
use base::rt::simulation::{Sim, Simulation, SimulationFailure, SimulationReport};
use base::{Bytes, BytesMut, rt};
use raft_rs::eraftpb::{ConfChange, ConfState, Entry, EntryType, Message, MessageType, Snapshot};

use crate::codec::KINDS;
use crate::engine::snapshot_format::snapshot_data;
use crate::fault::{Mutant, plant};
use crate::{AppliedEntry, Error, Raft, RaftConfig, RaftMember, RaftTimeouts, StateMachine, Term, links};

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const GROUP: u64 = 5;
/// The number of the hostile member.
const LIAR: u64 = 3;
const FRAMES: usize = 1500;

struct Nothing;

impl StateMachine for Nothing {
    type Output = ();

    fn apply(&mut self, entries: Vec<AppliedEntry>) -> Vec<()> {
        vec![(); entries.len()]
    }

    fn snapshot(&mut self) -> BoxFuture<'static, Result<Bytes, Error>> {
        Box::pin(async { Ok(Bytes::new()) })
    }

    fn restore(&mut self, _index: u64, _snapshot: Bytes) -> Result<(), Error> {
        Ok(())
    }
}

fn members() -> Vec<RaftMember> {
    let member = |id: u64| RaftMember { id, address: NODES[id as usize - 1].to_owned(), is_learner: false };
    (1..=3).map(member).collect()
}

fn options(node: u64, is_durable: bool) -> RaftConfig {
    let timing = RaftTimeouts { tick: Duration::from_millis(5), heartbeat_ticks: 2, election_ticks: 8 };
    RaftConfig {
        directory: is_durable.then(|| "/raft".into()),
        timing,
        log_bytes: 400,
        snapshot_after_bytes: 4000,
        ..RaftConfig::new(GROUP, node, members())
    }
}

/// The nodes under attack, so that lies can be close to the truth.
type Targets = Arc<Mutex<[Option<Raft<()>>; 2]>>;

async fn target(targets: Targets, node: u64, is_durable: bool) {
    loop {
        let Ok(raft) = Raft::start(options(node, is_durable), Nothing).await else {
            // The messages have spoilt its log. That is no panic.
            return;
        };
        targets.lock().unwrap_or_else(PoisonError::into_inner)[node as usize - 1] = Some(raft.clone());
        let proposing = async {
            loop {
                let _ = raft.propose(vec![1; 1 + rt::random_below(60) as usize].into()).await;
                rt::sleep(Duration::from_micros(rt::random_below(20_000))).await;
            }
        };
        let ended = raft.ended();
        futures_util::future::select(std::pin::pin!(proposing), std::pin::pin!(ended)).await;
        targets.lock().unwrap_or_else(PoisonError::into_inner)[node as usize - 1] = None;
        raft.stop().await;
        rt::sleep(Duration::from_millis(30)).await;
    }
}

/// A number near another one, or far away.
fn near(number: u64) -> u64 {
    match rt::random_below(24) {
        0 => 0,
        1 => rt::random_u64(),
        2 => (1 << 62) - 1,
        3 => number + rt::random_below(1 << 20),
        4..12 => (number + rt::random_below(9)).saturating_sub(4),
        _ => number,
    }
}

fn is_so(of: u64) -> bool {
    rt::random_below(of) == 0
}

fn entries(message: &Message) -> Vec<Entry> {
    let mut term = message.log_term;
    let entry = |index: u64| {
        if is_so(4) {
            term = near(message.term).clamp(term, message.term.max(term));
        }
        let mut entry = Entry { index, term: term.max(1), ..Entry::default() };
        match rt::random_below(12) {
            0 => entry.entry_type = EntryType::EntryConfChangeV2,
            1 => {
                entry.entry_type = EntryType::EntryConfChange;
                let change = ConfChange { node_id: rt::random_below(6), ..ConfChange::default() };
                entry.data = protobuf::Message::write_to_bytes(&change).expect("it is small").into();
            }
            2 => {}
            _ => entry.data = vec![9; rt::random_below(80) as usize].into(),
        }
        entry
    };
    let first = message.index.saturating_add(1);
    (first..first.saturating_add(rt::random_below(6))).map(entry).collect()
}

fn snapshot(index: u64, term: u64) -> Snapshot {
    let members = members().into_iter().map(|member| (member.id, member)).collect();
    let mut state = ConfState::default();
    state.voters.extend([1, 2, 3]);
    match rt::random_below(12) {
        0 => state.learners.push(2),
        1 => drop(state.voters.pop()),
        2 => state.voters.push(7),
        _ => {}
    }
    let data = if is_so(8) { Bytes::from_static(b"what") } else { snapshot_data(&members, b"machine") };
    let mut snapshot = Snapshot { data, ..Snapshot::default() };
    let metadata = snapshot.mut_metadata();
    (metadata.index, metadata.term) = (index, term);
    metadata.set_conf_state(state);
    snapshot
}

fn message(to: u64, term: u64, applied: u64) -> Message {
    let sent = &KINDS[..KINDS.len() - 1];
    let term = if is_so(3) { near(term) } else { term + rt::random_below(2) };
    let mut message = Message {
        msg_type: sent[rt::random_below(sent.len() as u64) as usize],
        to,
        from: LIAR,
        term,
        log_term: near(term),
        index: near(applied),
        commit: near(applied),
        commit_term: near(term),
        reject: is_so(2),
        reject_hint: near(applied),
        ..Message::default()
    };
    match message.msg_type {
        MessageType::MsgAppend => message.entries = entries(&message).into(),
        MessageType::MsgSnapshot => message.set_snapshot(snapshot(near(applied), near(term))),
        // Most messages that the crate takes for lost entries end the node, as they must.
        MessageType::MsgHeartbeat if !is_so(20) => message.commit = message.commit.min(applied),
        MessageType::MsgHeartbeatResponse => {
            let round = rt::random_below(200).to_le_bytes();
            message.context = Bytes::copy_from_slice(&round[..rt::random_below(9) as usize]);
        }
        _ => {}
    }
    message
}

/// Sends lies to both other members.
async fn lie(targets: &Targets) -> u64 {
    let mut sent = 0;
    let mut links: [Option<net::LinkSender>; 2] = [None, None];
    for _ in 0..FRAMES {
        let to = 1 + rt::random_below(2);
        let link = &mut links[to as usize - 1];
        if link.is_none()
            && let Ok(made) = net::connect(NODES[to as usize - 1]).await
        {
            let ends =
                links::LinkEndpoints { group: GROUP, from: LIAR, incarnation: 0, address: NODES[2].to_owned(), to };
            let (sender, _) = made.split();
            *link = links::greet(&sender, &ends).await.then_some(sender);
        }
        let known = targets.lock().unwrap_or_else(PoisonError::into_inner)[to as usize - 1].clone();
        let (term, applied) = known.map_or((Term(1), 1), |raft| (raft.status().borrow().term, raft.applied()));
        // A message that does not decode ends the link, and drops the messages behind it in its frame.
        let messages: Vec<Message> = (0..1 + rt::random_below(4)).map(|_| message(to, term.0, applied)).collect();
        if let Some(sender) = link {
            sent += messages.len() as u64;
            if sender.send(links::frame(&messages)).await.is_err() {
                *link = None;
            }
        }
        if is_so(3) {
            rt::sleep(Duration::from_micros(rt::random_below(4000))).await;
        }
    }
    sent
}

async fn scenario(sim: Sim, mutant: Mutant) -> u64 {
    plant(mutant);
    let targets = Targets::default();
    let is_durable = !sim.seed().is_multiple_of(3);
    for (which, name) in NODES[..2].iter().enumerate() {
        let targets = targets.clone();
        sim.node(name).start(move || target(targets.clone(), which as u64 + 1, is_durable));
    }
    rt::sleep(Duration::from_millis(100)).await;
    lie(&targets).await
}

fn run(seed: u64, mutant: Mutant) -> Result<SimulationReport<u64>, Box<SimulationFailure>> {
    Simulation::new(seed).steps_max(4_000_000).run(move |sim| scenario(sim, mutant))
}

#[test]
fn no_message_of_a_peer_reaches_an_assertion() {
    for seed in 0..60 {
        let report = run(seed, Mutant::None).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        assert!(report.value > 300, "seed {seed}: {} messages", report.value);
    }
}

#[test]
fn messages_that_nobody_looks_at_reach_assertions() {
    let caught = (0..60).find_map(|seed| run(seed, Mutant::TakeAnything).err());
    let caught = caught.expect("some seed ends a node by an assertion");
    assert!(caught.reason.to_string().contains("panicked"), "{caught}");
}

#[test]
fn a_message_of_bytes_by_chance_is_an_error() {
    let decode = |bytes: BytesMut| links::decode(bytes.freeze());
    let outcome = Simulation::new(3).run(move |_| async move {
        for _ in 0..20_000 {
            let mut bytes = BytesMut::from(&links::frame(&[message(1, 5, 40)])[..]);
            for _ in 0..1 + rt::random_below(3) {
                let at = rt::random_below(bytes.len() as u64) as usize;
                bytes[at] = rt::random_u64() as u8;
            }
            bytes.truncate(bytes.len() - rt::random_below(3) as usize);
            let _ = decode(bytes);
        }
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
