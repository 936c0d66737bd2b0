//! A whole channel in simulated worlds: three peers, an orderer and clients, under crashes, pauses, cuts and full disks.
//!
//! Nodes share nothing but links and what is on their disks. At the end everything is healed, and then:
//! 1. all peers hold the same blocks and equal states;
//! 2. what any peer ever reported as committed still is, with the same code, in the same block;
//! 3. a sequential interpreter that reads nothing but the blocks comes to the same codes and the same state.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::rt::disk::Directory;
use base::rt::simulation::{Bounds, FaultKind, Plan, Sim, Simulation};
use base::rt::{self, Stop, net};
use base::{Bytes, TxId, Version};
use chain::Channel;
use chain::access::Definitions;
use chain::endorse::Endorse;
use chain::order::{Broadcast, Orderer, OrdererOptions};
use chain::peer::Peer;
use chain::remote::{RemoteOrderer, RemotePeer, RemotePeerOptions, Scope, serve_orderer, serve_peer};
use chain::rwset::{RangeReads, ReadWriteSet};
use chain::validate::Code;
use chain::view::PeerView;
use ledger::Block;
use ledger::config::EndorsementRule;
use proto::protos::ProposalResponse;
use storage::GroupSync;
use storage::tables::ModelEngine;
use support::*;

const PEERS: usize = 3;
const CLIENTS: usize = 3;
const ACCOUNTS: u64 = 6;
const TRANSACTIONS: u64 = 40;

/// Answers every message with the peer's verdict.
async fn tell_verdicts(address: String, peer: &Peer) {
    let Ok(mut listener) = net::listen(&address).await else { return };
    while let Ok(mut link) = listener.accept().await {
        let Some(channel) = peer.channel(CHANNEL) else { continue };
        drop(rt::spawn(async move {
            while link.receive().await.is_ok() {
                if link.send(verdict(&channel).await.into()).await.is_err() {
                    return;
                }
            }
        }));
    }
}

/// A peer's verdict; nothing while it cannot be reached.
async fn ask_verdict(index: usize) -> Option<String> {
    let exchange = async {
        let mut link = net::connect(&format!("verdict{index}")).await.ok()?;
        link.send(Bytes::from_static(b"v")).await.ok()?;
        link.receive().await.ok()
    };
    let verdict = rt::timeout(Duration::from_secs(2), exchange).await.ok()??;
    Some(String::from_utf8(verdict.to_vec()).expect("text"))
}

/// The network as a gateway sees it.
struct Remote {
    peers: Vec<RemotePeer>,
    orderer: RemoteOrderer,
}

impl Remote {
    fn new() -> Remote {
        let peers = (0..PEERS).map(|index| {
            let name = format!("peer{index}");
            RemotePeer::new(RemotePeerOptions { address: name.clone(), name, definitions: Definitions::new() })
        });
        Remote { peers: peers.collect(), orderer: RemoteOrderer::new("submit".to_owned()) }
    }

    async fn endorse(&self, peer: usize, proposal: Bytes) -> Option<ProposalResponse> {
        rt::timeout(Duration::from_secs(2), self.peers[peer].process(proposal)).await.ok()?.ok()
    }

    async fn submit(&self, envelope: Bytes) -> bool {
        let taken = rt::timeout(Duration::from_secs(2), self.orderer.broadcast(CHANNEL, envelope)).await;
        matches!(taken, Ok(Ok(())))
    }

    async fn status(&self, peer: usize, tx_id: &TxId) -> Option<(u8, u64)> {
        let channel = self.peers[peer].channel(CHANNEL)?;
        let status = rt::timeout(Duration::from_secs(1), channel.wait_committed(tx_id)).await.ok()?.ok()?;
        Some((status.code.0, status.block))
    }
}

async fn run_orderer(consortium: Arc<Consortium>) {
    loop {
        if let Some(orderer) = open_orderer(&consortium).await {
            let serving = serve_orderer(orderer, "submit", Stop::new()).await;
            return serving.expect("nobody else listens there").await.expect("it serves until the node crashes");
        }
        // A full disk, say.
        rt::sleep(Duration::from_millis(200)).await;
    }
}

