//! A real network, reached through the gateways of all its organisations.
//!
//! 1. [`Network::connect`] opens a few connections, spread over the gateways; clients share them.
//! 2. A transaction is endorsed, submitted and waited for by the gateway of its client's connection.
//! 3. The wait is either the gateway's CommitStatus, or a stream of filtered blocks that one follower a connection reads
//!    for all its clients ([`Wait`]).
//!
//! A client is registered with the follower before it submits, so that it cannot miss its block.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use base::Bytes;
use gateway::client::{Client, Connection, Form, Start, Status, Target};
use identity::Signer;
use prost::Message as _;
use proto::common::Payload;
use proto::protos::{ChaincodeActionPayload, Transaction, deliver_response};
use tokio::sync::oneshot;

use crate::error::Error;
use crate::outcome::{BY_CONTRACT, Committed, Refused, Stage, Submit};
use crate::progress::Measuring;
use crate::workload::{Call, Workload, client_random};

/// How a client learns that its transaction is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It asks the gateway for the commit status.
    Status,
    /// It follows the blocks of its gateway's peer.
    Events,
}

impl Wait {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Wait::Status => "status",
            Wait::Events => "events",
        }
    }
}

/// A gateway and a user of its organisation.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// Where it is.
    pub target: Target,
    /// Who signs.
    pub user: Signer,
}

/// A network with connections to its gateways.
pub struct Network {
    channel: String,
    lanes: Vec<Lane>,
}

struct Lane {
    client: Client,
    follower: Option<Follower>,
}

/// What the contract refused, as the gateway reports it.
const CONTRACT_REFUSAL: &str = "chaincode response";

impl Network {
    /// Opens `connections` connections, the first to the first gateway, and so on round robin. Each call may take
    /// `deadline`.
    ///
    /// # Errors
    /// A gateway cannot be reached, or does not send blocks.
    pub fn connect<'a>(
        channel: &'a str,
        gateways: &'a [Gateway],
        connections: usize,
        wait: Wait,
        deadline: Duration,
    ) -> Measuring<'a, Network> {
        Box::pin(Network::connect_all(channel, gateways, connections, wait, deadline))
    }

    async fn connect_all(
        channel: &str,
        gateways: &[Gateway],
        connections: usize,
        wait: Wait,
        deadline: Duration,
    ) -> Result<Network, Error> {
        assert!(!gateways.is_empty() && connections > 0, "a network has gateways and clients have connections");
        let mut lanes = Vec::with_capacity(connections);
        for gateway in gateways.iter().cycle().take(connections) {
            let failed = |reason: String| Error::Connect { address: gateway.target.address.clone(), reason };
            let connection = Connection::connect(&gateway.target).await.map_err(|error| failed(error.to_string()))?;
            let client = Client::new(connection, gateway.user.clone()).with_deadline(Some(deadline));
            let follower = match wait {
                Wait::Status => None,
                Wait::Events => {
                    Some(Follower::start(&client, channel).await.map_err(|status| failed(status.to_string()))?)
                }
            };
            lanes.push(Lane { client, follower });
        }
        Ok(Network { channel: channel.to_owned(), lanes })
    }

    /// How many endorsements a transaction of this workload carries: one is endorsed and not submitted.
    ///
    /// # Errors
    /// None of [`ENDORSEMENT_ATTEMPTS_MAX`] transactions is endorsed.
    pub fn endorsements<'a>(&'a self, workload: &'a dyn Workload) -> Measuring<'a, usize> {
        Box::pin(self.count_endorsements(workload))
    }

    async fn count_endorsements(&self, workload: &dyn Workload) -> Result<usize, Error> {
        let client = &self.lanes[0].client;
        let mut generator = workload.generator(0, client_random(u64::MAX, 0));
        let mut reason = String::new();
        for _ in 0..ENDORSEMENT_ATTEMPTS_MAX {
            let call = generator.next();
            let proposal = client.proposal(&self.channel, workload.contract(), call.function, &call.args).sign();
            match client.endorse(&proposal).await {
                Ok(transaction) => return Ok(count_endorsements(transaction.payload()).unwrap_or(0)),
                Err(status) => reason = status.to_string(),
            }
        }
        Err(Error::NotEndorsed { reason })
    }
}

/// The contract may refuse some transactions.
const ENDORSEMENT_ATTEMPTS_MAX: usize = 100;

fn count_endorsements(payload: &Bytes) -> Option<usize> {
    let payload = Payload::decode(payload.clone()).ok()?;
    let transaction = Transaction::decode(payload.data).ok()?;
    let action = ChaincodeActionPayload::decode(transaction.actions.first()?.payload.clone()).ok()?;
    Some(action.action?.endorsements.len())
}

