//! The outcome of one transaction, and the trait through which the driver uses a network.

use std::time::Duration;

use async_trait::async_trait;

use crate::workload::ContractCall;

/// The three things that a client waits for, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransactionStage {
    /// Until the gateway returned an endorsed envelope.
    Endorse,
    /// Until the orderer acknowledged it.
    Submit,
    /// Until the commit was known.
    Commit,
}

/// All stages.
pub const STAGES: [TransactionStage; 3] =
    [TransactionStage::Endorse, TransactionStage::Submit, TransactionStage::Commit];

impl TransactionStage {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            TransactionStage::Endorse => "endorse",
            TransactionStage::Submit => "submit",
            TransactionStage::Commit => "commit",
        }
    }
}

/// A transaction that is in a block, valid or not.
#[derive(Clone, Debug)]
pub struct CommittedTransaction {
    /// Its validation code; 0 is valid.
    pub code: i32,
    /// Its block's number.
    pub block: u64,
    /// How long each stage took, in the order of [`STAGES`].
    pub stages: [Duration; 3],
}

/// A transaction that did not get into a block.
#[derive(Clone, Debug)]
pub struct RejectedTransaction {
    /// The stage in which it ended.
    pub stage: TransactionStage,
    /// The gRPC status, such as `ABORTED`, or [`REJECTED_BY_CONTRACT`].
    pub status: &'static str,
    /// The error message.
    pub message: String,
}

/// The status of transactions that the contract itself rejected: a property of the workload, not of the network.
pub const REJECTED_BY_CONTRACT: &str = "refused by contract";

/// A network that transactions can be sent to.
#[async_trait]
pub trait TransactionClient: Send + Sync + 'static {
    /// Sends one transaction for client number `client` and waits until it is committed or rejected.
    async fn transact(
        &self,
        client: usize,
        contract: &str,
        call: ContractCall,
    ) -> Result<CommittedTransaction, RejectedTransaction>;
}