async fn open_orderer(consortium: &Consortium) -> Option<Arc<Orderer>> {
    let directory = Directory::open("orderer").await.ok()?;
    let options = OrdererOptions {
        signer: consortium.orderer.clone(),
        directory,
        sync: GroupSync::new(),
        settings: Default::default(),
    };
    let orderer = Orderer::open(options).await.ok()?;
    orderer.join(&consortium.genesis).await.ok()?;
    orderer.serve("blocks").await.ok()?;
    Some(orderer)
}

async fn run_peer(consortium: Arc<Consortium>, index: usize) {
    loop {
        if let Some(peer) = open_peer(&consortium, index).await {
            let address = format!("peer{index}");
            let serving = serve_peer(peer.clone(), Scope::Own, &address, Stop::new()).await;
            let _serving = serving.expect("nobody else listens there");
            return tell_verdicts(format!("verdict{index}"), &peer).await;
        }
        rt::sleep(Duration::from_millis(200)).await;
    }
}

async fn open_peer(consortium: &Consortium, index: usize) -> Option<Arc<Peer>> {
    let root = Directory::open("peer").await.ok()?;
    let tables = ModelEngine::open(root.subdirectory("tables").await.ok()?).await.ok()?;
    let mut options = peer_options(consortium, &root, index, tables).await;
    options.orderers = vec!["blocks".to_owned()];
    options.settings.commit.persist_interval_blocks = 3;
    options.settings.commit.replay_blocks_max = 6;
    let peer = Peer::open(options).await.ok()?;
    peer.join(&consortium.genesis).await.ok()?;
    Some(peer)
}

/// Height and the digests of blocks and state, once the interpreter agrees with the state; what differs otherwise.
async fn verdict(channel: &Channel) -> String {
    if let Some(failure) = channel.failure() {
        return format!("failed: {failure}");
    }
    let height = channel.height();
    let mut interpreter = Interpreter::default();
    let mut blocks = Vec::new();
    for number in 0..height {
        let bytes = channel.read_block(number).await.expect("reads").expect("committed");
        blocks.extend_from_slice(&ledger::sha256(&bytes));
        interpreter.block(&Block::parse(&bytes).expect("a block"));
    }
    if channel.height() != height {
        return "moving".to_owned();
    }
    let snapshot = channel.state().snapshot();
    let mut held = BTreeMap::new();
    for namespace in ["smallbank"] {
        let page = snapshot.range(namespace, "", "", 10_000).await.expect("reads");
        assert!(!page.more, "there are few accounts");
        for entry in page.entries {
            let key = (namespace.to_owned(), entry.key.to_string());
            held.insert(key, (entry.versioned.value, entry.versioned.version));
        }
    }
    if held != interpreter.state {
        return format!("the state is not that of the blocks at height {height}");
    }
    let digest = channel.state().digest().await.expect("reads");
    format!("{height} {} {}", hex::encode(ledger::sha256(&blocks)), hex::encode(digest))
}

/// The sequential rule over whole blocks, with nothing in common with the pipeline but the decoders.
#[derive(Default)]
struct Interpreter {
    state: BTreeMap<(String, String), (Bytes, Version)>,
    ids: BTreeSet<String>,
}

impl Interpreter {
    fn block(&mut self, block: &Block) {
        let number = block.number().get();
        if number == 0 {
            return;
        }
        let before = self.ids.clone();
        let mut written = BTreeSet::new();
        let mut valid_here = BTreeSet::new();
        for (position, envelope) in block.envelopes().enumerate() {
            let code = Code(block.metadata().filter()[position]);
            let transaction = ledger::Transaction::parse(&envelope).expect("clients here are honest");
            let id = transaction.header().tx_id().to_owned();
            let results = transaction.action().and_then(|action| action.outcome(transaction.header()));
            let set = ReadWriteSet::decode(results.expect("honest").results()).expect("endorsers here are honest");
            let expected = if before.contains(&id) || valid_here.contains(&id) {
                Code::DUPLICATE_TXID
            } else {
                // In V1 order the id counts before conflicts are looked at.
                valid_here.insert(id.clone());
                self.conflicts(&set, &written)
            };
            assert_eq!(code, expected, "block {number}, transaction {position}");
            self.ids.insert(id);
            if !code.is_valid() {
                continue;
            }
            for namespace in &set.namespaces {
                for write in &namespace.writes {
                    let key = (set.name(namespace).to_owned(), set.write_key(write).to_owned());
                    written.insert(key.clone());
                    match set.write_value(write) {
                        Some(value) => {
                            self.state.insert(key, (value, Version::new(number, position as u32)));
                        }
                        None => drop(self.state.remove(&key)),
                    }
                }
            }
        }
    }

