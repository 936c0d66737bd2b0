//! Passes blocks from the connection to an orderer on to the pipeline.

use std::sync::Arc;

use base::rt::CancellationToken;
use block_transport::{BlockSink, ReceivedTip, SinkStopped, SourceAddresses, receive_blocks};
use ledger::Block;
use ledger::config::ChannelConfig;

use super::context::{ChainTip, CommitContext};
use super::pipeline::CommitPipeline;
use crate::Error;

struct PipelineSink {
    context: Arc<CommitContext>,
    pipeline: CommitPipeline,
}

impl BlockSink for PipelineSink {
    fn config(&self) -> Arc<ChannelConfig> {
        self.context.validating.get().config().clone()
    }

    fn stop(&self) -> &CancellationToken {
        self.context.stop()
    }

    async fn offer(&self, block: Block) -> Result<(), SinkStopped> {
        self.pipeline.offer(block).await.map_err(|_| SinkStopped)
    }

    fn stall(&self, reason: String) -> Box<dyn Send + '_> {
        Box::new(self.context.stall(reason))
    }

    fn fail_forked(&self, block: u64) {
        self.context.fail(Error::OtherChain { channel: self.context.policies.channel().clone(), block });
    }
}

/// Receives blocks until the channel stops, then stops the pipeline.
pub async fn run_delivery(
    context: Arc<CommitContext>,
    pipeline: CommitPipeline,
    tip: ChainTip,
    sources: SourceAddresses,
) {
    let sink = PipelineSink { context, pipeline };
    receive_blocks(&sink, ReceivedTip { height: tip.height, hash: tip.hash }, sources).await;
    sink.pipeline.stop().await;
}
