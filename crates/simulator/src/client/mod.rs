//! Clients: applications that use the network as Fabric's SDKs do, and some that misuse it.
//!
//! One operation:
//! 1. draw a call and a [`Conduct`]; make and sign a proposal;
//! 2. ask as many peers as the policy needs for endorsements, at once; peers at different heights may differ, and then the
//!    operation begins anew;
//! 3. assemble and sign the envelope, and hand it to the orderer until it is taken: an answer may be lost, so it may be
//!    handed over twice, and then one of the two is a duplicate;
//! 4. ask one peer after another what became of it, and after a while hand it over again, since the orderer may have
//!    lost it in a crash.
//!
//! What a client learns it tells the witness, and what must hold of its transactions goes into its [`Claims`].

pub mod envelope;
pub mod rogue;
pub mod workload;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::Bytes;
use base::rt::simulation::Chance;
use base::rt::{self, Instant};
use futures_util::future::join_all;
use identity::Signer;
use prost::Message;
use proto::protos::{Endorsement, ProposalResponse};
use proto::rwset::TxReadWriteSet;

use crate::network::Network;
use crate::network::members::{CHANNEL, ORGANIZATIONS};
use crate::network::nodes::{order_address, peer_address};
use crate::network::service::{Answer, CallError, Caller, Commit, Kind, Verdict};
use crate::reads;
use crate::scenario::ORDERER;
use envelope::{Proposal, Spoiled, endorse, read_write_set};
use workload::{Call, Workload};

/// How long a client waits for one answer.
const PATIENCE: Duration = Duration::from_millis(700);
/// And for one of several orderers: one that has lost the lead may know late what became of an envelope.
const PATIENCE_OF_GROUPS: Duration = Duration::from_millis(2_000);
/// How long one operation may take before its client gives up.
const OPERATION_MAX: Duration = Duration::from_secs(4);
/// After how many answers that a transaction is not committed its envelope is handed over again.
const ASKS_BEFORE_AGAIN: usize = 2;
/// The longest pause after an answer that did not help.
const PAUSE_MAX: Duration = Duration::from_millis(60);

/// How a client behaves in one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conduct {
    Honest,
    /// Waits before it hands the envelope over.
    Slow,
    /// Hands the envelope over once more when it is committed.
    Repeats,
    /// Leaves one of the endorsements out that the policy needs.
    Unendorsed,
    Spoils(Spoiled),
    /// Has peers sign what no contract made.
    Rogue,
    /// Signs as somebody who is no member.
    Stranger,
}

/// What clients know of their transactions.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// Every transaction that was handed to the orderer, by the id that its envelope claims.
    pub submitted: BTreeSet<String>,
    /// How much money a transaction makes if it is valid, and whether it may cost a fee.
    pub money: BTreeMap<String, (i64, bool)>,
    /// Transactions that the orderer acknowledged.
    pub acknowledged: BTreeSet<String>,
    /// Transactions that the orderer had to refuse, and did.
    pub refused: BTreeSet<String>,
    /// How operations ended, by outcome.
    pub outcomes: BTreeMap<&'static str, u64>,
}

impl Claims {
    /// Adds another client's claims.
    pub fn add(&mut self, other: Claims) {
        self.submitted.extend(other.submitted);
        self.money.extend(other.money);
        self.acknowledged.extend(other.acknowledged);
        self.refused.extend(other.refused);
        for (outcome, count) in other.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
    }
}

/// One client.
pub struct Client {
    network: Arc<Network>,
    name: String,
    signer: Signer,
    chance: Chance,
    workload: Workload,
    /// To each peer.
    peers: Vec<Caller>,
    orderer: Caller,
    /// Which orderer it asks.
    asks: usize,
    claims: Claims,
    /// What the last transaction read and wrote that has nothing to do with money.
    last: Option<TxReadWriteSet>,
    /// The newest block it has heard of.
    blocks: u64,
}

/// An endorsed result.
struct Endorsed {
    result: Bytes,
    endorsements: Vec<Endorsement>,
}

