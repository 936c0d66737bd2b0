//! What the peer states about itself to its neighbours and to clients.

use std::sync::atomic::Ordering;

use identity::statement::{PeerStatement, RunnableContract};
use ledger::lifecycle::LIFECYCLE;
use ledger::proposal::shown;
use proto::discovery::Peer;

use super::approval::ApprovalQuery;
use super::endorser::{Endorser, unavailable};
use super::{EndorseError, EndorsingChannel};

impl Endorser {
    /// See [`Endorse::describe`](super::Endorse::describe).
    ///
    /// # Errors
    /// See [`EndorseError`].
    pub async fn describe(&self, channel: &str) -> Result<Peer, EndorseError> {
        let statement = PeerStatement {
            signer: &self.signer,
            address: &self.settings.client_address,
            started_ns: self.started_ns,
            sequence: self.statements.fetch_add(1, Ordering::Relaxed),
        };
        if channel.is_empty() {
            return Ok(statement.alive());
        }
        let found = self.channels.channel(channel).ok_or_else(|| EndorseError::UnknownChannel(shown(channel)))?;
        let contracts = self.runnable(&*found).await?;
        Ok(statement.in_channel(channel, found.height(), contracts))
    }

    /// The contracts that this peer can run now: it has their code, and its organisation has approved what the ledger defines.
    async fn runnable(&self, channel: &dyn EndorsingChannel) -> Result<Vec<RunnableContract>, EndorseError> {
        let snapshot = channel.snapshot().await.map_err(|error| unavailable(&error))?;
        let (policies, private) = (channel.policies(), channel.private().values());
        let mut runnable = vec![RunnableContract { name: LIFECYCLE.to_owned(), sequence: 1 }];
        for (contract, definition) in policies.definitions() {
            let package = match policies.on_ledger().contains(contract) {
                false => Some(String::new()),
                true => {
                    let (own, snapshot) = (self.signer.msp_id(), &*snapshot);
                    let channel = policies.channel();
                    let query = ApprovalQuery { channel, own, contract, definition, snapshot, private: &*private };
                    // Without the approval at hand the peer cannot run the contract.
                    self.approvals.find(query).await.ok().flatten().map(|approval| approval.package)
                }
            };
            if package.is_some_and(|package| self.registry.find(contract, &package).is_some()) {
                runnable.push(RunnableContract { name: contract.clone(), sequence: definition.sequence });
            }
        }
        Ok(runnable)
    }
}