    fn conflicts(&self, set: &ReadWriteSet, written: &BTreeSet<(String, String)>) -> Code {
        for namespace in &set.namespaces {
            for read in &namespace.reads {
                let key = (set.name(namespace).to_owned(), set.read_key(read).to_owned());
                let seen = read.version.map(|seen| Version::new(seen.block, seen.transaction as u32));
                if written.contains(&key) || self.state.get(&key).map(|(_, version)| *version) != seen {
                    return Code::MVCC_READ_CONFLICT;
                }
            }
            for range in &namespace.ranges {
                assert!(matches!(range.reads, RangeReads::Results(_)), "ranges here are short");
            }
        }
        Code::VALID
    }
}

/// Something that a peer reported as committed.
type Report = (String, u8, u64);

/// Sends transactions until all have been committed or given up; what was reported.
async fn run_client(consortium: Arc<Consortium>, sim: Sim, creates: bool) -> Vec<Report> {
    let client = consortium.client();
    let remote = Remote::new();
    let mut chance = sim.chance();
    let mut reports = Vec::new();
    let mut pick = |bound: u64| chance.below(bound);
    for number in 0..if creates { ACCOUNTS } else { TRANSACTIONS } {
        let account = |number: u64| format!("c{number}");
        let (from, to) = (account(pick(ACCOUNTS)), account(pick(ACCOUNTS)));
        let new = account(if creates { number } else { ACCOUNTS + pick(40) });
        let (function, args): (&str, Vec<&str>) = match pick(4) {
            _ if creates => ("create_account", vec![&new, &new, "1000", "1000"]),
            0 => ("deposit_checking", vec!["5", &from]),
            1 => ("send_payment", vec!["1", &to, &from]),
            2 => ("transact_savings", vec!["3", &from]),
            _ => ("create_account", vec![&new, &new, "1000", "1000"]),
        };
        let proposal = client.proposal("smallbank", function, &args);
        let mut reply = None;
        for _ in 0..20 {
            reply = remote.endorse(pick(PEERS as u64) as usize, proposal.bytes.clone()).await;
            if reply.is_some() {
                break;
            }
            rt::sleep(Duration::from_millis(100)).await;
        }
        let Some(response) = reply else { continue };
        if response.endorsement.is_none() {
            continue;
        }
        let envelope = client.envelope(&proposal, &[response]);
        // Sent again when the answer is lost, and now and then for no reason.
        let mut sends = 1 + usize::from(pick(8) == 0);
        for _ in 0..12 {
            while sends > 0 && remote.submit(envelope.clone()).await {
                sends -= 1;
            }
            if let Some((code, block)) = remote.status(pick(PEERS as u64) as usize, &proposal.tx_id).await {
                reports.push((proposal.tx_id.to_string(), code, block));
                break;
            }
            // The orderer may have lost it with its queue.
            sends = 1;
        }
    }
    reports
}

