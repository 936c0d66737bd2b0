//! The common parts of simulated worlds of whole channels: an orderer on its own node, and peers that report their
//! state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::rt::disk::Directory;
use base::rt::net::Parties;
use base::rt::simulation::Sim;
use base::rt::{self, CancellationToken, net};
use base::{Bytes, TxId, Version};
use chain::Channel;
use chain::endorse::Endorse;
use chain::order::{Broadcast, Orderer, OrdererSetup, SoloEngines};
use chain::peer::Peer;
use chain::remote::{PeerTarget, RemoteOrderer, RemotePeer, RemotePeerConfig, serve_orderer};
use chain::view::PeerView;
use ledger::Block;
use ledger::Code;
use ledger::rwset::{RangeReads, ReadWriteSet};
use proto::protos::ProposalResponse;
use rules::definitions::ContractDefinitions;
use storage::GroupSync;

use crate::support::*;

/// Accounts that exist from the beginning.
pub const ACCOUNTS: u64 = 6;
/// Transactions of one client.
pub const TRANSACTIONS: u64 = 40;

/// Answers every message with the peer's verdict.
pub async fn serve_verdicts(address: &str, peer: &Peer) {
    let Ok(mut listener) = net::listen(address).await else { return };
    while let Ok(mut link) = listener.accept().await {
        let Some(channel) = peer.channel(CHANNEL) else { continue };
        drop(rt::spawn(async move {
            while link.receive().await.is_ok() {
                if link.send(verdict(&channel).await.into_bytes()).await.is_err() {
                    return;
                }
            }
        }));
    }
}

/// A peer's verdict; `None` while the peer cannot be reached.
pub async fn ask_verdict(address: &str) -> Option<String> {
    let exchange = async {
        let mut link = net::connect(address).await.ok()?;
        link.send(Bytes::from_static(b"v")).await.ok()?;
        link.receive().await.ok()
    };
    let verdict = rt::timeout(Duration::from_secs(2), exchange).await.ok()??;
    Some(String::from_utf8(verdict.to_vec()).expect("text"))
}

pub async fn run_orderer(consortium: Arc<Consortium>) {
    loop {
        if let Some(orderer) = open_orderer(&consortium).await {
            let serving = serve_orderer(orderer, "submit", &Parties::anyone(), CancellationToken::new()).await;
            return serving.expect("nobody else listens there").await.expect("it serves until the node crashes");
        }
        // The disk may be full, for example.
        rt::sleep(Duration::from_millis(200)).await;
    }
}

pub async fn open_orderer(consortium: &Consortium) -> Option<Arc<Orderer>> {
    let directory = Directory::open("orderer").await.ok()?;
    let options = OrdererSetup {
        watermarks: None,
        signer: consortium.orderer.clone(),
        directory,
        sync: GroupSync::new(),
        engines: Arc::new(SoloEngines),
        settings: Default::default(),
    };
    let orderer = Orderer::open(options).await.ok()?;
    orderer.join(&consortium.genesis).await.ok()?;
    orderer.serve("blocks").await.ok()?;
    Some(orderer)
}

/// The network as a gateway sees it.
pub struct RemoteNetwork {
    pub peers: Vec<RemotePeer>,
    orderer: Box<dyn Broadcast>,
}

impl RemoteNetwork {
    /// Peers by the addresses where they answer.
    pub fn new(peers: impl IntoIterator<Item = String>) -> RemoteNetwork {
        RemoteNetwork::of(peers, Box::new(RemoteOrderer::new("submit".to_owned(), Parties::anyone())))
    }

    /// The same, with another orderer for the envelopes.
    pub fn of(peers: impl IntoIterator<Item = String>, orderer: Box<dyn Broadcast>) -> RemoteNetwork {
        let peers = peers.into_iter().map(|name| {
            RemotePeer::new(RemotePeerConfig {
                target: PeerTarget::Node(name.clone()),
                parties: Parties::anyone(),
                name,
                definitions: ContractDefinitions::new(),
            })
        });
        RemoteNetwork { peers: peers.collect(), orderer }
    }

    pub async fn endorse(&self, peer: usize, proposal: Bytes) -> Option<ProposalResponse> {
        rt::timeout(Duration::from_secs(2), self.peers[peer].process(proposal)).await.ok()?.ok()
    }

    pub async fn submit(&self, envelope: Bytes) -> bool {
        let taken = rt::timeout(Duration::from_secs(2), self.orderer.broadcast(CHANNEL, envelope)).await;
        matches!(taken, Ok(Ok(())))
    }

