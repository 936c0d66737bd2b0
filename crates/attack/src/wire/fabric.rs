//! Fabric's messages, signed: proposals, transactions, requests for blocks.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use aws_lc_rs::digest;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};

use super::grpc::GrpcChannel;
use super::protobuf::{ProtobufMessage, field, number};
use super::random;

/// A member with its signing key.
#[derive(Clone)]
pub struct FabricUser {
    key: Arc<EcdsaKeyPair>,
    /// `msp.SerializedIdentity`.
    pub serialized: Vec<u8>,
}

const ENDORSER_TRANSACTION: u64 = 3;
const DELIVER_SEEK_INFO: u64 = 5;
const NODE: u64 = 3;

impl FabricUser {
    /// Reads a folder `msp`.
    ///
    /// # Errors
    /// The certificate or the key does not exist.
    pub fn read(msp_id: &str, msp: &Path) -> io::Result<FabricUser> {
        let certificates = std::fs::read_dir(msp.join("signcerts"))?;
        let certificate = certificates.into_iter().next().ok_or(io::ErrorKind::NotFound)??;
        let certificate = std::fs::read(certificate.path())?;
        let key = pem::parse(std::fs::read(msp.join("keystore/priv_sk"))?).map_err(io::Error::other)?;
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.contents());
        let serialized = ProtobufMessage::new().bytes(1, msp_id).bytes(2, &certificate).done();
        Ok(FabricUser { key: Arc::new(key.map_err(io::Error::other)?), serialized })
    }

    /// The same user with another encoding of the certificate: its last line is broken at another place.
    pub fn written_otherwise(&self, variant: u64) -> FabricUser {
        let mut serialized = self.serialized.clone();
        // An unknown field, with a different value each time.
        serialized.extend(ProtobufMessage::new().number(15, variant).done());
        FabricUser { key: Arc::clone(&self.key), serialized }
    }

    /// A signature with the lower of the two possible `s`, as Fabric requires.
    ///
    /// # Panics
    /// If the system has no random bytes.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        let signature = self.key.sign(&SystemRandom::new(), message).expect("the system has random bytes");
        let (r, s) = signature.as_ref().split_at(32);
        let mut s: [u8; 32] = s.try_into().expect("half of 64 bytes");
        if s > HALF_ORDER {
            s = subtract(&ORDER, &s);
        }
        let (r, s) = (der_integer(r), der_integer(&s));
        [&[0x30, (r.len() + s.len()) as u8], &r[..], &s].concat()
    }

    fn signature_header(&self) -> (Vec<u8>, String) {
        let nonce: [u8; 24] = random();
        let id = digest::digest(&digest::SHA256, &[&nonce[..], &self.serialized].concat());
        (ProtobufMessage::new().bytes(1, &self.serialized).bytes(2, nonce).done(), hex::encode(id))
    }

    /// A proposal and its transaction's id.
    pub fn proposal(&self, channel: &str, contract: &str, args: &[&str]) -> Proposal {
        let args = args.iter().fold(ProtobufMessage::new(), |input, arg| input.bytes(1, arg));
        let (header, tx_id) = self.proposal_header(channel, contract);
        let payload = ProtobufMessage::new().bytes(1, invocation(contract, args.as_ref()));
        let proposal = ProtobufMessage::new().bytes(1, header).bytes(2, payload).done();
        let signature = self.sign(&proposal);
        Proposal {
            tx_id,
            channel: channel.to_owned(),
            signed: ProtobufMessage::new().bytes(1, proposal).bytes(2, signature).done(),
        }
    }

    /// The header of a proposal, and its transaction's id.
    pub fn proposal_header(&self, channel: &str, contract: &str) -> (Vec<u8>, String) {
        let (signature_header, tx_id) = self.signature_header();
        let extension = ProtobufMessage::new().bytes(2, ProtobufMessage::new().bytes(2, contract));
        let channel_header = channel_header(ENDORSER_TRANSACTION, channel).bytes(5, &tx_id).bytes(7, extension);
        (ProtobufMessage::new().bytes(1, channel_header).bytes(2, signature_header).done(), tx_id)
    }

    /// A signed request for the blocks from `start` on, without end.
    pub fn seek(&self, channel: &str, start: SeekStart) -> Vec<u8> {
        let position = match start {
            SeekStart::Newest => ProtobufMessage::new().bytes(1, ""),
            SeekStart::Block(number) => ProtobufMessage::new().bytes(3, ProtobufMessage::new().number(1, number)),
        };
        let last = ProtobufMessage::new().bytes(3, ProtobufMessage::new().number(1, u64::MAX));
        let seek = ProtobufMessage::new().bytes(1, position).bytes(2, last);
        let header = ProtobufMessage::new()
            .bytes(1, channel_header(DELIVER_SEEK_INFO, channel))
            .bytes(2, self.signature_header().0);
        let payload = ProtobufMessage::new().bytes(1, header).bytes(2, seek).done();
        let signature = self.sign(&payload);
        ProtobufMessage::new().bytes(1, payload).bytes(2, signature).done()
    }
}

