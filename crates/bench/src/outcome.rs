//! What becomes of one transaction, and the trait behind which a network stands.

use std::time::Duration;

use async_trait::async_trait;

use crate::workload::Call;

/// The three things that a client waits for, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Until the gateway returned an endorsed envelope.
    Endorse,
    /// Until the orderer acknowledged it.
    Submit,
    /// Until the commit was known.
    Commit,
}

/// All stages.
pub const STAGES: [Stage; 3] = [Stage::Endorse, Stage::Submit, Stage::Commit];

impl Stage {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Endorse => "endorse",
            Stage::Submit => "submit",
            Stage::Commit => "commit",
        }
    }
}

/// A transaction that is in a block, valid or not.
#[derive(Clone, Debug)]
pub struct Committed {
    /// Its validation code; 0 is valid.
    pub code: i32,
    /// Its block's number.
    pub block: u64,
    /// How long each stage took, in the order of [`STAGES`].
    pub stages: [Duration; 3],
}

/// A transaction that did not come as far.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Where it ended.
    pub stage: Stage,
    /// The gRPC status, such as `ABORTED`, or [`BY_CONTRACT`].
    pub status: &'static str,
    /// What was said.
    pub message: String,
}

/// The status of what the contract itself refused: the workload's doing, not the network's.
pub const BY_CONTRACT: &str = "refused by contract";

/// A network that transactions can be sent to.
#[async_trait]
pub trait Submit: Send + Sync + 'static {
    /// Sends one transaction for client number `client` and waits until it is committed or refused.
    async fn transact(&self, client: usize, contract: &str, call: Call) -> Result<Committed, Refused>;
}