    pub async fn status(&self, peer: usize, tx_id: &TxId) -> Option<(u8, u64)> {
        let channel = self.peers[peer].channel(CHANNEL)?;
        let status = rt::timeout(Duration::from_secs(1), channel.wait_committed(tx_id)).await.ok()?.ok()?;
        Some((status.code.0, status.block))
    }
}

/// A commit that a peer reported.
pub type Report = (String, u8, u64);

/// Sends transactions until all have been committed or given up; returns the reports.
pub async fn run_client(consortium: Arc<Consortium>, sim: Sim, peers: Vec<String>, creates: bool) -> Vec<Report> {
    run_client_of(consortium, sim, RemoteNetwork::new(peers), creates, |_| {}).await
}

/// The same; also calls `acknowledged` with each transaction that an orderer acknowledged.
pub async fn run_client_of(
    consortium: Arc<Consortium>,
    sim: Sim,
    remote: RemoteNetwork,
    creates: bool,
    acknowledged: impl Fn(&TxId),
) -> Vec<Report> {
    let client = consortium.client();
    let mut rng = sim.rng();
    let mut reports = Vec::new();
    let mut pick = |bound: u64| rng.below(bound);
    let peers = remote.peers.len() as u64;
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
            reply = remote.endorse(pick(peers) as usize, proposal.bytes.clone()).await;
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
        // Sent again when the answer is lost, and occasionally for no reason.
        let mut sends = 1 + usize::from(pick(8) == 0);
        for _ in 0..12 {
            while sends > 0 && remote.submit(envelope.clone()).await {
                acknowledged(&proposal.tx_id);
                sends -= 1;
            }
            if let Some((code, block)) = remote.status(pick(peers) as usize, &proposal.tx_id).await {
                reports.push((proposal.tx_id.to_string(), code, block));
                break;
            }
            // The orderer may have lost it with its queue.
            sends = 1;
        }
    }
    reports
}

/// Height and the digests of blocks and state, if the interpreter agrees with the state; otherwise the difference.
pub async fn verdict(channel: &Channel) -> String {
    if let Some(failure) = channel.failure() {
        return format!("failed: {failure}");
    }
    let height = channel.height();
    let mut interpreter = Interpreter::default();
    let mut blocks = Vec::new();
    for number in 0..height {
        // A request to another node may fail while that node is away.
        let Ok(bytes) = channel.read_block(number).await else { return "moving".to_owned() };
        let bytes = bytes.expect("committed");
        blocks.extend_from_slice(&ledger::sha256(&bytes));
        interpreter.block(&Block::parse(&bytes).expect("a block"));
    }
    if channel.height() != height {
        return "moving".to_owned();
    }
    let snapshot = channel.state().snapshot();
    let mut held = BTreeMap::new();
    for namespace in ["smallbank"] {
        let Ok(page) = snapshot.range(namespace, "", "", 10_000).await else { return "moving".to_owned() };
        assert!(!page.more, "there are few accounts");
        for entry in page.entries {
            let key = (namespace.to_owned(), entry.key.to_string());
            held.insert(key, (entry.versioned.value, entry.versioned.version));
        }
    }
    if held != interpreter.state {
        return format!("the state is not that of the blocks at height {height}");
    }
    let Ok(digest) = channel.state().digest().await else { return "moving".to_owned() };
    format!("{height} {} {}", hex::encode(ledger::sha256(&blocks)), hex::encode(digest))
}

/// The sequential rule over whole blocks, with nothing in common with the pipeline but the decoders.
#[derive(Default)]
pub struct Interpreter {
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
                // In the order of V1, the id counts before conflicts are checked.
                valid_here.insert(id.clone());
                self.conflicts(&set, &written)
            };
            assert_eq!(code, expected, "block {number}, transaction {position}");
            self.ids.insert(id);
            if !code.is_valid() {
                continue;
            }
            for namespace in &set.namespaces {
                for write in set.writes(namespace) {
                    let key = (set.name(namespace).to_owned(), set.write_key(&write).to_owned());
                    written.insert(key.clone());
                    match set.write_value(&write) {
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
            for read in set.reads(namespace) {
                let key = (set.name(namespace).to_owned(), set.read_key(&read).to_owned());
                let seen = read.version.map(|seen| Version::new(seen.block, seen.transaction as u32));
                if written.contains(&key) || self.state.get(&key).map(|(_, version)| *version) != seen {
                    return Code::MVCC_READ_CONFLICT;
                }
            }
            for range in set.ranges(namespace) {
                assert!(matches!(range.reads, RangeReads::Results(_)), "ranges here are short");
            }
        }
        Code::VALID
    }
}