/// Where blocks begin.
#[derive(Clone, Copy)]
pub enum SeekStart {
    Newest,
    Block(u64),
}

/// A signed proposal.
#[derive(Clone)]
pub struct Proposal {
    pub tx_id: String,
    channel: String,
    pub signed: Vec<u8>,
}

impl Proposal {
    fn request(&self) -> Vec<u8> {
        ProtobufMessage::new().bytes(1, &self.tx_id).bytes(2, &self.channel).bytes(3, &self.signed).done()
    }

    /// Runs it on a gateway.
    ///
    /// # Errors
    /// Those of the gateway.
    pub async fn evaluate(&self, gateway: &GrpcChannel) -> io::Result<Vec<u8>> {
        let answer = gateway.call_ok("/gateway.Gateway/Evaluate", &self.request()).await?;
        let result = field(&answer, 1).unwrap_or_default();
        Ok(field(result, 3).unwrap_or_default().to_vec())
    }

    /// Endorses, submits and waits for the commit; returns the validation code, 0 for valid.
    ///
    /// # Errors
    /// Those of the gateway.
    pub async fn commit(&self, gateway: &GrpcChannel, user: &FabricUser) -> io::Result<u64> {
        let answer = gateway.call_ok("/gateway.Gateway/Endorse", &self.request()).await?;
        let payload = field(&answer, 1).and_then(|envelope| field(envelope, 1)).unwrap_or_default();
        let envelope = ProtobufMessage::new().bytes(1, payload).bytes(2, user.sign(payload));
        let submit = ProtobufMessage::new().bytes(1, &self.tx_id).bytes(2, &self.channel).bytes(3, envelope).done();
        gateway.call_ok("/gateway.Gateway/Submit", &submit).await?;
        let request =
            ProtobufMessage::new().bytes(1, &self.tx_id).bytes(2, &self.channel).bytes(3, &user.serialized).done();
        let signed = ProtobufMessage::new().bytes(1, &request).bytes(2, user.sign(&request)).done();
        let answer = gateway.call_ok("/gateway.Gateway/CommitStatus", &signed).await?;
        Ok(number(&answer, 1))
    }
}

/// The invocation of a contract with these fields of `ChaincodeInput`.
pub fn invocation(contract: &str, input: &[u8]) -> Vec<u8> {
    let spec =
        ProtobufMessage::new().number(1, NODE).bytes(2, ProtobufMessage::new().bytes(2, contract)).bytes(3, input);
    ProtobufMessage::new().bytes(1, spec).done()
}

fn channel_header(kind: u64, channel: &str) -> ProtobufMessage {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = ProtobufMessage::new().number(1, now.as_secs()).number(2, u64::from(now.subsec_nanos()));
    ProtobufMessage::new().number(1, kind).bytes(3, now).bytes(4, channel)
}

/// The order of P-256, and half of it.
const ORDER: [u8; 32] = [
    0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xbc, 0xe6, 0xfa, 0xad, 0xa7,
    0x17, 0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63, 0x25, 0x51,
];
const HALF_ORDER: [u8; 32] = [
    0x7f, 0xff, 0xff, 0xff, 0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xde, 0x73, 0x7d, 0x56,
    0xd3, 0x8b, 0xcf, 0x42, 0x79, 0xdc, 0xe5, 0x61, 0x7e, 0x31, 0x92, 0xa8,
];

fn subtract(minuend: &[u8; 32], subtrahend: &[u8; 32]) -> [u8; 32] {
    let (mut result, mut borrow) = ([0; 32], 0);
    for place in (0..32).rev() {
        let digit = i16::from(minuend[place]) - i16::from(subtrahend[place]) - borrow;
        borrow = i16::from(digit < 0);
        result[place] = digit.rem_euclid(256) as u8;
    }
    result
}

fn der_integer(bytes: &[u8]) -> Vec<u8> {
    let bytes = &bytes[bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len() - 1)..];
    let sign: &[u8] = if bytes[0] >= 0x80 { &[0] } else { &[] };
    [&[2, (bytes.len() + sign.len()) as u8], sign, bytes].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_order_is_half_of_the_order() {
        let twice = subtract(&ORDER, &HALF_ORDER);
        assert!(twice > HALF_ORDER, "the order is odd");
        assert_eq!(subtract(&twice, &HALF_ORDER)[31], 1);
    }

    #[test]
    fn integers_are_as_short_as_der_wants_them() {
        assert_eq!(der_integer(&[0, 0, 5]), [2, 1, 5]);
        assert_eq!(der_integer(&[0x80]), [2, 2, 0, 0x80]);
        assert_eq!(der_integer(&[0]), [2, 1, 0]);
    }
}
