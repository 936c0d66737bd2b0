//! The two headers of an envelope or a proposal: who sent what kind of message to which channel.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::{Bytes, TxId};
use proto::common::HeaderType;
use proto::protos::TxValidationCode as Code;

use super::{InvalidTransaction, fields_1_2};
use crate::hash::sha256_of;
use crate::wire::{Fields, Span, WireError, set_once};

/// A decoded channel header and signature header. Clones share the bytes.
#[derive(Clone, Debug)]
pub struct TransactionHeader {
    source: Bytes,
    channel_header: Span,
    signature_header: Span,
    kind: i32,
    version: i32,
    timestamp: Option<(i64, i32)>,
    channel: Span,
    tx_id: Span,
    epoch: u64,
    extension: Span,
    tls_cert_hash: Span,
    creator: Span,
    nonce: Span,
}

/// The name that a chaincode goes by in messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChaincodeName<'a> {
    /// Its name, which is also its namespace.
    pub name: &'a str,
    /// Its version; empty where the message names none.
    pub version: &'a str,
}

impl TransactionHeader {
    /// Reads an encoded `Header`, such as the one of a proposal. Its form is not checked; see [`TransactionHeader::check_form`].
    ///
    /// # Errors
    /// `BAD_COMMON_HEADER`.
    pub fn parse(header: &Bytes) -> Result<TransactionHeader, InvalidTransaction> {
        let (channel_header, signature_header) = fields_1_2(header, Span::whole(header))
            .map_err(InvalidTransaction::of(Code::BadCommonHeader, "the header is malformed"))?;
        TransactionHeader::parse_parts(
            header.clone(),
            channel_header.unwrap_or_default(),
            signature_header.unwrap_or_default(),
        )
    }

    /// Reads the channel header and the signature header at two places of `source`.
    pub(super) fn parse_parts(
        source: Bytes,
        channel_header: Span,
        signature_header: Span,
    ) -> Result<TransactionHeader, InvalidTransaction> {
        let mut header = TransactionHeader {
            source,
            channel_header,
            signature_header,
            kind: 0,
            version: 0,
            timestamp: None,
            channel: Span::default(),
            tx_id: Span::default(),
            epoch: 0,
            extension: Span::default(),
            tls_cert_hash: Span::default(),
            creator: Span::default(),
            nonce: Span::default(),
        };
        header
            .parse_channel_header()
            .map_err(InvalidTransaction::of(Code::BadCommonHeader, "the channel header is malformed"))?;
        let (creator, nonce) = fields_1_2(&header.source, Ok(signature_header))
            .map_err(InvalidTransaction::of(Code::BadCommonHeader, "the signature header is malformed"))?;
        header.creator = creator.unwrap_or_default();
        header.nonce = nonce.unwrap_or_default();
        Ok(header)
    }

    fn parse_channel_header(&mut self) -> Result<(), WireError> {
        let source = &self.source;
        let (mut kind, mut version, mut timestamp, mut channel) = (None, None, None, None);
        let (mut tx_id, mut epoch, mut extension, mut tls_cert_hash) = (None, None, None, None);
        let mut fields = Fields::new(source, self.channel_header);
        while let Some(field) = fields.next()? {
            match field.number {
                // A 32-bit integer is the low half of the number on the wire.
                1 => set_once(&mut kind, field.varint()? as i32)?,
                2 => set_once(&mut version, field.varint()? as i32)?,
                3 => set_once(&mut timestamp, parse_timestamp(source, field.span()?)?)?,
                4 => set_once(&mut channel, field.span()?)?,
                5 => set_once(&mut tx_id, field.span()?)?,
                6 => set_once(&mut epoch, field.varint()?)?,
                7 => set_once(&mut extension, field.span()?)?,
                8 => set_once(&mut tls_cert_hash, field.span()?)?,
                _ => {}
            }
        }
        self.kind = kind.unwrap_or_default();
        self.version = version.unwrap_or_default();
        self.timestamp = timestamp;
        self.channel = channel.unwrap_or_default();
        self.tx_id = tx_id.unwrap_or_default();
        self.epoch = epoch.unwrap_or_default();
        self.extension = extension.unwrap_or_default();
        self.tls_cert_hash = tls_cert_hash.unwrap_or_default();
        // Checked here, so that the accessors cannot fail.
        self.channel.text(source)?;
        self.tx_id.text(source)?;
        Ok(())
    }

    /// The `HeaderType` as a plain number, which need not be a known one.
    pub fn kind(&self) -> i32 {
        self.kind
    }

    /// The version of the header; nothing depends on it.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// The creator's clock when it built the message: seconds since 1970 and nanoseconds; as claimed, thus any numbers.
    pub fn timestamp(&self) -> Option<(i64, i32)> {
        self.timestamp
    }

    /// The channel's name; empty where none is named.
    pub fn channel(&self) -> &str {
        self.channel.text(&self.source).expect("checked when the header was parsed")
    }

    /// The transaction id as claimed; see [`TransactionHeader::check_tx_id`].
    pub fn tx_id(&self) -> &str {
        self.tx_id.text(&self.source).expect("checked when the header was parsed")
    }

    /// The transaction id as a name of its own.
    pub fn to_tx_id(&self) -> TxId {
        TxId::from(self.tx_id())
    }

