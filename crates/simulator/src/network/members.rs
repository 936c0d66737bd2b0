//! The members of the network: organisations, the identities of their nodes and users, and the channel's first block.
//!
//! All keys follow from the seed, so a seed gives the same bytes in every run.

use base::Bytes;
use identity::issue::{CertificateTerms, IssuingOrganization};
use identity::{MemberRole, Signer, sha256};
use ledger::Block;
use ledger::config::{BatchLimits, Capabilities, ConsensusConfig, GenesisSpec, OrganizationSpec};
use prost::Message;

use super::keys;
use crate::scenario::{ORDERERS, Scenario};

/// The one channel.
pub const CHANNEL: &str = "simulated";
/// How many organisations have a peer.
pub const ORGANIZATIONS: usize = 3;

/// The keys of all participants.
pub struct Members {
    /// Block 0 of [`CHANNEL`].
    pub genesis: Block,
    /// One for each orderer there may be.
    pub orderers: Vec<Signer>,
    /// One for each organisation.
    pub peers: Vec<Signer>,
    /// One for each client; they take turns belonging to the organisations.
    pub clients: Vec<Signer>,
    /// An administrator of each organisation.
    pub admins: Vec<Signer>,
    /// An administrator of the orderers' organisation.
    pub orderer_admin: Signer,
    /// A client of an organisation that is no member of the channel.
    pub stranger: Signer,
}

impl Members {
    /// Founds the organisations and the channel. Must be called in the simulation, which provides time and randomness.
    pub fn found(scenario: &Scenario) -> Result<Members, String> {
        let failed = |error: identity::Error| format!("founding the organisations: {error}");
        let seed = sha256([&scenario.seed.to_le_bytes()[..]]);
        let terms = if scenario.signs_p256 {
            CertificateTerms::seeded_with(seed, keys::of_seed)
        } else {
            CertificateTerms::seeded(seed)
        };
        let found = |name: &str| {
            IssuingOrganization::create(format!("{name}MSP"), &format!("{}.example.com", name.to_lowercase()), &terms)
        };
        let organizations: Vec<IssuingOrganization> = (1..=ORGANIZATIONS)
            .map(|number| found(&format!("Org{number}")))
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        let ordering = found("Orderer").map_err(failed)?;
        let stranger = found("Elsewhere").and_then(|org| org.issue(MemberRole::Client, "User1")).map_err(failed)?;
        let peers = organizations.iter().map(|org| org.issue(MemberRole::Peer, "peer0"));
        let clients = (0..scenario.clients)
            .map(|number| organizations[number % ORGANIZATIONS].issue(MemberRole::Client, &format!("User{number}")));
        let admins = organizations.iter().map(|org| org.issue(MemberRole::Admin, "Admin"));
        let orderers = (0..ORDERERS).map(|number| ordering.issue(MemberRole::Orderer, &format!("orderer{number}")));
        let spec = |org: &IssuingOrganization, name: &str| OrganizationSpec {
            name: name.to_owned(),
            msp_id: org.msp_id().to_string(),
            msp: org.definition().encode_to_vec().into(),
            anchor_peers: Vec::new(),
            endpoints: Vec::new(),
        };
        let application = organizations.iter().enumerate();
        let genesis = GenesisSpec {
            channel: CHANNEL.to_owned(),
            application: application.map(|(place, org)| spec(org, &format!("Org{}", place + 1))).collect(),
            orderers: vec![spec(&ordering, "Orderer")],
            endorsement: scenario.endorsement_rule(),
            batch: BatchLimits {
                messages_max: scenario.batch_messages,
                timeout: scenario.batch_timeout,
                ..BatchLimits::default()
            },
            consensus: ConsensusConfig { kind: "solo".to_owned(), metadata: Bytes::new(), maintenance: false },
            capabilities: Capabilities::newest(),
        };
        Ok(Members {
            genesis: genesis.build().map_err(|error| format!("building the channel: {error}"))?,
            orderers: orderers.collect::<Result<_, _>>().map_err(failed)?,
            peers: peers.collect::<Result<_, _>>().map_err(failed)?,
            clients: clients.collect::<Result<_, _>>().map_err(failed)?,
            admins: admins.collect::<Result<_, _>>().map_err(failed)?,
            orderer_admin: ordering.issue(MemberRole::Admin, "Admin").map_err(failed)?,
            stranger,
        })
    }
}
