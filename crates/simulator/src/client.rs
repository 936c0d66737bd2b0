//! Clients: some use the network as applications with Fabric's SDKs do, some misuse it.
//!
//! One operation of a client:
//! 1. Draw a call and a [`Conduct`]; make and sign a proposal.
//! 2. Ask as many peers as the policy needs for endorsements, concurrently. Peers at different heights may return
//!    different results; then the operation starts again.
//! 3. Assemble and sign the envelope, and submit it to the orderer until it is accepted. If an answer is lost, the
//!    envelope is submitted twice, and one of the two transactions is a duplicate.
//! 4. Ask one peer after another for the outcome. After a while submit the envelope again, since the orderer may have
//!    lost it in a crash.
//!
//! Now and then a client proposes a change of the channel's configuration instead ([`reconfiguration`]), or organisations change the
//! definition of a contract ([`definition`]).
//!
//! A client reports its observations to the recorder. In [`ClientClaims`] it records its own knowledge of its
//! transactions, which the ledger must confirm at the end.

mod changes;
pub mod definition;
pub mod envelope;
pub mod reconfiguration;
pub mod rogue;
pub mod vault;
pub mod workload;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::rt::Instant;
use base::rt::simulation::Prng;
use base::{Bytes, rt};
use futures_util::future::join_all;
use identity::Signer;
use prost::Message;
use proto::protos::{Endorsement, ProposalResponse};
use proto::rwset::TxReadWriteSet;

use crate::early_aborts::EarlyAbort;
use crate::network::Network;
use crate::network::members::{CHANNEL, ORGANIZATIONS};
use crate::network::nodes::{order_address, peer_address};
use crate::network::service::{CallError, RequestKind, Response, ResponseStatus, ServiceClient, TransactionCommit};
use crate::reads;
use crate::scenario::{self, ORDERER};
use crate::vault::VAULT;
use envelope::{EnvelopeDefect, Proposal, endorse, read_write_set};
use workload::{ContractCall, Workload};

/// How long a client waits for one answer.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(700);
/// The same for an orderer of a group: after losing the lead, an orderer may learn the outcome of an envelope late.
const GROUP_REQUEST_TIMEOUT: Duration = Duration::from_millis(2_000);
/// How long one operation may take before its client gives up.
const OPERATION_MAX: Duration = Duration::from_secs(4);
/// The number of answers "not committed" after which an envelope is submitted again.
const STATUS_QUERIES_BEFORE_RESUBMIT: usize = 2;
/// One in this many operations changes the channel's configuration.
const RECONFIGURES_ONE_IN: u64 = 40;
/// One in this many operations changes the definition of a contract.
const DEFINES_ONE_IN: u64 = 25;
/// One in this many choices of a compute node is the node that joins and leaves.
const GUEST_EVERY: u64 = 5;
/// The longest pause after an answer that calls for a retry.
const PAUSE_MAX: Duration = Duration::from_millis(60);

/// How a client behaves in one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conduct {
    Honest,
    /// Waits before it submits the envelope.
    Slow,
    /// Submits the envelope once more when it is committed.
    Repeats,
    /// Leaves out one of the endorsements that the policy needs.
    Unendorsed,
    Spoils(EnvelopeDefect),
    /// Has peers sign a result that no contract made.
    Rogue,
    /// Signs with the identity of a non-member.
    NonMember,
    /// Changes the definition of this contract, and submits transactions of the contract right behind that, which no contract made.
    Races(&'static str),
}

/// The clients' knowledge of their transactions.
#[derive(Clone, Debug, Default)]
pub struct ClientClaims {
    /// Every transaction that was submitted to the orderer, by the id that its envelope claims.
    pub submitted: BTreeSet<String>,
    /// The money that a transaction creates if it is valid, and whether it may cost a fee.
    pub money: BTreeMap<String, (i64, bool)>,
    /// Transactions that the orderer acknowledged.
    pub acknowledged: BTreeSet<String>,
    /// Transactions that the orderer had to reject, and did.
    pub rejected: BTreeSet<String>,
    /// How often each transaction was sent to an orderer, by the id that its envelope claims.
    pub sent: BTreeMap<String, u64>,
    /// Transactions that a peer would not have had ordered.
    pub aborted: Vec<EarlyAbort>,
    /// Changes of the configuration that were submitted to the orderer, by their envelopes: whether each has the signatures
    /// that it needs.
    pub changes: BTreeMap<Bytes, bool>,
    /// Transactions whose private sets an honest member has kept before it endorsed them.
    pub kept: BTreeSet<String>,
    /// Transactions with private writes that a peer of an organisation was asked to endorse that is no member.
    pub shown_to_strangers: BTreeSet<String>,
    /// How operations ended, by outcome.
    pub outcomes: BTreeMap<&'static str, u64>,
}

