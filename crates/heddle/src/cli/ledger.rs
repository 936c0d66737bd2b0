//! `heddle ledger`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::DirectoryArguments;

#[derive(Subcommand, Debug)]
pub enum LedgerCommand {
    Verify(VerifyArguments),
    Show(ShowArguments),
    Replay(ReplayArguments),
}

/// Check the ledgers of a stopped network from the first block to the last
///
/// For each peer: checks that every block follows its predecessor, that its hashes, the orderer's signature and the
/// commit hash are right, and that the stored state is the result of the blocks' valid transactions. Between peers:
/// checks that they hold the same blocks and the same state.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle down && heddle ledger verify
  heddle ledger verify --peer org1   only that organisation's peer

Ends with exit code 3 and the number of the first damaged block if anything is wrong."
)]
pub struct VerifyArguments {
    #[command(flatten)]
    pub directory: DirectoryArguments,
    /// Check this organisation's peer only, such as org1
    #[arg(long, value_name = "ORG")]
    pub peer: Option<String>,
}

/// Show a block or a transaction, or the newest blocks
///
/// Asks a running network through its gateway, and reads the directory of a stopped one.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle ledger show                 the newest blocks, a line each
  heddle ledger show --block 7
  heddle ledger show --tx 3f2a… --json"
)]
pub struct ShowArguments {
    #[command(flatten)]
    pub directory: DirectoryArguments,
    /// Ask this organisation's peer, such as org2
    #[arg(long, value_name = "ORG", default_value = "org1")]
    pub peer: String,
    /// The block with this number
    #[arg(long, value_name = "NUMBER", conflicts_with = "tx")]
    pub block: Option<u64>,
    /// The transaction with this id
    #[arg(long, value_name = "ID")]
    pub tx: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Validate a channel recorded from Fabric's peers, and compare the results
///
/// A new peer receives the recorded blocks as if from an orderer: it verifies hashes and signatures, validates every
/// transaction and computes the state. No network is needed. DIR holds:
///   blocks/0000.block, blocks/0001.block, …   each a common.Block, as one of Fabric's peers delivered it
///   expected.json   {"blocks": [BLOCK, …]}, with a BLOCK for each file, in order:
///                     {"number": 1, "commit_hash": HEX, "transactions": [{"code": 0, "label": TEXT}, …]}
///                     the genesis block needs no commit_hash, and no transaction needs a label
///   state.json      {"public": [NAMESPACE, …], "private_hashes": [NAMESPACE, …]} after the last block; a NAMESPACE is
///                     {"namespace_raw": NAME, "entries": [{"key_hex": HEX, "value_sha256": HEX,
///                      "metadata_hex": HEX, "version": [BLOCK, TRANSACTION]}, …]}
///                     a collection's NAME is CONTRACT$$hCOLLECTION, and its keys are hashes of the private keys
/// DIR may also hold the answers of Fabric's peers to proposals on the state after the last block. Then there is a new
/// peer for each of those, and its answers are compared: status, message, read-write set, event, everything endorsed:
///   proposals.json  [ANSWER, …]; an ANSWER is
///                     {"label": TEXT, "peer": NAME, "signed_proposal_hex": HEX, "response_hex": HEX}
///                     NAME is the common name of the peer's certificate. Of a response that is too long there may be,
///                     instead of response_hex, its "status", "message", "proposal_hash", "rwset_hex", "response_bytes"
///   identities/MSP/peerN.crt.pem, identities/MSP/peerN.key.pem   the peers that answered
///   private-live-ORG.json, private-final-ORG.json   the private data that the peer peerN.ORG.… had:
///                     [{"block": 1, "transactions": {"0": [{"namespace": CONTRACT, "collection": COLLECTION,
///                      "rwset_hex": HEX}, …]}}, …]
/// The answers are those of the test contract of the recorded channel, under whatever names its ledger defines it.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle ledger replay crates/ledger/tests/fabric-channel    the channel that is in the sources
  heddle ledger replay recorded --json replay.json

Prints the first differences, and the shares of equal validation codes, commit hashes, state entries and answers.
Block 0 has no validation to compare, so its transaction is not counted. Signatures are verified instead of compared,
and the entries of a map may have another order. Ends with exit code 3 if anything differs. Each peer keeps a copy of
the blocks in a temporary folder (TMPDIR) until the command ends."
)]
pub struct ReplayArguments {
    /// The directory with the recorded channel
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Write the number of blocks, transactions and answers, the shares, and the answers that differ, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}