    /// The id under which a ledger finds the transaction: the claimed id, or for a configuration that claims none, as Fabric's
    /// orderers make them, the hash of nonce and creator.
    pub fn indexed_tx_id(&self) -> TxId {
        match self.tx_id() {
            "" if self.kind == HeaderType::Config as i32 && !self.nonce().is_empty() => {
                TxId::from(hex::encode(sha256_of(&[self.nonce(), self.creator_slice()])))
            }
            claimed => TxId::from(claimed),
        }
    }

    /// The epoch; anything but 0 is refused by [`TransactionHeader::check_form`].
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The extension: for chaincode an encoded `ChaincodeHeaderExtension`.
    pub fn extension(&self) -> &[u8] {
        self.extension.of(&self.source)
    }

    /// The hash of the client's TLS certificate; empty where there is none.
    pub fn tls_cert_hash(&self) -> &[u8] {
        self.tls_cert_hash.of(&self.source)
    }

    /// The creator: an encoded `SerializedIdentity`.
    pub fn creator(&self) -> Bytes {
        self.creator.slice(&self.source)
    }

    /// The creator, borrowed.
    pub fn creator_slice(&self) -> &[u8] {
        self.creator.of(&self.source)
    }

    /// The nonce.
    pub fn nonce(&self) -> &[u8] {
        self.nonce.of(&self.source)
    }

    /// The encoded channel header as received, which hashes cover.
    pub fn channel_header(&self) -> &[u8] {
        self.channel_header.of(&self.source)
    }

    /// The encoded signature header as received, which hashes cover.
    pub fn signature_header(&self) -> &[u8] {
        self.signature_header.of(&self.source)
    }

    /// Checks type, epoch, nonce and creator.
    ///
    /// # Errors
    /// `BAD_COMMON_HEADER`.
    pub fn check_form(&self) -> Result<(), InvalidTransaction> {
        const KINDS: [i32; 3] =
            [HeaderType::EndorserTransaction as i32, HeaderType::ConfigUpdate as i32, HeaderType::Config as i32];
        let bad = |reason| Err(InvalidTransaction::new(Code::BadCommonHeader, reason));
        if !KINDS.contains(&self.kind) {
            return bad("the header type is not one of a transaction");
        }
        if self.epoch != 0 {
            return bad("the epoch is not 0");
        }
        if self.nonce.is_empty() {
            return bad("there is no nonce");
        }
        if self.creator.is_empty() {
            return bad("there is no creator");
        }
        Ok(())
    }

    /// Checks that the transaction id is the hexadecimal SHA-256 of nonce and creator.
    ///
    /// # Errors
    /// `BAD_PROPOSAL_TXID`.
    pub fn check_tx_id(&self) -> Result<(), InvalidTransaction> {
        let mut expected = [0; 64];
        hex::encode_to_slice(sha256_of(&[self.nonce(), self.creator_slice()]), &mut expected)
            .expect("32 bytes have 64 digits");
        if self.tx_id.of(&self.source) == expected {
            return Ok(());
        }
        Err(InvalidTransaction::new(Code::BadProposalTxid, "the transaction id is not the hash of nonce and creator"))
    }

    /// Checks that the message is for `channel`.
    ///
    /// # Errors
    /// `TARGET_CHAIN_NOT_FOUND`.
    pub fn check_channel(&self, channel: &str) -> Result<(), InvalidTransaction> {
        if self.channel.of(&self.source) == channel.as_bytes() {
            return Ok(());
        }
        Err(InvalidTransaction::new(Code::TargetChainNotFound, "the transaction is for another channel"))
    }

    /// The chaincode that the extension names; `None` if it names none.
    ///
    /// # Errors
    /// `BAD_HEADER_EXTENSION`.
    pub fn chaincode(&self) -> Result<Option<ChaincodeName<'_>>, InvalidTransaction> {
        let malformed = InvalidTransaction::of(Code::BadHeaderExtension, "the header extension is malformed");
        let (_, id) = fields_1_2(&self.source, Ok(self.extension)).map_err(&malformed)?;
        let Some(id) = id else { return Ok(None) };
        let (name, version) = parse_chaincode_id(&self.source, id).map_err(&malformed)?;
        Ok(Some(ChaincodeName {
            name: name.text(&self.source).map_err(&malformed)?,
            version: version.text(&self.source).map_err(&malformed)?,
        }))
    }
}

fn parse_timestamp(source: &[u8], span: Span) -> Result<(i64, i32), WireError> {
    let (mut seconds, mut nanos) = (None, None);
    let mut fields = Fields::new(source, span);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut seconds, field.varint()? as i64)?,
            2 => set_once(&mut nanos, field.varint()? as i32)?,
            _ => {}
        }
    }
    Ok((seconds.unwrap_or_default(), nanos.unwrap_or_default()))
}

/// The places of name and version in a `ChaincodeID`, all of whose fields are checked to be text.
pub(super) fn parse_chaincode_id(source: &[u8], span: Span) -> Result<(Span, Span), WireError> {
    let (mut path, mut name, mut version) = (None, None, None);
    let mut fields = Fields::new(source, span);
    while let Some(field) = fields.next()? {
        let place = match field.number {
            1 => &mut path,
            2 => &mut name,
            3 => &mut version,
            _ => continue,
        };
        let span = field.span()?;
        span.text(source)?;
        set_once(place, span)?;
    }
    Ok((name.unwrap_or_default(), version.unwrap_or_default()))
}
