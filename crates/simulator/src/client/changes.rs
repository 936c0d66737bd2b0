//! How a client changes the rules of the channel: its configuration, and the definitions of contracts.

use std::sync::Arc;
use std::time::Duration;

use base::Bytes;
use identity::Signer;

use super::definition::{self, DefinedCollections, Definition};
use super::envelope::{EnvelopeDefect, Proposal, endorse};
use super::reconfiguration::{self, Reconfigurers};
use super::rogue;
use super::{ClientClaims, Conduct, SimulatedClient, wait_until};
use crate::network::Network;
use crate::network::members::{CHANNEL, ORGANIZATIONS};
use crate::network::service::ResponseStatus;
use crate::scenario::ORDERER;
use crate::vault::{self, MEMBERS, VAULT};

/// Transactions that are submitted right behind a definition.
const RACES: usize = 4;

impl SimulatedClient {
    /// Proposes changes until one has taken effect at every peer.
    pub async fn commit_config(mut self) -> ClientClaims {
        let sequences = |network: &Network| {
            let names = network.primaries().into_iter();
            let configs = names.map(|name| Some(network.peer(&name)?.channel(CHANNEL)?.config().sequence()));
            configs.collect::<Option<Vec<u64>>>()
        };
        let before = self.network.newest_config().map_or(0, |config| config.sequence());
        let network = Arc::clone(&self.network);
        let are_changed = || sequences(&network).is_some_and(|all| all.iter().all(|sequence| *sequence > before));
        while !are_changed() {
            self.reconfigure().await;
            wait_until(Duration::from_secs(1), are_changed).await;
        }
        self.claims
    }

    /// Changes the definition of a contract until every peer has a new one.
    pub async fn commit_definition(mut self) -> ClientClaims {
        let contract = self.draw_defined();
        let before = self.network.newest_definition(contract);
        let network = Arc::clone(&self.network);
        let are_changed = || {
            let primaries = network.primaries();
            primaries.iter().all(|name| network.definition(name, contract).is_some_and(|sequence| sequence > before))
        };
        while !are_changed() {
            self.define(contract, false).await;
            wait_until(Duration::from_secs(1), are_changed).await;
        }
        self.claims
    }

