//! The work of an SDK: makes proposals, and envelopes from endorsed proposals. It also makes defective ones, which no SDK does.

use base::Bytes;
use base::rt;
use identity::{Signer, hex, sha256};
use prost::Message;
use proto::common::{ChannelHeader, Envelope, Header, HeaderType, Payload, SignatureHeader};
use proto::protos::{
    self, ChaincodeAction, ChaincodeActionPayload, ChaincodeEndorsedAction, ChaincodeHeaderExtension, ChaincodeId,
    ChaincodeInput, ChaincodeInvocationSpec, ChaincodeProposalPayload, ChaincodeSpec, Endorsement,
    ProposalResponsePayload, SignedProposal, TransactionAction,
};

use crate::network::keys;

/// As the SDKs choose it.
const NONCE_BYTES: usize = 24;

/// A proposal, and its parts that the transaction repeats.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// The transaction's id in hexadecimal.
    pub tx_id: String,
    /// An encoded `SignedProposal`.
    pub signed: Bytes,
    contract: String,
    channel_header: Bytes,
    signature_header: Bytes,
    payload: Bytes,
}

/// Ways in which a client breaks its own transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnvelopeDefect {
    /// Nothing is broken.
    Not,
    /// Arguments other than the endorsed ones.
    Arguments,
    /// A transaction id that is not the hash of nonce and creator.
    TransactionId,
    /// An epoch, which no transaction has.
    Epoch,
    /// A bit of the endorsed result.
    Result,
    /// The first endorsement's signature, in one of several ways.
    Endorsement,
    /// A bit of the client's own signature.
    Signature,
}

