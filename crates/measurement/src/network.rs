//! A running network, reached through the gateways of all its organisations.
//!
//! 1. [`GatewayNetwork::connect`] opens a few connections, spread over the gateways; clients share them.
//! 2. A client's transaction is endorsed and submitted by the gateway of its connection. Then the client waits for the commit.
//! 3. The client waits in one of two ways ([`CommitWait`]): for the gateway's CommitStatus, or for its transaction in a
//!    stream of filtered blocks. One task per connection, the *block follower*, reads this stream for all clients of
//!    the connection.
//!
//! A client registers with the block follower before it submits its transaction, so that it cannot miss the block.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use base::Bytes;
use gateway::client::{BlockView, ConnectTarget, GatewayClient, GrpcConnection, GrpcStatus, StartPosition};
use identity::Signer;
use prost::Message as _;
use proto::common::Payload;
use proto::protos::{ChaincodeActionPayload, Transaction, deliver_response};
use tokio::sync::oneshot;

use crate::error::Error;
use crate::outcome::{
    CommittedTransaction, REJECTED_BY_CONTRACT, RejectedTransaction, TransactionClient, TransactionStage,
};
use crate::progress::MeasurementFuture;
use crate::workload::{ContractCall, Workload, client_random};

/// How a client learns that its transaction is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitWait {
    /// It asks the gateway for the commit status.
    Status,
    /// It follows the blocks of its gateway's peer.
    Events,
}

impl CommitWait {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            CommitWait::Status => "status",
            CommitWait::Events => "events",
        }
    }
}

/// A gateway and a user of its organisation.
#[derive(Clone, Debug)]
pub struct GatewayTarget {
    /// Its address.
    pub target: ConnectTarget,
    /// The user that signs.
    pub user: Signer,
}

/// A network with connections to its gateways.
pub struct GatewayNetwork {
    channel: String,
    lanes: Vec<GatewayConnection>,
}

struct GatewayConnection {
    client: GatewayClient,
    listener: Option<CommitListener>,
}

/// The text in the gateway's message by which a rejection by the contract is recognised.
const CONTRACT_REJECTION: &str = "chaincode response";