impl Client {
    pub fn new(network: Arc<Network>, place: usize, chance: Chance) -> Client {
        let peers = (0..ORGANIZATIONS).map(|_| Caller::default()).collect();
        Client {
            name: crate::scenario::client(place),
            signer: network.members.clients[place].clone(),
            workload: Workload::new(&network.scenario),
            chance,
            peers,
            orderer: Caller::default(),
            asks: 0,
            claims: Claims::default(),
            last: None,
            blocks: 0,
            network,
        }
    }

    /// Performs its operations, one after the other.
    pub async fn work(mut self) -> Claims {
        for _ in 0..self.network.scenario.operations {
            let think = self.chance.duration(&(Duration::ZERO..self.network.scenario.think_max));
            rt::sleep(think).await;
            let call = self.workload.draw(&mut self.chance);
            let conduct = self.draw_conduct();
            let outcome = rt::timeout(OPERATION_MAX, self.operate(&call, conduct)).await.unwrap_or("given up");
            *self.claims.outcomes.entry(outcome).or_default() += 1;
        }
        self.claims
    }

    /// Has a call committed as valid, however often it must be tried. For what must be there before and after the others.
    pub async fn insist(mut self, calls: &[Call]) -> Claims {
        for call in calls {
            while self.operate(call, Conduct::Honest).await != "valid" {
                rt::sleep(Duration::from_millis(20)).await;
            }
        }
        self.claims
    }

    fn draw_conduct(&mut self) -> Conduct {
        const SPOILED: [Spoiled; 6] = [
            Spoiled::Arguments,
            Spoiled::TransactionId,
            Spoiled::Epoch,
            Spoiled::Result,
            Spoiled::Endorsement,
            Spoiled::Signature,
        ];
        match self.chance.below(40) {
            0..=3 => Conduct::Slow,
            4 => Conduct::Repeats,
            5 => Conduct::Unendorsed,
            6..=7 => Conduct::Spoils(*self.chance.pick(&SPOILED)),
            8..=10 => Conduct::Rogue,
            11 => Conduct::Stranger,
            _ => Conduct::Honest,
        }
    }

    fn tell(&self, proposal: &Proposal, what: impl std::fmt::Display) {
        self.network.witness.tell(format_args!("{} {}: {what}", self.name, short(&proposal.tx_id)));
    }