fn encode(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

fn flipped(bytes: &Bytes) -> Bytes {
    let mut bytes = bytes.to_vec();
    if let Some(byte) = bytes.last_mut() {
        *byte ^= 1;
    }
    bytes.into()
}

/// Breaks a signature: a bit, the encoding, or the range of S; or takes a signature by another key.
fn broken_signature(signature: &Bytes, forged: impl FnOnce() -> Bytes) -> Bytes {
    match rt::random_below(4) {
        0 => flipped(signature),
        1 => signature.slice(..signature.len() - 1),
        2 => keys::with_high_s(signature).unwrap_or_else(|| flipped(signature)),
        _ => forged(),
    }
}

impl Proposal {
    /// Makes and signs a proposal.
    pub fn new(signer: &Signer, channel: &str, contract: &str, args: Vec<Bytes>) -> Proposal {
        let mut nonce = [0; NONCE_BYTES];
        rt::fill_random(&mut nonce);
        let creator = signer.serialized().clone();
        let tx_id = hex::encode(sha256([&nonce[..], &creator[..]]));
        let now = rt::wall_now();
        let chaincode = ChaincodeId { name: contract.to_owned(), ..ChaincodeId::default() };
        let extension = ChaincodeHeaderExtension { chaincode_id: Some(chaincode.clone()), ..Default::default() };
        let channel_header = encode(&ChannelHeader {
            r#type: HeaderType::EndorserTransaction as i32,
            timestamp: Some(prost_types::Timestamp {
                seconds: i64::try_from(now.seconds()).expect("the simulated year is 2025"),
                nanos: i32::try_from(now.subsecond_nanos()).expect("a second has a billion nanoseconds"),
            }),
            channel_id: channel.to_owned(),
            tx_id: tx_id.clone(),
            extension: encode(&extension),
            ..ChannelHeader::default()
        });
        let signature_header = encode(&SignatureHeader { creator, nonce: Bytes::copy_from_slice(&nonce) });
        let spec = ChaincodeSpec {
            chaincode_id: Some(chaincode),
            input: Some(ChaincodeInput { args, ..ChaincodeInput::default() }),
            ..ChaincodeSpec::default()
        };
        let input = encode(&ChaincodeInvocationSpec { chaincode_spec: Some(spec) });
        let payload = encode(&ChaincodeProposalPayload { input, ..ChaincodeProposalPayload::default() });
        let header = Header { channel_header: channel_header.clone(), signature_header: signature_header.clone() };
        let proposal =
            protos::Proposal { header: encode(&header), payload: payload.clone(), ..protos::Proposal::default() };
        let proposal_bytes = encode(&proposal);
        let signature = signer.sign(&proposal_bytes);
        let signed = encode(&SignedProposal { proposal_bytes, signature });
        let contract = contract.to_owned();
        Proposal { tx_id, signed, contract, channel_header, signature_header, payload }
    }

    /// The result that malicious peers would sign for a forged read-write set.
    pub fn forged_result(&self, results: Bytes) -> Bytes {
        let proposal = [&self.channel_header[..], &self.signature_header[..], &self.payload[..]];
        let action = ChaincodeAction {
            results,
            response: Some(protos::Response { status: 200, ..protos::Response::default() }),
            chaincode_id: Some(ChaincodeId {
                name: self.contract.clone(),
                version: "1.0".to_owned(),
                ..ChaincodeId::default()
            }),
            ..ChaincodeAction::default()
        };
        let proposal_hash = Bytes::copy_from_slice(&sha256(proposal));
        encode(&ProposalResponsePayload { proposal_hash, extension: encode(&action) })
    }

    /// Puts an endorsed result into a signed envelope.
    pub fn envelope(
        &self,
        signer: &Signer,
        result: &Bytes,
        endorsements: &[Endorsement],
        spoiled: EnvelopeDefect,
    ) -> Bytes {
        let mut endorsements = endorsements.to_vec();
        let mut result = result.clone();
        let mut payload = self.payload.clone();
        let mut channel_header = self.channel_header.clone();
        match spoiled {
            EnvelopeDefect::Not | EnvelopeDefect::Signature => {}
            EnvelopeDefect::Arguments => payload = flipped(&payload),
            EnvelopeDefect::Result => result = flipped(&result),
            EnvelopeDefect::Endorsement => {
                let first = endorsements.first_mut().expect("a transaction has an endorsement to spoil");
                first.signature = broken_signature(&first.signature, || signer.sign(&result));
            }
            EnvelopeDefect::TransactionId | EnvelopeDefect::Epoch => {
                let mut header = ChannelHeader::decode(channel_header).expect("our own header decodes");
                match spoiled {
                    EnvelopeDefect::Epoch => header.epoch = 1,
                    _ => header.tx_id = hex::encode(sha256([header.tx_id.as_bytes()])),
                }
                channel_header = encode(&header);
            }
        }
        let action = ChaincodeEndorsedAction { proposal_response_payload: result, endorsements };
        let action = ChaincodeActionPayload { chaincode_proposal_payload: payload, action: Some(action) };
        let action = TransactionAction { header: self.signature_header.clone(), payload: encode(&action) };
        let header = Header { channel_header, signature_header: self.signature_header.clone() };
        let payload = Payload { header: Some(header), data: encode(&protos::Transaction { actions: vec![action] }) };
        let payload = encode(&payload);
        let mut signature = signer.sign(&payload);
        if spoiled == EnvelopeDefect::Signature {
            signature = flipped(&signature);
        }
        encode(&Envelope { payload, signature })
    }
}

/// A peer's signature under a result.
pub fn endorse(peer: &Signer, result: &Bytes) -> Endorsement {
    let endorser = peer.serialized().clone();
    let signature = peer.sign(&[&result[..], &endorser[..]].concat());
    Endorsement { endorser, signature }
}

/// The read-write set in a result.
pub fn read_write_set(result: &Bytes) -> Option<proto::rwset::TxReadWriteSet> {
    let payload = ProposalResponsePayload::decode(result.clone()).ok()?;
    let action = ChaincodeAction::decode(payload.extension).ok()?;
    proto::rwset::TxReadWriteSet::decode(action.results).ok()
}

/// The contract's answer in the result that endorsers have signed.
pub fn response_payload(result: &Bytes) -> Option<Bytes> {
    let payload = ProposalResponsePayload::decode(result.clone()).ok()?;
    Some(ChaincodeAction::decode(payload.extension).ok()?.response?.payload)
}

/// The transaction id that an envelope claims; empty if it claims none.
pub fn claimed_id(envelope: &Bytes) -> String {
    let header = |envelope: &Bytes| {
        let payload = Payload::decode(Envelope::decode(envelope.clone()).ok()?.payload).ok()?;
        ChannelHeader::decode(payload.header?.channel_header).ok()
    };
    header(envelope).map(|header| header.tx_id).unwrap_or_default()
}

/// The read-write set of an envelope's transaction, if it can be read.
pub fn read_write_set_of(envelope: &Bytes) -> Option<proto::rwset::TxReadWriteSet> {
    let payload = Payload::decode(Envelope::decode(envelope.clone()).ok()?.payload).ok()?;
    let transaction = protos::Transaction::decode(payload.data).ok()?;
    let action = ChaincodeActionPayload::decode(transaction.actions.into_iter().next()?.payload).ok()?;
    read_write_set(&action.action?.proposal_response_payload)
}