impl ClientClaims {
    /// Adds another client's claims.
    pub fn add(&mut self, other: ClientClaims) {
        self.submitted.extend(other.submitted);
        self.money.extend(other.money);
        for (tx_id, count) in other.sent {
            *self.sent.entry(tx_id).or_default() += count;
        }
        self.aborted.extend(other.aborted);
        self.acknowledged.extend(other.acknowledged);
        self.rejected.extend(other.rejected);
        self.changes.extend(other.changes);
        self.kept.extend(other.kept);
        self.shown_to_strangers.extend(other.shown_to_strangers);
        for (outcome, count) in other.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
    }
}

/// One client.
pub struct SimulatedClient {
    network: Arc<Network>,
    name: String,
    signer: Signer,
    rng: Prng,
    workload: Workload,
    /// The links to each peer.
    peers: Vec<ServiceClient>,
    orderer: ServiceClient,
    /// Which orderer it asks.
    orderer_index: usize,
    claims: ClientClaims,
    /// The read-write set of the last transaction without money.
    last: Option<TxReadWriteSet>,
    /// The newest block it has heard of.
    blocks: u64,
    /// How often it has chosen a compute node.
    turn: u64,
}

/// An endorsed result.
struct EndorsedProposal {
    result: Bytes,
    endorsements: Vec<Endorsement>,
}

impl SimulatedClient {
    /// Client `number`, counted from 0, which draws its operations from `rng`.
    pub fn new(network: Arc<Network>, number: usize, rng: Prng) -> SimulatedClient {
        let peers = (0..ORGANIZATIONS).map(|_| ServiceClient::default()).collect();
        SimulatedClient {
            name: crate::scenario::client(number),
            signer: network.members.clients[number].clone(),
            workload: Workload::new(&network.scenario),
            rng,
            peers,
            orderer: ServiceClient::default(),
            orderer_index: 0,
            claims: ClientClaims::default(),
            last: None,
            blocks: 0,
            turn: 0,
            network,
        }
    }

    /// Performs its operations, one after the other.
    pub async fn work(mut self) -> ClientClaims {
        for _ in 0..self.network.scenario.operations {
            let think = self.rng.duration(&(Duration::ZERO..self.network.scenario.think_max));
            rt::sleep(think).await;
            if self.rng.one_in(RECONFIGURES_ONE_IN) {
                let outcome = rt::timeout(OPERATION_MAX, self.reconfigure()).await.unwrap_or("given up");
                *self.claims.outcomes.entry(outcome).or_default() += 1;
                continue;
            }
            if self.rng.one_in(DEFINES_ONE_IN) {
                let contract = self.draw_defined();
                let outcome = rt::timeout(OPERATION_MAX, self.define(contract, true)).await.unwrap_or("given up");
                *self.claims.outcomes.entry(outcome).or_default() += 1;
                continue;
            }
            let call = self.workload.draw(&mut self.rng);
            let conduct = self.draw_conduct();
            let outcome = rt::timeout(OPERATION_MAX, self.operate(&call, conduct)).await.unwrap_or("given up");
            *self.claims.outcomes.entry(outcome).or_default() += 1;
        }
        self.claims
    }

    /// Retries each call until it is committed as valid. For calls that must succeed before and after the other operations.
    pub async fn commit_all(mut self, calls: &[ContractCall]) -> ClientClaims {
        for call in calls {
            while self.operate(call, Conduct::Honest).await != "valid" {
                rt::sleep(Duration::from_millis(20)).await;
                self.approve_current().await;
            }
        }
        self.claims
    }

    fn draw_conduct(&mut self) -> Conduct {
        const SPOILED: [EnvelopeDefect; 6] = [
            EnvelopeDefect::Arguments,
            EnvelopeDefect::TransactionId,
            EnvelopeDefect::Epoch,
            EnvelopeDefect::Result,
            EnvelopeDefect::Endorsement,
            EnvelopeDefect::Signature,
        ];
        match self.rng.below(40) {
            0..=3 => Conduct::Slow,
            4 => Conduct::Repeats,
            5 => Conduct::Unendorsed,
            6..=7 => Conduct::Spoils(*self.rng.pick(&SPOILED)),
            8..=10 => Conduct::Rogue,
            11 => Conduct::NonMember,
            _ => Conduct::Honest,
        }
    }

