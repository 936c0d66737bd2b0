//! `heddle ledger replay`.
//!
//! 1. Read the recording: the blocks of a channel as one of Fabric's peers delivered them, the validation codes and
//!    commit hashes of that peer, and its state after the last block.
//! 2. Open a peer with empty stores in a temporary folder. This process acts as its only orderer, and serves the
//!    recorded blocks without the validation codes and commit hashes that Fabric's peer added. So the new peer itself
//!    verifies the hashes and the orderers' signatures, validates every transaction and computes the state. If the
//!    recording has answers of Fabric's peers, there is a peer for each of those, with its identity and the private data
//!    that it got.
//! 3. Wait until the peer has committed all blocks. If it commits none for [`CHECK_PERIOD`], find out whether it
//!    stopped, waits for the disk, or refuses the next block.
//! 4. Compare the validation codes, the commit hashes and the state with the recorded ones.
//! 5. If the recording has answers of Fabric's peers to proposals, answer the same proposals on the state after the last
//!    block, and compare the answers.
//!
//! The genesis block has neither a validation code nor a commit hash, so the comparison begins with block 1. Blocks are
//! read when they are needed; the recorded state, codes and commit hashes are held in memory.
//!
//! [`recording`] and [`answers`] read the expected results (step 1), [`source`] reads and serves the blocks (steps 1 and
//! 2), [`peers`] opens the peers and [`private`] gives them their private data (step 2), [`mod@compare`] compares the results
//! (step 4), and [`endorse`] the answers (step 5). [`program`] is the contract that ran on the recorded channel.

mod answers;
mod compare;
mod endorse;
mod peers;
mod private;
mod program;
mod recording;
mod source;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::durable::{self, FileAccess};
use base::rt;
use base::rt::net::{LinkAcceptor, Parties};
use chain::Channel;
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::exit;
use crate::cli::ledger::ReplayArguments;
use crate::failure::CommandError;
use crate::output;
use crate::signals::StopSignals;
use answers::RecordedAnswers;
use compare::{Comparison, compare};
use endorse::compare_answers;
use peers::Scratch;
use recording::Recording;
use source::RecordedBlocks;

/// How long the peer may commit nothing before the command examines its condition and the next block.
const CHECK_PERIOD: Duration = Duration::from_millis(500);
/// The most links of a peer to the source of the blocks; it uses one at a time.
const LINKS_PER_PEER: usize = 2;

pub async fn run(arguments: &ReplayArguments) -> Result<(), CommandError> {
    let dir = &arguments.dir;
    let mut stop = StopSignals::listen()?;
    let comparison = tokio::select! {
        comparison = replay(dir) => comparison?,
        () = stop.received() => return Err(CommandError::interrupted()),
    };
    output::print(&comparison.report())?;
    if let Some(path) = &arguments.json {
        let text = format!("{:#}\n", comparison.to_json());
        durable::write(path, text.as_bytes(), FileAccess::Everybody)
            .map_err(|error| CommandError::about(path, error))?;
    }
    match comparison.differences.len() {
        0 => Ok(()),
        count => {
            let reason = format!("{count} of the recorded results differ from those of this program's peer");
            Err(CommandError::with_code(exit::DAMAGED, format!("{}: {reason}", dir.display())))
        }
    }
}

/// Has peers commit the recorded blocks, and compares their results with the recorded ones.
async fn replay(dir: &Path) -> Result<Comparison, CommandError> {
    let recording = Recording::open(dir)?;
    let answers = RecordedAnswers::open(dir)?;
    let signers = match answers.signers.is_empty() {
        // Nobody sees the signatures of this peer.
        true => vec![peers::made_up_signer()?],
        false => answers.signers.values().cloned().collect(),
    };
    let scratch = Scratch::create()?;
    let address = format!("recorded blocks {}", scratch.path().display());
    let acceptor = LinkAcceptor::open(&address, &Parties::anyone(), LINKS_PER_PEER * signers.len()).await;
    let acceptor =
        acceptor.map_err(|error| CommandError::about(dir, format!("the blocks cannot be served: {error}")))?;
    let blocks = Arc::new(RecordedBlocks::open(&recording.folder, recording.blocks.len() as u64)?);
    let _serving = source::serve(&blocks, acceptor);

    let peers = peers::open(&scratch, &signers, &address).await?;
    let mut channels = Vec::new();
    for peer in &peers {
        let channel = peer.join(blocks.genesis()).await;
        let channel = channel.map_err(|error| CommandError::about(&blocks.file(0), error))?;
        private::stage(dir, peer.signer(), &channel, &blocks).await?;
        channels.push(channel);
    }
    blocks.release();
    for channel in &channels {
        follow(channel, &blocks).await?;
    }
    let mut comparison = compare(&recording, channels.first().expect("there is a peer")).await?;
    for (peer, channel) in peers.iter().zip(&channels) {
        compare_answers(&answers, peer.signer(), channel, &mut comparison).await?;
    }
    for peer in &peers {
        peer.stop().await.map_err(|error| CommandError::about(scratch.path(), error))?;
    }
    Ok(comparison)
}

/// Waits until the peer has committed every recorded block.
async fn follow(channel: &Channel, blocks: &RecordedBlocks) -> Result<(), CommandError> {
    let style = ProgressStyle::with_template("{prefix:>9} [{bar:30}] {pos}/{len} blocks, {eta} left");
    let bar = ProgressBar::new(blocks.count())
        .with_style(style.expect("the template is well formed").progress_chars("=> "))
        .with_prefix("replaying");
    let mut committed = channel.committed();
    let outcome = loop {
        let height = *committed.borrow();
        bar.set_position(height);
        if height >= blocks.count() {
            break Ok(());
        }
        if rt::timeout(CHECK_PERIOD, committed.wait_for(|now| *now > height)).await.is_ok_and(|waited| waited.is_ok()) {
            continue;
        }
        if let Some(reason) = obstacle(channel, blocks, height) {
            break Err(CommandError::about(&blocks.file(height), reason));
        }
    };
    bar.finish_and_clear();
    outcome
}

/// Why the peer cannot commit the block with this number; `None` if it only needs more time.
fn obstacle(channel: &Channel, blocks: &RecordedBlocks, number: u64) -> Option<String> {
    if let Some(failure) = channel.failure() {
        let advice = "if the file is as Fabric's peer delivered it, this is a defect of this program";
        return Some(format!("the peer stopped before it had committed block {number}: {failure}; {advice}"));
    }
    let checked = blocks.check_received(number, &channel.config());
    if channel.height() > number {
        // It was committed meanwhile, and may have changed the configuration.
        return None;
    }
    if let Err(error) = checked {
        let advice = "record the channel again if the file was changed";
        return Some(format!("the peer does not accept block {number} from an orderer: {error}; {advice}"));
    }
    let stalled = channel.stalled()?;
    let folder = std::env::temp_dir();
    Some(format!(
        "the peer cannot commit block {number}: {stalled}; its blocks and state are in {}, and TMPDIR selects another \
         folder",
        folder.display()
    ))
}