    /// The contracts whose definitions change.
    fn defined(&self) -> &'static [&'static str] {
        let has_private_data = self.network.scenario.private_data.is_some();
        if has_private_data { &["basic", "ycsb", VAULT] } else { &["basic", "ycsb"] }
    }

    /// Draws the contract whose definition changes.
    pub(super) fn draw_defined(&mut self) -> &'static str {
        let contracts = self.defined();
        contracts[self.rng.index(contracts.len())]
    }

    /// Draws the collections of a contract's definition; `None` if it has none.
    fn draw_collections(&mut self, contract: &str) -> Option<DefinedCollections> {
        let private_data = self.network.scenario.private_data.as_ref().filter(|_| contract == VAULT)?;
        let members = MEMBERS + self.rng.index(ORGANIZATIONS - MEMBERS + 1);
        Some(DefinedCollections { members, package: vault::collections(private_data, members) })
    }

    /// Has organisations approve the next definition of a contract, and one of them commit it. Sometimes `is_careless`: too few
    /// organisations approve, or endorse the commit.
    pub(super) async fn define(&mut self, contract: &'static str, is_careless: bool) -> &'static str {
        let newest = self.network.newest_definition(contract);
        let endorsements_max = self.network.scenario.endorsements_min;
        let collections = self.draw_collections(contract);
        let rng = &mut self.rng;
        let definition = Definition::draw(rng, contract, newest, endorsements_max, ORGANIZATIONS, collections);
        self.network.recorder.log(format_args!("{} defines: {}", self.name, definition.text()));
        let majority = ORGANIZATIONS / 2 + 1;
        let mut places: Vec<usize> = (0..ORGANIZATIONS).collect();
        while places.len() > majority {
            places.remove(self.rng.index(places.len()));
        }
        let approving = if is_careless && self.rng.one_in(6) { majority - 1 } else { majority };
        for place in places.iter().take(approving) {
            let admin = self.network.members.admins[*place].clone();
            // Somebody else may have had it approved.
            let _ = self.call_lifecycle(&admin, &[*place], definition.approval(), Conduct::Honest).await;
        }
        let endorsing = if is_careless && self.rng.one_in(6) { majority - 1 } else { majority };
        let admin = self.network.members.admins[places[0]].clone();
        match self.call_lifecycle(&admin, &places[..endorsing], definition.commit(), Conduct::Races(contract)).await {
            "valid" => {
                // A peer runs only what its organisation has approved.
                for place in (0..ORGANIZATIONS).filter(|place| !places.contains(place)) {
                    let admin = self.network.members.admins[place].clone();
                    let _ = self.call_lifecycle(&admin, &[place], definition.approval(), Conduct::Honest).await;
                }
                "defined"
            }
            "invalid" => "definition invalid",
            _ => "definition refused",
        }
    }

    /// Has every organisation approve the definitions that the ledger has.
    pub(super) async fn approve_current(&mut self) {
        for &contract in self.defined() {
            for place in 0..ORGANIZATIONS {
                let peer = self.network.peer(&self.network.primary(place)).and_then(|peer| peer.channel(CHANNEL));
                let Some(policies) = peer.map(|channel| channel.policies()) else { continue };
                let on_ledger = policies.on_ledger().contains(contract);
                let Some(current) = policies.definitions().get(contract).filter(|_| on_ledger) else { continue };
                let admin = self.network.members.admins[place].clone();
                let approval = Definition::current(contract, current).approval();
                // Refused where it is approved already.
                let _ = self.call_lifecycle(&admin, &[place], approval, Conduct::Honest).await;
            }
        }
    }

    /// Calls the contract of definitions, endorsed at the peers of these organisations.
    async fn call_lifecycle(
        &mut self,
        signer: &Signer,
        places: &[usize],
        args: Vec<Bytes>,
        conduct: Conduct,
    ) -> &'static str {
        loop {
            let proposal = Proposal::new(signer, CHANNEL, definition::CONTRACT, args.clone());
            match self.endorse_at(&proposal, places.to_vec(), None).await {
                Ok(endorsed) => return self.submit(signer, &proposal, endorsed, conduct).await,
                Err("refused") => return "refused",
                Err(_) => self.pause().await,
            }
        }
    }

    /// Proposes a change of the newest configuration, and sometimes another one at once, which relies on the same
    /// configuration.
    pub(super) async fn reconfigure(&mut self) -> &'static str {
        let Some(config) = self.network.newest_config() else { return "no configuration known" };
        let mut outcome = "changes refused";
        for _ in 0..1 + self.rng.below(2) {
            let members = Reconfigurers {
                admins: &self.network.members.admins,
                orderer_admin: &self.network.members.orderer_admin,
                endorsements_max: self.network.scenario.endorsements_min,
            };
            let change = reconfiguration::draw(&mut self.rng, members, &config);
            self.network.recorder.log(format_args!("{} proposes: {}", self.name, change.text));
            self.claims.changes.insert(change.envelope.clone(), change.is_authorized);
            loop {
                match self.send_to_orderer(&change.envelope).await {
                    Ok(answer) if answer.verdict == ResponseStatus::Done => {
                        outcome = "reconfigured";
                        if !change.is_authorized {
                            let text = &change.text;
                            self.network.recorder.report_violation(format_args!("{ORDERER} takes {text}, unsigned"));
                        }
                        break;
                    }
                    Ok(answer) if answer.verdict == ResponseStatus::Rejected => break,
                    _ => self.pause().await,
                }
            }
        }
        outcome
    }

    /// Submits transactions that one organisation has endorsed. Whether that is enough may change with the block before theirs.
    pub(super) async fn race(&mut self, contract: &str) {
        for _ in 0..RACES {
            let signer = self.signer.clone();
            let proposal = Proposal::new(&signer, CHANNEL, contract, vec![Bytes::from_static(b"race")]);
            let result = proposal.forged_result(rogue::racing_read_write_set(&mut self.rng, contract));
            let endorsement = endorse(self.rng.pick(&self.network.members.peers), &result);
            let envelope = proposal.envelope(&signer, &result, &[endorsement], EnvelopeDefect::Not);
            self.claims.submitted.insert(proposal.tx_id);
            // The answer does not matter.
            let _ = self.send_to_orderer(&envelope).await;
        }
    }
}