impl GatewayNetwork {
    /// Opens `connections` connections, the first to the first gateway, and so on round robin. Each call may take
    /// `deadline`.
    ///
    /// # Errors
    /// A gateway cannot be reached, or does not send blocks.
    pub fn connect<'a>(
        channel: &'a str,
        gateways: &'a [GatewayTarget],
        connections: usize,
        wait: CommitWait,
        deadline: Duration,
    ) -> MeasurementFuture<'a, GatewayNetwork> {
        Box::pin(GatewayNetwork::connect_all(channel, gateways, connections, wait, deadline))
    }

    async fn connect_all(
        channel: &str,
        gateways: &[GatewayTarget],
        connections: usize,
        wait: CommitWait,
        deadline: Duration,
    ) -> Result<GatewayNetwork, Error> {
        assert!(!gateways.is_empty() && connections > 0, "a network has gateways and clients have connections");
        let mut lanes = Vec::with_capacity(connections);
        for gateway in gateways.iter().cycle().take(connections) {
            let failed = |reason: String| Error::Connect { address: gateway.target.address.clone(), reason };
            let connection =
                GrpcConnection::connect(&gateway.target).await.map_err(|error| failed(error.to_string()))?;
            let client = GatewayClient::new(connection, gateway.user.clone()).with_deadline(Some(deadline));
            let follower = match wait {
                CommitWait::Status => None,
                CommitWait::Events => {
                    Some(CommitListener::start(&client, channel).await.map_err(|status| failed(status.to_string()))?)
                }
            };
            lanes.push(GatewayConnection { client, listener: follower });
        }
        Ok(GatewayNetwork { channel: channel.to_owned(), lanes })
    }

    /// How many endorsements a transaction of this workload carries: one is endorsed and not submitted.
    ///
    /// # Errors
    /// None of [`ENDORSEMENT_ATTEMPTS_MAX`] transactions is endorsed.
    pub fn endorsements<'a>(&'a self, workload: &'a dyn Workload) -> MeasurementFuture<'a, usize> {
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

/// The contract may reject some transactions.
const ENDORSEMENT_ATTEMPTS_MAX: usize = 100;

fn count_endorsements(payload: &Bytes) -> Option<usize> {
    let payload = Payload::decode(payload.clone()).ok()?;
    let transaction = Transaction::decode(payload.data).ok()?;
    let action = ChaincodeActionPayload::decode(transaction.actions.first()?.payload.clone()).ok()?;
    Some(action.action?.endorsements.len())
}

#[async_trait]
impl TransactionClient for GatewayNetwork {
    async fn transact(
        &self,
        client: usize,
        contract: &str,
        call: ContractCall,
    ) -> Result<CommittedTransaction, RejectedTransaction> {
        let GatewayConnection { client, listener } = &self.lanes[client % self.lanes.len()];
        let begun = Instant::now();
        let proposal = client.proposal(&self.channel, contract, call.function, &call.args).sign();
        let transaction =
            client.endorse(&proposal).await.map_err(|status| rejection(TransactionStage::Endorse, status))?;
        let endorsed = Instant::now();
        let waiting = listener.as_ref().map(|listener| listener.register(transaction.tx_id()));
        client.submit(&transaction).await.map_err(|status| rejection(TransactionStage::Submit, status))?;
        let submitted = Instant::now();
        let (code, block) = match waiting {
            None => {
                let commit = client.commit_status(&self.channel, transaction.tx_id()).await;
                let commit = commit.map_err(|status| rejection(TransactionStage::Commit, status))?;
                (commit.code, commit.block)
            }
            Some(waiting) => waiting.wait().await?,
        };
        let stages = [endorsed - begun, submitted - endorsed, submitted.elapsed()];
        Ok(CommittedTransaction { code, block, stages })
    }
}

fn rejection(stage: TransactionStage, status: GrpcStatus) -> RejectedTransaction {
    let by_contract = stage == TransactionStage::Endorse
        && (status.message.contains(CONTRACT_REJECTION)
            || status.details.iter().any(|detail| detail.message.contains(CONTRACT_REJECTION)));
    let message = status.to_string();
    RejectedTransaction { stage, status: if by_contract { REJECTED_BY_CONTRACT } else { status.code.name() }, message }
}

type CommitWaiters = Mutex<HashMap<String, oneshot::Sender<(i32, u64)>>>;

/// Reads the filtered blocks of one peer and wakes the clients that wait for their transactions.
struct CommitListener {
    waiters: Arc<CommitWaiters>,
    task: tokio::task::JoinHandle<()>,
}

/// How long a client waits for its transaction's block.
const BLOCK_WAIT_MAX: Duration = Duration::from_secs(30);

impl CommitListener {
    async fn start(client: &GatewayClient, channel: &str) -> Result<CommitListener, GrpcStatus> {
        let mut blocks = client.deliver(channel, StartPosition::Newest, None, BlockView::Filtered).await?;
        // The newest block comes at once and shows that the stream works.
        blocks.next().await?;
        let waiters = Arc::new(CommitWaiters::default());
        let told = Arc::clone(&waiters);
        let task = tokio::spawn(async move {
            while let Ok(Some(response)) = blocks.next().await {
                let deliver_response::Type::FilteredBlock(block) = response else { continue };
                let mut waiters = told.lock().unwrap_or_else(PoisonError::into_inner);
                for transaction in block.filtered_transactions {
                    if let Some(waiter) = waiters.remove(&transaction.txid) {
                        // The client may have given up.
                        let _ = waiter.send((transaction.tx_validation_code, block.number));
                    }
                }
            }
            // The stream has ended: dropping their senders notifies the waiting clients.
            told.lock().unwrap_or_else(PoisonError::into_inner).clear();
        });
        Ok(CommitListener { waiters, task })
    }

    fn register(&self, tx_id: &str) -> PendingCommit<'_> {
        let (sender, receiver) = oneshot::channel();
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner).insert(tx_id.to_owned(), sender);
        PendingCommit { waiters: &self.waiters, tx_id: tx_id.to_owned(), receiver }
    }
}

impl Drop for CommitListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The registration of one waiting client, removed when dropped.
struct PendingCommit<'a> {
    waiters: &'a CommitWaiters,
    tx_id: String,
    receiver: oneshot::Receiver<(i32, u64)>,
}

impl PendingCommit<'_> {
    async fn wait(mut self) -> Result<(i32, u64), RejectedTransaction> {
        let (status, message) = match tokio::time::timeout(BLOCK_WAIT_MAX, &mut self.receiver).await {
            Ok(Ok(committed)) => return Ok(committed),
            Ok(Err(_)) => ("UNAVAILABLE", "the stream of blocks has ended"),
            Err(_) => ("DEADLINE_EXCEEDED", "no block has come with the transaction"),
        };
        Err(RejectedTransaction { stage: TransactionStage::Commit, status, message: message.to_owned() })
    }
}

impl Drop for PendingCommit<'_> {
    fn drop(&mut self) {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.tx_id);
    }
}

#[cfg(test)]
mod tests {
    use gateway::client::GrpcCode;

    use super::*;

    #[test]
    fn refusals_of_the_contract_are_told_from_those_of_the_network() {
        let aborted = || GrpcStatus::new(GrpcCode::Aborted, "failed to endorse transaction, see attached details");
        let detail = |message: &str| proto::gateway::ErrorDetail {
            address: "127.0.0.1:7051".to_owned(),
            msp_id: "Org1MSP".to_owned(),
            message: message.to_owned(),
        };
        let contract = aborted().with_detail(detail("chaincode response 500, there is no account 7"));
        assert_eq!(rejection(TransactionStage::Endorse, contract).status, REJECTED_BY_CONTRACT);
        let signature = aborted().with_detail(detail("access denied: the signature is wrong"));
        assert_eq!(rejection(TransactionStage::Endorse, signature).status, "ABORTED");
        let orderer = GrpcStatus::new(GrpcCode::Unavailable, "no orderer");
        assert_eq!(rejection(TransactionStage::Submit, orderer).status, "UNAVAILABLE");
    }
}
