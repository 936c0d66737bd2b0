//! The configurations in an orderer's log.
//!
//! The metadata of each block contain the number of the newest configuration block (`last_config`, as in Fabric); a
//! configuration block has its own number there. So the configuration after any height of the log is found from one
//! block. Two configurations matter to an orderer:
//!
//! 1. The **committed** configuration, after the commit index: it decides who may submit envelopes and read blocks.
//! 2. The **leader's** configuration, after the end of the log on which the leader builds: it decides which envelopes enter
//!    the next block. It may be newer than the committed one.
//!
//! A configuration block that is not committed may be replaced by another block with the same number. Therefore an
//! orderer keeps compiled policies of committed configurations only, and reads a leader's configuration at the start of
//! its term.

use std::sync::Arc;

use ledger::{Block, ChannelConfig};
use rules::access::ChannelPolicies;

use super::log_store::ChannelLogStore;
use crate::Error;

/// A channel's configuration, and the block that holds it.
#[derive(Clone, Debug)]
pub(super) struct ConfigInForce {
    /// The number of the configuration block.
    pub block: u64,
    /// The policies of the configuration.
    pub policies: Arc<ChannelPolicies>,
}

impl ConfigInForce {
    /// The configuration after the first `height` blocks of a log, at least one. `committed` is a committed
    /// configuration of the same channel.
    ///
    /// # Errors
    /// If the log cannot be read or has no such configuration block.
    pub fn after(log_store: &ChannelLogStore, height: u64, committed: &ConfigInForce) -> Result<ConfigInForce, Error> {
        let last = height.checked_sub(1).expect("a log has its genesis block");
        let number = read(log_store, last)?.orderer_metadata()?.last_config;
        if number == committed.block {
            return Ok(committed.clone());
        }
        if number > last {
            let reason = format!("it names block {number} as its last configuration block");
            return Err(Error::Stored { block: last, reason });
        }
        let config = ChannelConfig::from_block(&read(log_store, number)?)?;
        Ok(ConfigInForce { block: number, policies: Arc::new(committed.policies.under(Arc::new(config))) })
    }
}

fn read(log_store: &ChannelLogStore, number: u64) -> Result<Block, Error> {
    let missing = || Error::Stored { block: number, reason: "it is missing".to_owned() };
    Ok(Block::parse(&log_store.block(number)?.ok_or_else(missing)?)?)
}
