//! `heddle ledger replay`.
//!
//! 1. Read the recording: the blocks of a channel as one of Fabric's peers delivered them, the validation codes and
//!    commit hashes of that peer, and its state after the last block.
//! 2. Open a peer with empty stores in a temporary folder. This process acts as its only orderer, and serves the
//!    recorded blocks without the validation codes and commit hashes that Fabric's peer added. So the new peer itself
//!    verifies the hashes and the orderers' signatures, validates every transaction and computes the state.
//! 3. Wait until the peer has committed all blocks. If it commits none for [`CHECK_PERIOD`], find out whether it
//!    stopped, waits for the disk, or refuses the next block.
//! 4. Compare the validation codes, the commit hashes and the state with the recorded ones.
//!
//! The genesis block has neither a validation code nor a commit hash, so the comparison begins with block 1. Blocks are
//! read when they are needed; the recorded state, codes and commit hashes are held in memory.
//!
//! [`recording`] reads the expected results (step 1), [`source`] reads and serves the blocks (steps 1 and 2), and
//! [`mod@compare`] compares the results (step 4).

mod compare;
mod recording;
mod source;

use std::fmt::Display;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::durable::{self, FileAccess};
use base::rt;
use base::rt::disk::Directory;
use base::rt::net::{LinkAcceptor, Parties};
use chain::{Channel, LocalStores, Peer, PeerSetup};
use identity::issue::{CertificateTerms, IssuingOrganization};
use identity::{KeyKind, MemberRole};
use indicatif::{ProgressBar, ProgressStyle};
use storage::GroupSync;
use storage::tables::{FjallConfig, FjallEngine};

use crate::cli::exit;
use crate::cli::ledger::ReplayArguments;
use crate::failure::CommandError;
use crate::output;
use crate::signals::StopSignals;
use compare::{Comparison, compare};
use recording::Recording;
use source::RecordedBlocks;

/// How long the peer may commit nothing before the command examines its condition and the next block.
const CHECK_PERIOD: Duration = Duration::from_millis(500);
/// The most links of the peer to the source of the blocks; it uses one at a time.
const LINKS_MAX: usize = 2;
/// Only the user may read the temporary folder.
const SCRATCH_MODE: u32 = 0o700;

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

/// Has a peer commit the recorded blocks, and compares its results with the recorded ones.
async fn replay(dir: &Path) -> Result<Comparison, CommandError> {
    let recording = Recording::open(dir)?;
    let scratch = Scratch::create()?;
    let address = format!("recorded blocks {}", scratch.0.display());
    let acceptor = LinkAcceptor::open(&address, &Parties::anyone(), LINKS_MAX).await;
    let acceptor =
        acceptor.map_err(|error| CommandError::about(dir, format!("the blocks cannot be served: {error}")))?;
    let blocks = Arc::new(RecordedBlocks::open(&recording.folder, recording.blocks.len() as u64)?);
    let _serving = source::serve(&blocks, acceptor);

    let peer = open_peer(&scratch.0, address).await?;
    let channel = peer.join(blocks.genesis()).await.map_err(|error| CommandError::about(&blocks.file(0), error))?;
    follow(&channel, &blocks).await?;
    let comparison = compare(&recording, &channel).await?;
    peer.stop().await.map_err(|error| CommandError::about(&scratch.0, error))?;
    Ok(comparison)
}

/// Opens a peer with empty stores. Its identity is made up, since nobody sees its signatures.
async fn open_peer(scratch: &Path, orderer: String) -> Result<Arc<Peer>, CommandError> {
    let failed = |error: &dyn Display| CommandError::about(scratch, format!("no peer can be opened here: {error}"));
    let terms = CertificateTerms::starting_now(KeyKind::P256);
    let organization = IssuingOrganization::create("ReplayMSP", "replay.example.com", &terms);
    let signer = organization.and_then(|organization| organization.issue(MemberRole::Peer, "peer0"));
    let directory = Directory::open(scratch.join("blocks")).await.map_err(|error| failed(&error))?;
    let tables = FjallEngine::open(&scratch.join("state"), FjallConfig::default()).await;
    let tables = tables.map_err(|error| failed(&error))?;
    let setup = PeerSetup {
        name: "replay".to_owned(),
        signer: signer.map_err(|error| failed(&error))?,
        stores: Arc::new(LocalStores::new("replay", directory, GroupSync::new(), tables)),
        registry: Default::default(),
        definitions: Default::default(),
        members: Arc::default(),
        orderers: vec![orderer].into(),
        settings: Default::default(),
    };
    Peer::open(setup).await.map_err(|error| failed(&error))
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

/// A folder for the peer's blocks and state, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn create() -> Result<Scratch, CommandError> {
        let name = format!("heddle-replay-{}-{:016x}", std::process::id(), rt::random_u64());
        let path = std::env::temp_dir().join(name);
        let made = std::fs::DirBuilder::new().mode(SCRATCH_MODE).create(&path);
        made.map_err(|error| {
            CommandError::about(&path, format!("no folder can be made: {error}; TMPDIR selects another place"))
        })?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If this fails, the files remain in the temporary folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
