//! Stage 2: the verification of a block's transactions, here or at the most idle compute node of the peer
//! ([`validation::offload`]).

use std::sync::Arc;

use base::rt::{self, AbortOnDrop};
use ledger::Block;
use rules::access::ChannelPolicies;
use validation::block::ConflictCheckMode;
use validation::offload::{VERIFY_CHUNK_TRANSACTIONS, VerificationPart, parts, verify_at_follower};
use validation::verify::{VerifiedTransaction, verify_transactions};

use super::context::CommitContext;
use crate::{Error, events};

/// The transactions of a block, while they are being verified.
pub(super) struct VerifyingTransactions {
    /// The policies by which they are verified.
    policies: Arc<ChannelPolicies>,
    /// In the order of the block: a task for each part that another node verifies, and several for each other part.
    tasks: Vec<AbortOnDrop<Vec<VerifiedTransaction>>>,
}

impl VerifyingTransactions {
    /// Starts to verify the transactions of a block by the policies in force.
    pub(super) fn start(block: &Block, context: &CommitContext) -> VerifyingTransactions {
        let mut tasks = Vec::with_capacity(block.len().div_ceil(VERIFY_CHUNK_TRANSACTIONS));
        let in_force = context.validating.get();
        let wants_footprints = context.settings.conflicts != ConflictCheckMode::Sequential;
        let found = move |mut verified: Vec<VerifiedTransaction>| {
            if wants_footprints {
                verified.iter_mut().for_each(VerifiedTransaction::find_footprint);
            }
            verified
        };
        for (part, bytes) in parts((0..block.len()).map(|index| block.envelope(index).len())) {
            let (policies, offload) = (in_force.clone(), context.settings.offload.clone());
            let permit = context.primary.as_deref().and_then(|primary| offload.reserve(primary, bytes));
            if let Some(permit) = permit {
                let part = VerificationPart {
                    policies_digest: *policies.digest(),
                    block: block.number().get(),
                    first: part.start as u32,
                    envelopes: part.map(|index| block.envelope(index)).collect(),
                };
                let task = async move { found(verify_at_follower(&offload, permit, &part, &policies).await) };
                tasks.push(rt::spawn(task).abort_on_drop());
                continue;
            }
            for start in part.clone().step_by(VERIFY_CHUNK_TRANSACTIONS) {
                let end = (start + VERIFY_CHUNK_TRANSACTIONS).min(part.end);
                let (block, policies) = (block.clone(), policies.clone());
                let task = async move {
                    found(verify_transactions((start..end).map(|index| block.envelope(index)), &policies))
                };
                tasks.push(rt::spawn(task).abort_on_drop());
            }
        }
        VerifyingTransactions { policies: in_force, tasks }
    }
}

/// The verified transactions of a block. Verification runs ahead of validation, so an earlier block may have changed a
/// definition since this one was verified. Then all its transactions are verified again.
pub(super) async fn verified(
    block: &Block,
    mut verifying: VerifyingTransactions,
    context: &CommitContext,
) -> Result<Vec<VerifiedTransaction>, Error> {
    loop {
        let VerifyingTransactions { policies, tasks } = verifying;
        let is_in_force = *policies.digest() == *context.validating.get().digest();
        if is_in_force || rt::fault_point("chain.commit.mutant.keeps_verdicts") {
            let mut verified = Vec::with_capacity(block.len());
            for task in tasks {
                verified.extend(task.await.map_err(|_| Error::Stopped)?);
            }
            return Ok(verified);
        }
        events::BlocksVerifiedAgain.add(1);
        verifying = VerifyingTransactions::start(block, context);
    }
}