    async fn operate(&mut self, call: &Call, conduct: Conduct) -> &'static str {
        let signer = match conduct {
            Conduct::Stranger => self.network.members.stranger.clone(),
            _ => self.signer.clone(),
        };
        let mut proposal = Proposal::new(&signer, CHANNEL, call.contract, call.args.clone());
        self.tell(&proposal, format_args!("{} ({conduct:?})", call.text()));
        let endorsed = if conduct == Conduct::Rogue || (conduct == Conduct::Stranger && self.chance.one_in(2)) {
            self.made_up(&proposal)
        } else {
            loop {
                match self.endorsed(&proposal, call.asks_history_of()).await {
                    Ok(endorsed) => break endorsed,
                    Err("refused") if conduct == Conduct::Stranger => return "stranger refused",
                    Err("refused") => return "refused by the contract",
                    Err(_) => {
                        self.pause().await;
                        proposal = Proposal::new(&signer, CHANNEL, call.contract, call.args.clone());
                    }
                }
            }
        };
        if !matches!(conduct, Conduct::Rogue | Conduct::Stranger) {
            self.claims.money.insert(proposal.tx_id.clone(), (call.money, call.may_cost));
        }
        self.submit(&signer, &proposal, endorsed, conduct).await
    }

    /// A node of each peer: the one that commits, or now and then another, which may have been replaced and not know it.
    fn compute_nodes(&mut self) -> Vec<String> {
        let network = &self.network;
        let nodes = (0..ORGANIZATIONS).map(|place| {
            let mut nodes = network.scenario.compute_nodes(place);
            let other = self.chance.one_in(6).then(|| self.chance.index(nodes.len()));
            let other = match network.follows(place) {
                // Any of them answers.
                true => Some(self.chance.index(nodes.len())),
                false => other,
            };
            match other {
                Some(other) => nodes.swap_remove(other),
                None => network.primary(place),
            }
        });
        nodes.collect()
    }

    /// Step 2. The error says whether the peers refused or could not.
    async fn endorsed(&mut self, proposal: &Proposal, history_of: Option<&str>) -> Result<Endorsed, &'static str> {
        let needed = self.network.scenario.endorsements_min;
        let mut places: Vec<usize> = (0..self.peers.len()).collect();
        // A random choice of peers, sometimes one more than needed.
        let extra = usize::from(needed < places.len() && self.chance.one_in(4));
        while places.len() > needed + extra {
            places.remove(self.chance.index(places.len()));
        }
        let names = self.compute_nodes();
        let tellers = names.iter().enumerate().map(|(place, name)| self.network.teller(place, name));
        let told: Vec<u64> = tellers.map(|teller| self.network.witness.told_by(&teller)).collect();
        let calls = self.peers.iter_mut().enumerate().filter(|(place, _)| places.contains(place));
        let calls = calls.map(|(place, peer)| {
            let address = peer_address(&names[place]);
            async move { peer.call(&address, Kind::Endorse, &proposal.signed, PATIENCE).await }
        });
        let answers = join_all(calls).await;

        let mut endorsed: Option<Endorsed> = None;
        for (answer, place) in answers.into_iter().zip(places) {
            let answer = answer.map_err(|_| "no answer")?;
            if answer.verdict != Verdict::Done {
                let refused = answer.verdict == Verdict::Refused;
                self.tell(proposal, format_args!("{} says {}", names[place], answer.reason()));
                return Err(if refused { "refused" } else { "later" });
            }
            let response = ProposalResponse::decode(answer.body).map_err(|_| "a response that is none")?;
            if let Some(response) = response.response.filter(|response| response.status >= 400) {
                self.tell(proposal, format_args!("{} says {}", names[place], response.message));
                return Err("refused");
            }
            if let Some((id, answer)) = history_of.zip(envelope::answer(&response.payload)) {
                let (node, id) = (names[place].clone(), id.to_owned());
                self.network.witness.told_history(reads::History { node, height_min: told[place], id, answer });
            }
            self.look_at(place, &names[place], told[place], &response.payload);
            let endorsement = response.endorsement.ok_or("a response without an endorsement")?;
            match &mut endorsed {
                None => endorsed = Some(Endorsed { result: response.payload, endorsements: vec![endorsement] }),
                Some(before) if before.result == response.payload => before.endorsements.push(endorsement),
                Some(_) => return Err("different results"),
            }
        }
        Ok(endorsed.expect("at least one peer endorses"))
    }

    /// What a peer read tells which blocks it has let us see.
    fn look_at(&mut self, place: usize, node: &str, height_min: u64, result: &Bytes) {
        let Some(set) = read_write_set(result) else { return };
        let node = node.to_owned();
        self.network.witness.endorsed(reads::Endorsed { node, height_min, set: set.clone() });
        let sets =
            set.ns_rwset.iter().filter_map(|namespace| proto::kvrwset::KvrwSet::decode(namespace.rwset.clone()).ok());
        let reads = sets.flat_map(|set| set.reads).filter_map(|read| read.version);
        if let Some(newest) = reads.map(|version| version.block_num).max() {
            self.network.witness.shown(&crate::scenario::peer(place), newest);
            self.blocks = self.blocks.max(newest);
        }
        if rogue::is_harmless(&set) {
            self.last = Some(set);
        }
    }

    /// What bad peers would sign: anything, but as many of them as the policy needs.
    fn made_up(&mut self, proposal: &Proposal) -> Endorsed {
        let set = rogue::made_up(&mut self.chance, self.last.as_ref(), self.blocks);
        let result = proposal.made_up_result(set);
        let peers = self.network.members.peers.iter().take(self.network.scenario.endorsements_min);
        let endorsements = peers.map(|peer| endorse(peer, &result)).collect();
        Endorsed { result, endorsements }
    }

    /// Steps 3 and 4.
    async fn submit(
        &mut self,
        signer: &Signer,
        proposal: &Proposal,
        mut endorsed: Endorsed,
        conduct: Conduct,
    ) -> &'static str {
        let must_be_refused = matches!(conduct, Conduct::Stranger | Conduct::Spoils(Spoiled::Signature));
        let spoiled = if let Conduct::Spoils(spoiled) = conduct { spoiled } else { Spoiled::Not };
        match conduct {
            Conduct::Slow => rt::sleep(self.chance.duration(&(PAUSE_MAX..10 * PAUSE_MAX))).await,
            Conduct::Unendorsed => {
                endorsed.endorsements.truncate(self.network.scenario.endorsements_min - 1);
            }
            _ => {}
        }
        let envelope = proposal.envelope(signer, &endorsed.result, &endorsed.endorsements, spoiled);
        let tx_id = envelope::claimed_id(&envelope);
        self.claims.submitted.insert(tx_id.clone());
        let started = rt::now();
        loop {
            match self.hand_over(&envelope).await {
                Ok(answer) if answer.verdict == Verdict::Done => break,
                Ok(answer) if answer.verdict == Verdict::Refused => {
                    if !must_be_refused {
                        let reason = answer.reason();
                        self.network.witness.accuse(format_args!("{ORDERER} refuses {tx_id}: {reason}"));
                    }
                    self.claims.refused.insert(tx_id);
                    return "refused by the orderer";
                }
                _ => self.pause().await,
            }
        }
        if must_be_refused {
            self.network.witness.accuse(format_args!("{ORDERER} takes {tx_id} ({conduct:?})"));
        }
        self.claims.acknowledged.insert(tx_id.clone());
        let Commit { code, block } = self.committed(&tx_id, &envelope).await;
        let took = (rt::now() - started).as_millis();
        self.tell(proposal, format_args!("code {code} in block {block} after {took} ms"));
        self.blocks = self.blocks.max(block);
        if conduct == Conduct::Repeats {
            // Whatever the answer.
            let _ = self.hand_over(&envelope).await;
        }
        if code == 0 { "valid" } else { "invalid" }
    }

    /// Hands an envelope to an orderer; one that does not take it is not asked next, where there are others.
    async fn hand_over(&mut self, envelope: &Bytes) -> Result<Answer, CallError> {
        let orderers = self.network.scenario.orderers();
        let address = order_address(&orderers[self.asks % orderers.len()]);
        let patience = if orderers.len() > 1 { PATIENCE_OF_GROUPS } else { PATIENCE };
        let answer = self.orderer.call(&address, Kind::Order, envelope, patience).await;
        if !matches!(&answer, Ok(answer) if answer.verdict != Verdict::Later) {
            self.asks += 1;
        }
        answer
    }

    async fn committed(&mut self, tx_id: &str, envelope: &Bytes) -> Commit {
        let question = Bytes::copy_from_slice(tx_id.as_bytes());
        for asked in 1.. {
            let place = self.chance.index(ORGANIZATIONS);
            let node = self.compute_nodes().swap_remove(place);
            let address = peer_address(&node);
            match self.peers[place].call(&address, Kind::Commit, &question, PATIENCE).await {
                Ok(answer) if answer.verdict == Verdict::Done => {
                    let commit = Commit::decode(&answer.body);
                    let teller = self.network.teller(place, &node);
                    self.network.witness.told(&crate::scenario::peer(place), &teller, tx_id, commit);
                    return commit;
                }
                _ => self.pause().await,
            }
            // Who was told that it is durable has no reason to, and shows whether that was so.
            if asked % ASKS_BEFORE_AGAIN == 0 && !self.network.scenario.durable_acknowledgements {
                // Whatever the answer.
                let _ = self.hand_over(envelope).await;
            }
        }
        unreachable!("the loop ends by returning")
    }

    async fn pause(&mut self) {
        rt::sleep(self.chance.duration(&(Duration::from_millis(1)..PAUSE_MAX))).await;
    }
}

/// The beginning of a transaction id, for people.
pub fn short(tx_id: &str) -> &str {
    tx_id.get(..8).unwrap_or(tx_id)
}

/// Waits until `done` holds; false if it does not within `patience`.
pub async fn wait_until(patience: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline: Instant = rt::now() + patience;
    while !done() {
        if rt::now() >= deadline {
            return false;
        }
        rt::sleep(Duration::from_millis(5)).await;
    }
    true
}