    fn log(&self, proposal: &Proposal, what: impl std::fmt::Display) {
        self.network.recorder.log(format_args!("{} {}: {what}", self.name, short(&proposal.tx_id)));
    }

    async fn operate(&mut self, call: &ContractCall, conduct: Conduct) -> &'static str {
        let signer = match conduct {
            Conduct::NonMember => self.network.members.stranger.clone(),
            _ => self.signer.clone(),
        };
        let mut proposal = Proposal::new(&signer, CHANNEL, call.contract, call.args.clone());
        self.log(&proposal, format_args!("{} ({conduct:?})", call.text()));
        let endorsed = if conduct == Conduct::Rogue || (conduct == Conduct::NonMember && self.rng.one_in(2)) {
            self.forge_endorsements(&proposal)
        } else {
            loop {
                match self.endorse_proposal(&proposal, call).await {
                    Ok(endorsed) => break endorsed,
                    Err("refused") if conduct == Conduct::NonMember => return "stranger refused",
                    Err("refused") => return "refused by the contract",
                    Err(_) => {
                        self.pause().await;
                        proposal = Proposal::new(&signer, CHANNEL, call.contract, call.args.clone());
                    }
                }
            }
        };
        if !matches!(conduct, Conduct::Rogue | Conduct::NonMember) {
            if call.writes_private() {
                self.claims.kept.insert(proposal.tx_id.clone());
            }
            self.claims.money.insert(proposal.tx_id.clone(), (call.money, call.may_cost));
        }
        self.submit(&signer, &proposal, endorsed, conduct).await
    }

    /// A node of each peer: the one that commits, or sometimes another, which may have been replaced without knowing it.
    fn compute_nodes(&mut self) -> Vec<String> {
        let network = &self.network;
        let nodes = (0..ORGANIZATIONS).map(|place| {
            let mut nodes = network.scenario.compute_nodes(place);
            let other = self.rng.one_in(6).then(|| self.rng.index(nodes.len()));
            let other = match network.has_automatic_failover(place) {
                // Any of them answers.
                true => Some(self.rng.index(nodes.len())),
                false => other,
            };
            // Without a draw, so that seeds keep their meaning where there is no guest.
            self.turn += 1;
            match other {
                Some(_) if network.has_guest(place) && self.turn.is_multiple_of(GUEST_EVERY) => scenario::guest(place),
                Some(other) => nodes.swap_remove(other),
                None => network.primary(place),
            }
        });
        nodes.collect()
    }

    /// Step 2. The error says whether the peers rejected the proposal or could not answer.
    async fn endorse_proposal(
        &mut self,
        proposal: &Proposal,
        call: &ContractCall,
    ) -> Result<EndorsedProposal, &'static str> {
        let needed = self.network.scenario.endorsements_min;
        let mut places: Vec<usize> = (0..self.peers.len()).collect();
        if call.contract == VAULT {
            places = vault::endorsers(call, needed, &mut self.rng);
            self.prepare_private(proposal, call, &places);
        }
        // A random choice of peers, sometimes one more than needed.
        let extra = usize::from(needed < places.len() && self.rng.one_in(4));
        while call.contract != VAULT && places.len() > needed + extra {
            places.remove(self.rng.index(places.len()));
        }
        self.endorse_at(proposal, places, Some(call)).await
    }

    /// Step 2 at the peers of these organisations.
    async fn endorse_at(
        &mut self,
        proposal: &Proposal,
        places: Vec<usize>,
        call: Option<&ContractCall>,
    ) -> Result<EndorsedProposal, &'static str> {
        let names = self.compute_nodes();
        let tellers = names.iter().enumerate().map(|(place, name)| self.network.commit_source(place, name));
        let told: Vec<u64> = tellers.map(|teller| self.network.recorder.acknowledged_height(&teller)).collect();
        let calls = self.peers.iter_mut().enumerate().filter(|(place, _)| places.contains(place));
        let calls = calls.map(|(place, peer)| {
            let address = peer_address(&names[place]);
            async move { peer.call(&address, RequestKind::Endorse, &proposal.signed, REQUEST_TIMEOUT).await }
        });
        let answers = join_all(calls).await;

        let mut endorsed: Option<EndorsedProposal> = None;
        for (answer, place) in answers.into_iter().zip(places) {
            let answer = answer.map_err(|_| "no answer")?;
            if answer.verdict != ResponseStatus::Done {
                let refused = answer.verdict == ResponseStatus::Rejected;
                self.log(proposal, format_args!("{} says {}", names[place], answer.reason()));
                return Err(if refused { "refused" } else { "later" });
            }
            let response = ProposalResponse::decode(answer.body).map_err(|_| "a response that is none")?;
            if let Some(response) = response.response.filter(|response| response.status >= 400) {
                self.log(proposal, format_args!("{} says {}", names[place], response.message));
                return Err("refused");
            }
            if let Some((call, answer)) = call.zip(envelope::response_payload(&response.payload)) {
                self.record_answer(call, answer, &names[place], told[place], &response.payload);
            }
            self.record_reads(place, &names[place], told[place], &response.payload);
            let endorsement = response.endorsement.ok_or("a response without an endorsement")?;
            match &mut endorsed {
                None => endorsed = Some(EndorsedProposal { result: response.payload, endorsements: vec![endorsement] }),
                Some(before) if before.result == response.payload => before.endorsements.push(endorsement),
                Some(_) => return Err("different results"),
            }
        }
        Ok(endorsed.expect("at least one peer endorses"))
    }

    /// Records an answer that is checked at the end.
    fn record_answer(&self, call: &ContractCall, answer: Bytes, node: &str, height_min: u64, result: &Bytes) {
        let (recorder, node) = (&self.network.recorder, node.to_owned());
        if let Some(id) = call.asks_history_of() {
            recorder.record_history(reads::AssetHistory { node, height_min, id: id.to_owned(), answer });
        } else if call.reads_private()
            && let Some(set) = read_write_set(result)
        {
            recorder.record_private(reads::PrivateAnswer { node, answer, set });
        }
    }

    /// Derives from a peer's reads which blocks it has shown to clients.
    fn record_reads(&mut self, organization: usize, node: &str, height_min: u64, result: &Bytes) {
        let Some(set) = read_write_set(result) else { return };
        let node = node.to_owned();
        self.network.recorder.record_endorsement(reads::EndorsedReads { node, height_min, set: set.clone() });
        let sets =
            set.ns_rwset.iter().filter_map(|namespace| proto::kvrwset::KvrwSet::decode(namespace.rwset.clone()).ok());
        let reads = sets.flat_map(|set| set.reads).filter_map(|read| read.version);
        if let Some(newest) = reads.map(|version| version.block_num).max() {
            self.network.recorder.record_visible(&crate::scenario::peer(organization), newest);
            self.blocks = self.blocks.max(newest);
        }
        if rogue::is_harmless(&set) {
            self.last = Some(set);
        }
    }

    /// A result that malicious peers would sign: with arbitrary contents, and as many endorsements as the policy needs.
    fn forge_endorsements(&mut self, proposal: &Proposal) -> EndorsedProposal {
        let has_private = self.network.scenario.private_data.is_some();
        let set = rogue::forged_read_write_set(&mut self.rng, self.last.as_ref(), self.blocks, has_private);
        let result = proposal.forged_result(set);
        // Keys may have policies of their own, of fewer organisations or of others.
        let count = if self.rng.one_in(2) { self.network.scenario.endorsements_min } else { 1 };
        let first = self.rng.index(ORGANIZATIONS);
        let peers = self.network.members.peers.iter().cycle().skip(first).take(count);
        let endorsements = peers.map(|peer| endorse(peer, &result)).collect();
        EndorsedProposal { result, endorsements }
    }

    /// Steps 3 and 4.
    async fn submit(
        &mut self,
        signer: &Signer,
        proposal: &Proposal,
        mut endorsed: EndorsedProposal,
        conduct: Conduct,
    ) -> &'static str {
        let must_be_refused = matches!(conduct, Conduct::NonMember | Conduct::Spoils(EnvelopeDefect::Signature));
        let spoiled = if let Conduct::Spoils(spoiled) = conduct { spoiled } else { EnvelopeDefect::Not };
        match conduct {
            Conduct::Slow => rt::sleep(self.rng.duration(&(PAUSE_MAX..10 * PAUSE_MAX))).await,
            Conduct::Unendorsed => {
                endorsed.endorsements.truncate(self.network.scenario.endorsements_min - 1);
            }
            _ => {}
        }
        let envelope = proposal.envelope(signer, &endorsed.result, &endorsed.endorsements, spoiled);
        let tx_id = envelope::claimed_id(&envelope);
        if self.network.scenario.early_abort && self.is_aborted_early(&envelope).await {
            if must_be_refused {
                self.network.recorder.report_violation(format_args!("a stranger learns that {tx_id} is outdated"));
            }
            self.log(proposal, "aborted early");
            return "aborted early";
        }
        self.claims.submitted.insert(tx_id.clone());
        let started = rt::now();
        loop {
            match self.send_to_orderer(&envelope).await {
                Ok(answer) if answer.verdict == ResponseStatus::Done => break,
                Ok(answer) if answer.verdict == ResponseStatus::Rejected => {
                    if !must_be_refused {
                        let reason = answer.reason();
                        self.network.recorder.report_violation(format_args!("{ORDERER} refuses {tx_id}: {reason}"));
                    }
                    self.claims.rejected.insert(tx_id);
                    return "refused by the orderer";
                }
                _ => self.pause().await,
            }
        }
        if must_be_refused {
            self.network.recorder.report_violation(format_args!("{ORDERER} takes {tx_id} ({conduct:?})"));
        }
        self.claims.acknowledged.insert(tx_id.clone());
        if let Conduct::Races(contract) = conduct {
            self.race(contract).await;
        }
        let TransactionCommit { code, block } = self.await_commit(&tx_id, &envelope).await;
        let took = (rt::now() - started).as_millis();
        self.log(proposal, format_args!("code {code} in block {block} after {took} ms"));
        self.blocks = self.blocks.max(block);
        if conduct == Conduct::Repeats {
            // The answer does not matter.
            let _ = self.send_to_orderer(&envelope).await;
            // A peer that aborts it although it is valid is found at the end.
            if self.network.scenario.early_abort {
                self.is_aborted_early(&envelope).await;
            }
        }
        if code == 0 { "valid" } else { "invalid" }
    }

    /// Submits an envelope to an orderer; if it does not accept it, the next call asks another one, if there are several.
    async fn send_to_orderer(&mut self, envelope: &Bytes) -> Result<Response, CallError> {
        *self.claims.sent.entry(envelope::claimed_id(envelope)).or_default() += 1;
        let orderers = self.network.scenario.orderers();
        let address = order_address(&orderers[self.orderer_index % orderers.len()]);
        let timeout = if orderers.len() > 1 { GROUP_REQUEST_TIMEOUT } else { REQUEST_TIMEOUT };
        let answer = self.orderer.call(&address, RequestKind::Order, envelope, timeout).await;
        if !matches!(&answer, Ok(answer) if answer.verdict != ResponseStatus::Later) {
            self.orderer_index += 1;
        }
        answer
    }

    /// Asks a peer whether the transaction can never be valid. A peer that does not answer does not know.
    async fn is_aborted_early(&mut self, envelope: &Bytes) -> bool {
        let place = self.rng.index(ORGANIZATIONS);
        let node = self.compute_nodes().swap_remove(place);
        let address = peer_address(&node);
        let answer = self.peers[place].call(&address, RequestKind::Judge, envelope, REQUEST_TIMEOUT).await;
        let Ok(Response { verdict: ResponseStatus::Done, body }) = answer else { return false };
        self.claims.aborted.push(EarlyAbort::new(&node, envelope, &body));
        true
    }

    async fn await_commit(&mut self, tx_id: &str, envelope: &Bytes) -> TransactionCommit {
        let question = Bytes::copy_from_slice(tx_id.as_bytes());
        for asked in 1.. {
            let place = self.rng.index(ORGANIZATIONS);
            let node = self.compute_nodes().swap_remove(place);
            let address = peer_address(&node);
            match self.peers[place].call(&address, RequestKind::Commit, &question, REQUEST_TIMEOUT).await {
                Ok(answer) if answer.verdict == ResponseStatus::Done => {
                    let commit = TransactionCommit::decode(&answer.body);
                    let teller = self.network.commit_source(place, &node);
                    self.network.recorder.record_commit(&crate::scenario::peer(place), &teller, tx_id, commit);
                    return commit;
                }
                _ => self.pause().await,
            }
            // A client with a durable acknowledgement has no reason to, and so checks that the acknowledgement was true.
            if asked % STATUS_QUERIES_BEFORE_RESUBMIT == 0 && !self.network.scenario.durable_acknowledgements {
                // The answer does not matter.
                let _ = self.send_to_orderer(envelope).await;
            }
        }
        unreachable!("the loop ends by returning")
    }

    async fn pause(&mut self) {
        rt::sleep(self.rng.duration(&(Duration::from_millis(1)..PAUSE_MAX))).await;
    }
}

/// The first characters of a transaction id, for display.
pub fn short(tx_id: &str) -> &str {
    tx_id.get(..8).unwrap_or(tx_id)
}

/// Waits until `done` holds; false if it does not within `patience`.
pub async fn wait_until(timeout: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline: Instant = rt::now() + timeout;
    while !done() {
        if rt::now() >= deadline {
            return false;
        }
        rt::sleep(Duration::from_millis(5)).await;
    }
    true
}
