//! Reads the answers of Fabric's peers to proposals that were never ordered, and the peers' identities.
//!
//! `heddle ledger replay --help` describes the files. A recording may lack them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base::Bytes;
use identity::{Signer, hex};
use prost::Message as _;
use proto::protos::ProposalResponse;
use serde_json::Value;

use super::recording::{read_json, text};
use crate::failure::CommandError;

/// The answers that Fabric's peers gave at the height of the recorded state.
#[derive(Default)]
pub struct RecordedAnswers {
    pub answers: Vec<RecordedAnswer>,
    /// Who signs the answers of each peer, by the peer's name.
    pub signers: BTreeMap<String, Signer>,
}

/// One peer's answer to one proposal.
pub struct RecordedAnswer {
    pub label: String,
    /// The name of the peer, which is the common name of its certificate.
    pub peer: String,
    /// An encoded `SignedProposal`.
    pub signed_proposal: Bytes,
    pub content: RecordedContent,
}

/// As much of an answer as was recorded.
pub enum RecordedContent {
    Whole(Box<ProposalResponse>),
    /// Parts of a successful answer that was too long to be recorded.
    Parts {
        status: i32,
        message: String,
        proposal_hash: Bytes,
        /// The encoded read-write set.
        results: Bytes,
        /// The length of the encoded `ProposalResponse`.
        response_bytes: usize,
    },
}

impl RecordedAnswers {
    /// Reads the answers and the identities of the peers that gave them; nothing if the recording has no answers.
    pub fn open(dir: &Path) -> Result<RecordedAnswers, CommandError> {
        let path = dir.join("proposals.json");
        match path.try_exists() {
            Ok(true) => {}
            Ok(false) => return Ok(RecordedAnswers::default()),
            Err(error) => return Err(CommandError::about(&path, error)),
        }
        let answers = read_json(&path, expected_answers)?;
        let identities = dir.join("identities");
        let signers = peers(&identities)?;
        if let Some(missing) = answers.iter().find(|answer| !signers.contains_key(&answer.peer)) {
            let reason = format!("there is no MSP/peer*.crt.pem of {}, which gave answers", missing.peer);
            return Err(CommandError::about(&identities, reason));
        }
        Ok(RecordedAnswers { answers, signers })
    }
}

fn expected_answers(value: &Value) -> Result<Vec<RecordedAnswer>, String> {
    let answers = value.as_array().ok_or("the file must be a list")?;
    answers.iter().enumerate().map(|(index, answer)| expected_answer(answer, &format!("[{index}]."))).collect()
}

fn expected_answer(answer: &Value, place: &str) -> Result<RecordedAnswer, String> {
    let content = if answer["response_hex"].is_null() {
        let number = |field: &str| answer[field].as_u64().ok_or_else(|| format!("{place}{field} must be a number"));
        RecordedContent::Parts {
            status: i32::try_from(number("status")?).map_err(|_| format!("{place}status is too large"))?,
            message: text(answer, "message", place)?.to_owned(),
            proposal_hash: bytes(answer, "proposal_hash", place)?,
            results: bytes(answer, "rwset_hex", place)?,
            response_bytes: usize::try_from(number("response_bytes")?).unwrap_or(usize::MAX),
        }
    } else {
        let response = ProposalResponse::decode(bytes(answer, "response_hex", place)?);
        RecordedContent::Whole(Box::new(response.map_err(|error| format!("{place}response_hex: {error}"))?))
    };
    Ok(RecordedAnswer {
        label: text(answer, "label", place)?.to_owned(),
        peer: text(answer, "peer", place)?.to_owned(),
        signed_proposal: bytes(answer, "signed_proposal_hex", place)?,
        content,
    })
}

fn bytes(value: &Value, field: &str, place: &str) -> Result<Bytes, String> {
    let decoded = hex::decode(text(value, field, place)?);
    decoded.map(Bytes::from).map_err(|error| format!("{place}{field} must be in hexadecimal: {error}"))
}

/// The identities of all peers: `MSP/peerN.crt.pem` and `MSP/peerN.key.pem`.
fn peers(folder: &Path) -> Result<BTreeMap<String, Signer>, CommandError> {
    let mut signers = BTreeMap::new();
    for organization in entries(folder)? {
        let msp = organization.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        for certificate in entries(&organization)? {
            let name = certificate.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some(name) = name.strip_suffix(".crt.pem") else { continue };
            // The TLS identities are named `peerN.tls`.
            if !name.starts_with("peer") || name.contains('.') {
                continue;
            }
            let key = organization.join(format!("{name}.key.pem"));
            let read = |path: &Path| std::fs::read(path).map_err(|error| CommandError::about(path, error));
            let signer = Signer::from_pem(msp.as_str(), &read(&certificate)?, &read(&key)?);
            let signer = signer.map_err(|error| CommandError::about(&certificate, error))?;
            signers.insert(signer.certificate().common_name().to_owned(), signer);
        }
    }
    Ok(signers)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, CommandError> {
    let unreadable = |error: std::io::Error| CommandError::about(folder, error);
    let entries = std::fs::read_dir(folder).map_err(unreadable)?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(unreadable)?.path());
    }
    paths.sort();
    Ok(paths)
}
