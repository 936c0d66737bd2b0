//! What a peer states about itself, signed: the messages in which Fabric's peers present themselves to one another, and which
//! discovery hands to clients.
//!
//! 1. The *alive message* has the peer's identity and the address for its clients.
//! 2. The *state info* of a channel has the peer's height and the contracts that it can run.
//!
//! The peer signs both ([`PeerStatement`]). A gateway that passes them on checks them first ([`PeerDescription::read`]), because
//! the peer may belong to another organisation.

use bytes::Bytes;
use prost::Message as _;
use proto::discovery::Peer;
use proto::gossip::gossip_message::{Content, Tag};
use proto::gossip::{AliveMessage, Chaincode, Envelope, GossipMessage, Member, PeerTime, Properties, StateInfo};

use crate::digest::{Hash, sha256};
use crate::error::Error;
use crate::identity::Identity;
use crate::manager::MspManager;
use crate::signer::Signer;

/// The largest description of a peer that is read, in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 1 << 20;
/// The longest address in bytes: a host's name and a port.
const ADDRESS_BYTES_MAX: usize = 255 + 6;
/// Contracts of one peer in one channel.
const CONTRACTS_MAX: usize = 4096;

/// A contract that a peer can run.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RunnableContract {
    /// Its name.
    pub name: String,
    /// The sequence of the definition under which it runs.
    pub sequence: i64,
}

/// What a peer is about to state.
pub struct PeerStatement<'a> {
    /// The peer.
    pub signer: &'a Signer,
    /// The address for its clients: `host:port`.
    pub address: &'a str,
    /// When it started, in nanoseconds since 1970.
    pub started_ns: u64,
    /// Grows with each statement.
    pub sequence: u64,
}

impl PeerStatement<'_> {
    /// States who and where the peer is.
    pub fn alive(&self) -> Peer {
        let alive = AliveMessage {
            membership: Some(Member {
                endpoint: self.address.to_owned(),
                metadata: Bytes::new(),
                pki_id: Bytes::copy_from_slice(&self.pki_id()),
            }),
            timestamp: Some(self.time()),
            identity: self.signer.serialized().clone(),
        };
        Peer {
            identity: self.signer.serialized().clone(),
            membership_info: Some(self.sign(Tag::Empty, Content::AliveMsg(alive))),
            state_info: None,
        }
    }

    /// As [`PeerStatement::alive`], with the peer's state in a channel.
    pub fn in_channel(&self, channel: &str, height: u64, contracts: Vec<RunnableContract>) -> Peer {
        let pki_id = self.pki_id();
        let contract = |contract: RunnableContract| Chaincode {
            name: contract.name,
            version: contract.sequence.to_string(),
            metadata: Bytes::new(),
        };
        let state = StateInfo {
            timestamp: Some(self.time()),
            pki_id: Bytes::copy_from_slice(&pki_id),
            channel_mac: Bytes::copy_from_slice(&channel_mac(&pki_id, channel)),
            properties: Some(Properties {
                ledger_height: height,
                left_channel: false,
                chaincodes: contracts.into_iter().map(contract).collect(),
            }),
        };
        Peer { state_info: Some(self.sign(Tag::ChanOrOrg, Content::StateInfo(state))), ..self.alive() }
    }

    fn pki_id(&self) -> Hash {
        sha256([self.signer.msp_id().as_str().as_bytes(), &self.signer.certificate_pem()[..]])
    }

    fn time(&self) -> PeerTime {
        PeerTime { inc_num: self.started_ns, seq_num: self.sequence }
    }

    fn sign(&self, tag: Tag, content: Content) -> Envelope {
        let message = GossipMessage { tag: tag.into(), content: Some(content), ..GossipMessage::default() };
        let payload: Bytes = message.encode_to_vec().into();
        Envelope { signature: self.signer.sign(&payload), payload }
    }
}

fn channel_mac(pki_id: &[u8], channel: &str) -> Hash {
    sha256([pki_id, channel.as_bytes()])
}

/// What a peer has stated, after all of it was checked.
#[derive(Clone, Debug)]
pub struct PeerDescription {
    /// The messages as the peer signed them.
    pub peer: Peer,
    /// Who the peer is.
    pub identity: std::sync::Arc<Identity>,
    /// The contracts that it can run; empty outside of a channel.
    pub contracts: Vec<RunnableContract>,
}