#[async_trait]
impl Submit for Network {
    async fn transact(&self, client: usize, contract: &str, call: Call) -> Result<Committed, Refused> {
        let Lane { client, follower } = &self.lanes[client % self.lanes.len()];
        let begun = Instant::now();
        let proposal = client.proposal(&self.channel, contract, call.function, &call.args).sign();
        let transaction = client.endorse(&proposal).await.map_err(|status| refused(Stage::Endorse, status))?;
        let endorsed = Instant::now();
        let waiting = follower.as_ref().map(|follower| follower.register(transaction.tx_id()));
        client.submit(&transaction).await.map_err(|status| refused(Stage::Submit, status))?;
        let submitted = Instant::now();
        let (code, block) = match waiting {
            None => {
                let commit = client.commit_status(&self.channel, transaction.tx_id()).await;
                let commit = commit.map_err(|status| refused(Stage::Commit, status))?;
                (commit.code, commit.block)
            }
            Some(waiting) => waiting.committed().await?,
        };
        let stages = [endorsed - begun, submitted - endorsed, submitted.elapsed()];
        Ok(Committed { code, block, stages })
    }
}

fn refused(stage: Stage, status: Status) -> Refused {
    let by_contract = stage == Stage::Endorse
        && (status.message.contains(CONTRACT_REFUSAL)
            || status.details.iter().any(|detail| detail.message.contains(CONTRACT_REFUSAL)));
    let message = status.to_string();
    Refused { stage, status: if by_contract { BY_CONTRACT } else { status.code.name() }, message }
}

type Waiters = Mutex<HashMap<String, oneshot::Sender<(i32, u64)>>>;

/// Reads the filtered blocks of one peer and wakes whoever waits for one of their transactions.
struct Follower {
    waiters: Arc<Waiters>,
    task: tokio::task::JoinHandle<()>,
}

/// How long a client waits for its transaction's block.
const BLOCK_WAIT_MAX: Duration = Duration::from_secs(30);

impl Follower {
    async fn start(client: &Client, channel: &str) -> Result<Follower, Status> {
        let mut blocks = client.deliver(channel, Start::Newest, None, Form::Filtered).await?;
        // The newest block comes at once and shows that the stream is there.
        blocks.next().await?;
        let waiters = Arc::new(Waiters::default());
        let told = Arc::clone(&waiters);
        let task = tokio::spawn(async move {
            while let Ok(Some(response)) = blocks.next().await {
                let deliver_response::Type::FilteredBlock(block) = response else { continue };
                let mut waiters = told.lock().unwrap_or_else(PoisonError::into_inner);
                for transaction in block.filtered_transactions {
                    if let Some(waiter) = waiters.remove(&transaction.txid) {
                        // A client that has given up is not there any more.
                        let _ = waiter.send((transaction.tx_validation_code, block.number));
                    }
                }
            }
            // The stream has ended: whoever waits is told by the drop of its sender.
            told.lock().unwrap_or_else(PoisonError::into_inner).clear();
        });
        Ok(Follower { waiters, task })
    }

    fn register(&self, tx_id: &str) -> Waiting<'_> {
        let (sender, receiver) = oneshot::channel();
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner).insert(tx_id.to_owned(), sender);
        Waiting { waiters: &self.waiters, tx_id: tx_id.to_owned(), receiver }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One client's place among the waiters, given up when dropped.
struct Waiting<'a> {
    waiters: &'a Waiters,
    tx_id: String,
    receiver: oneshot::Receiver<(i32, u64)>,
}

impl Waiting<'_> {
    async fn committed(mut self) -> Result<(i32, u64), Refused> {
        let (status, message) = match tokio::time::timeout(BLOCK_WAIT_MAX, &mut self.receiver).await {
            Ok(Ok(committed)) => return Ok(committed),
            Ok(Err(_)) => ("UNAVAILABLE", "the stream of blocks has ended"),
            Err(_) => ("DEADLINE_EXCEEDED", "no block has come with the transaction"),
        };
        Err(Refused { stage: Stage::Commit, status, message: message.to_owned() })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.tx_id);
    }
}

#[cfg(test)]
mod tests {
    use gateway::client::Code;

    use super::*;

    #[test]
    fn refusals_of_the_contract_are_told_from_those_of_the_network() {
        let aborted = || Status::new(Code::Aborted, "failed to endorse transaction, see attached details");
        let detail = |message: &str| proto::gateway::ErrorDetail {
            address: "127.0.0.1:7051".to_owned(),
            msp_id: "Org1MSP".to_owned(),
            message: message.to_owned(),
        };
        let contract = aborted().with_detail(detail("chaincode response 500, there is no account 7"));
        assert_eq!(refused(Stage::Endorse, contract).status, BY_CONTRACT);
        let signature = aborted().with_detail(detail("access denied: the signature is wrong"));
        assert_eq!(refused(Stage::Endorse, signature).status, "ABORTED");
        let orderer = Status::new(Code::Unavailable, "no orderer");
        assert_eq!(refused(Stage::Submit, orderer).status, "UNAVAILABLE");
    }
}
