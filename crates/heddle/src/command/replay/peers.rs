//! The peers that commit the recorded blocks, each with empty stores in a separate folder.

use std::fmt::Display;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::rt;
use base::rt::disk::Directory;
use chain::{LocalMember, LocalStores, Peer, PeerSetup};
use identity::issue::{CertificateTerms, IssuingOrganization};
use identity::{KeyKind, MemberRole, Signer};
use private_data::MemberPeers;
use storage::GroupSync;
use storage::tables::{FjallConfig, FjallEngine};

use crate::failure::CommandError;

/// Only the user may read the temporary folder.
const SCRATCH_MODE: u32 = 0o700;

/// The identity of a peer of which nothing was recorded.
pub fn made_up_signer() -> Result<Signer, CommandError> {
    let terms = CertificateTerms::starting_now(KeyKind::P256);
    let organization = IssuingOrganization::create("ReplayMSP", "replay.example.com", &terms);
    let signer = organization.and_then(|organization| organization.issue(MemberRole::Peer, "peer0"));
    signer.map_err(|error| CommandError::new(format!("no identity can be made for a peer: {error}")))
}

/// Opens a peer with each of these identities. They exchange private data, and get their blocks from `orderer`.
pub async fn open(scratch: &Scratch, signers: &[Signer], orderer: &str) -> Result<Vec<Arc<Peer>>, CommandError> {
    let members: Vec<Arc<MemberPeers>> = signers.iter().map(|_| Arc::default()).collect();
    let mut peers = Vec::new();
    for (index, (signer, members)) in signers.iter().zip(&members).enumerate() {
        peers.push(open_peer(&scratch.0.join(format!("peer{index}")), signer, members, orderer).await?);
    }
    for (members, own) in members.iter().zip(signers) {
        for peer in peers.iter().filter(|peer| peer.signer().msp_id() != own.msp_id()) {
            let other = peer.signer().msp_id().clone();
            members.add(Arc::new(LocalMember::new(own.msp_id().clone(), other, std::slice::from_ref(peer))));
        }
    }
    Ok(peers)
}

async fn open_peer(
    folder: &Path,
    signer: &Signer,
    members: &Arc<MemberPeers>,
    orderer: &str,
) -> Result<Arc<Peer>, CommandError> {
    let failed = |error: &dyn Display| CommandError::about(folder, format!("no peer can be opened here: {error}"));
    std::fs::DirBuilder::new().mode(SCRATCH_MODE).create(folder).map_err(|error| failed(&error))?;
    let directory = Directory::open(folder.join("blocks")).await.map_err(|error| failed(&error))?;
    let tables = FjallEngine::open(&folder.join("state"), FjallConfig::default()).await;
    let tables = tables.map_err(|error| failed(&error))?;
    let setup = PeerSetup {
        name: "replay".to_owned(),
        signer: signer.clone(),
        stores: Arc::new(LocalStores::new("replay", directory, GroupSync::new(), tables)),
        registry: Default::default(),
        definitions: Default::default(),
        members: members.clone(),
        orderers: vec![orderer.to_owned()].into(),
        settings: Default::default(),
    };
    Peer::open(setup).await.map_err(|error| failed(&error))
}

/// A folder for the peers' blocks and states, removed when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn create() -> Result<Scratch, CommandError> {
        let name = format!("heddle-replay-{}-{:016x}", std::process::id(), rt::random_u64());
        let path = std::env::temp_dir().join(name);
        let made = std::fs::DirBuilder::new().mode(SCRATCH_MODE).create(&path);
        made.map_err(|error| {
            CommandError::about(&path, format!("no folder can be made: {error}; TMPDIR selects another place"))
        })?;
        Ok(Scratch(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If this fails, the files remain in the temporary folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