async fn world(sim: Sim, faults: bool) -> (usize, u64) {
    let setup = Terms_ { batch: batch(4), ..Terms_::seeded(PEERS, EndorsementRule::Any) };
    let consortium = Arc::new(Consortium::found(setup));
    let names: Vec<String> = (0..PEERS).map(|index| format!("peer{index}")).chain(["orderer".to_owned()]).collect();
    for (index, name) in names.iter().enumerate() {
        let consortium = consortium.clone();
        if index < PEERS {
            sim.node(name).start(move || run_peer(consortium.clone(), index));
        } else {
            sim.node(name).start(move || run_orderer(consortium.clone()));
        }
    }
    let created = sim.node("client0").spawn(run_client(consortium.clone(), sim.clone(), true));
    assert!(!created.await.expect("clients run to their end").is_empty());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|index| sim.node(&format!("client{index}")).spawn(run_client(consortium.clone(), sim.clone(), false)))
        .collect();
    if faults {
        for point in [
            "chain.commit.judged",
            "chain.commit.appended",
            "chain.commit.durable",
            "chain.commit.applied",
            "chain.order.appended",
            "chain.order.durable",
        ] {
            sim.inject(point, 0.1);
        }
        let bounds = Bounds {
            nodes: names.clone(),
            kinds: vec![
                FaultKind::Crash,
                FaultKind::Crash,
                FaultKind::Pause,
                FaultKind::Cut,
                FaultKind::Break,
                FaultKind::Fill,
            ],
            faults: 12,
            within: Duration::from_millis(100)..Duration::from_secs(12),
            ..Bounds::default()
        };
        sim.run_plan(&Plan::random(sim.seed(), &bounds)).await;
    }
    let mut reports = Vec::new();
    for client in clients {
        reports.extend(client.await.expect("clients run to their end"));
    }
    sim.heal_all();
    for name in &names {
        let node = sim.node(name);
        node.disk().set_capacity(None);
        node.resume();
        node.restart();
    }
    // Until all peers say the same.
    let mut verdicts = Vec::new();
    for _ in 0..200 {
        rt::sleep(Duration::from_millis(500)).await;
        verdicts.clear();
        for index in 0..PEERS {
            verdicts.push(ask_verdict(index).await.unwrap_or_default());
        }
        let same = verdicts.iter().all(|verdict| *verdict == verdicts[0]);
        if same && verdicts[0].split(' ').count() == 3 && !verdicts[0].starts_with("the state") {
            break;
        }
    }
    assert!(verdicts.iter().all(|verdict| *verdict == verdicts[0] && !verdict.is_empty()), "{verdicts:#?}");
    let height: u64 = verdicts[0].split(' ').next().and_then(|height| height.parse().ok()).expect("a height");
    let remote = Remote::new();
    for peer in &remote.peers {
        peer.reached().await;
    }
    for (tx_id, code, block) in &reports {
        for index in 0..PEERS {
            let status = remote.status(index, &TxId::from(tx_id.as_str())).await.expect("it was committed");
            assert_eq!(status, (*code, *block), "{tx_id} at peer{index}");
        }
    }
    sim.note(&verdicts[0]);
    (reports.len(), height)
}

#[test]
fn a_quiet_world_commits_everything() {
    let report = Simulation::new(1).run(|sim| world(sim, false)).expect("the run succeeds");
    let (reported, height) = report.value;
    let sent = TRANSACTIONS as usize * CLIENTS;
    assert!(reported > sent * 3 / 4 && height > 20, "{reported} of {sent} reported, height {height}");
}

#[test]
fn nothing_reported_is_lost_and_peers_agree_under_faults() {
    let seeds: Vec<u64> = match std::env::var("HEDDLE_SEED") {
        Ok(seeds) => match seeds.split_once("..") {
            Some((first, end)) => {
                let number = |text: &str| text.parse::<u64>().expect("HEDDLE_SEED is a number or a range");
                (number(first)..number(end)).collect()
            }
            None => vec![seeds.parse().expect("HEDDLE_SEED is a number or a range")],
        },
        Err(_) => (1..=8).collect(),
    };
    let mut injected = BTreeMap::new();
    for seed in seeds {
        let report = Simulation::new(seed).run(|sim| world(sim, true));
        let report = report.unwrap_or_else(|failure| panic!("HEDDLE_SEED={seed}: {failure}"));
        println!("seed {seed}: {:?} reported and blocks, {:?}", report.value, report.elapsed);
        assert!(report.value.0 > 0, "seed {seed} committed nothing");
        for (name, point) in report.fault_points {
            *injected.entry(name).or_insert(0) += point.injected;
        }
    }
    for (name, times) in injected {
        assert!(
            times > 0 || !name.starts_with("chain.") || std::env::var("HEDDLE_SEED").is_ok(),
            "{name} was never hit"
        );
    }
}

#[test]
fn a_seed_decides_everything() {
    Simulation::new(77).check(|sim| world(sim, true)).expect("both runs are the same");
}