impl PeerDescription {
    /// Checks what a peer has stated: that it is a member of the channel, has signed the messages, and speaks of itself and of
    /// the channel. An empty name of a channel stands for none.
    ///
    /// # Errors
    /// [`Error::MalformedIdentity`] and those of an identity and its signature.
    pub fn read(peer: Peer, channel: &str, members: &MspManager) -> Result<PeerDescription, Error> {
        let wrong = |what| Error::MalformedIdentity(what);
        if peer.encoded_len() > DESCRIPTION_BYTES_MAX {
            return Err(wrong("the description of a peer is too long"));
        }
        let identity = members.identify(&peer.identity)?;
        let Some(Content::AliveMsg(alive)) = open(peer.membership_info.as_ref(), &identity)? else {
            return Err(wrong("a peer's membership is no alive message"));
        };
        let member = alive.membership.filter(|_| alive.timestamp.is_some() && alive.identity == peer.identity);
        let member = member.ok_or(wrong("an alive message lacks a part, or is another peer's"))?;
        if member.endpoint.len() > ADDRESS_BYTES_MAX {
            return Err(wrong("the address of a peer is too long"));
        }
        let mut contracts = Vec::new();
        if !channel.is_empty() {
            let Some(Content::StateInfo(state)) = open(peer.state_info.as_ref(), &identity)? else {
                return Err(wrong("a peer's state is no state info"));
            };
            if state.timestamp.is_none()
                || state.pki_id != member.pki_id
                || state.channel_mac[..] != channel_mac(&member.pki_id, channel)
            {
                return Err(wrong("the state info lacks its time, or is that of another peer or channel"));
            }
            let properties = state.properties.ok_or(wrong("the state info has no properties"))?;
            if properties.chaincodes.len() > CONTRACTS_MAX {
                return Err(wrong("a peer names too many contracts"));
            }
            // A contract with another version than a number is none that a definition can name.
            let contract = |contract: Chaincode| {
                Some(RunnableContract { sequence: contract.version.parse().ok()?, name: contract.name })
            };
            contracts.extend(properties.chaincodes.into_iter().filter_map(contract));
            contracts.sort_unstable();
        }
        Ok(PeerDescription { peer, identity, contracts })
    }

    /// Whether the peer can run a contract under the definition of this sequence.
    pub fn runs(&self, contract: &str, sequence: i64) -> bool {
        self.contracts.iter().any(|runs| runs.name == contract && runs.sequence == sequence)
    }
}

/// The content of a message that an identity has signed.
fn open(envelope: Option<&Envelope>, signer: &Identity) -> Result<Option<Content>, Error> {
    let envelope = envelope.ok_or(Error::MalformedIdentity("a description lacks a message"))?;
    signer.verify(&envelope.payload, &envelope.signature)?;
    let message = GossipMessage::decode(envelope.payload.clone());
    Ok(message.map_err(|_| Error::MalformedIdentity("a peer's message cannot be decoded"))?.content)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::issue::{CertificateTerms, IssuingOrganization};
    use crate::principal::MemberRole;

    fn organization(number: u8) -> IssuingOrganization {
        let terms = CertificateTerms::seeded([number; 32]);
        IssuingOrganization::create(format!("Org{number}MSP"), &format!("org{number}.example.com"), &terms)
            .expect("an organisation")
    }

    fn describe(signer: &Signer, channel: &str) -> Peer {
        let statement = PeerStatement { signer, address: "peer0.org1.example.com:7051", started_ns: 5, sequence: 6 };
        statement.in_channel(channel, 9, vec![RunnableContract { name: "assets".to_owned(), sequence: 2 }])
    }

    #[test]
    fn a_description_is_read_as_it_was_signed() {
        let org = organization(1);
        let members = MspManager::new([Arc::new(org.membership().expect("a membership"))]);
        let signer = org.issue(MemberRole::Peer, "peer0").expect("a peer");
        let read = PeerDescription::read(describe(&signer, "trade"), "trade", &members).expect("it is sound");
        assert_eq!(read.identity.msp_id().as_str(), "Org1MSP");
        assert!(read.runs("assets", 2) && !read.runs("assets", 1) && !read.runs("other", 2));
        let alive = PeerStatement { signer: &signer, address: "host:1", started_ns: 1, sequence: 1 }.alive();
        PeerDescription::read(alive.clone(), "", &members).expect("no channel, no state");
        PeerDescription::read(alive, "trade", &members).expect_err("a channel needs a state");
    }

    #[test]
    fn a_description_of_another_peer_or_channel_is_refused() {
        let (one, two) = (organization(1), organization(2));
        let members = [&one, &two].map(|org| Arc::new(org.membership().expect("a membership")));
        let members = MspManager::new(members);
        let [signer, other] = [&one, &two].map(|org| org.issue(MemberRole::Peer, "peer0").expect("a peer"));
        let (honest, stolen) = (describe(&signer, "trade"), describe(&other, "trade"));
        let refused = |peer: Peer| PeerDescription::read(peer, "trade", &members).expect_err("it is not sound");
        refused(describe(&signer, "other"));
        // The identity of one with the messages of the other.
        refused(Peer { identity: stolen.identity.clone(), ..honest.clone() });
        refused(Peer { membership_info: stolen.membership_info.clone(), ..honest.clone() });
        refused(Peer { state_info: stolen.state_info.clone(), ..honest.clone() });
        let mut altered = honest.clone();
        if let Some(envelope) = &mut altered.state_info {
            envelope.signature = signer.sign(b"something else");
        }
        refused(altered);
        // An alive message of the peer itself in the place of the state info.
        refused(Peer { state_info: honest.membership_info.clone(), ..honest.clone() });
        refused(Peer { state_info: None, membership_info: None, ..honest });
        let stranger = organization(3).issue(MemberRole::Peer, "peer0").expect("a peer");
        refused(describe(&stranger, "trade"));
    }
}
