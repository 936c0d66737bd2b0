//! A transaction as it stands in a block, read in place.
//!
//! An endorser transaction nests a dozen messages. [`Transaction`], [`EndorsedAction`] and [`ActionOutcome`] decode
//! each message once, in the order in which validation needs it. Each keeps a reference to the envelope's bytes, and
//! positions in them. The last column names the validation codes with which a step may fail:
//!
//! | step | call | validation codes |
//! |---|---|---|
//! | 1 | [`Transaction::parse`]: envelope, payload, both headers and their form | 255, 2, 3 |
//! | 2 | the creator's signature over [`Transaction::payload`], by the caller | 4 |
//! | 3 | [`Transaction::check_type`] | 7 |
//! | 4 | [`TransactionHeader::check_tx_id`] | 8 |
//! | 5 | [`Transaction::action`]: the body and the proposal hash | 5 |
//! | 6 | the channel, by [`TransactionHeader::check_channel`]; duplicates of the transaction id, by the caller | 14, 9 |
//! | 7 | [`EndorsedAction::outcome`]: header extension and chaincode action | 19, 21 |
//! | 8 | the read-write set in [`ActionOutcome::results`], by the caller | 22 |
//! | 9 | [`ActionOutcome::check`]: chaincode and event | 255, 25 |
//! | 10 | namespaces, endorsement policies and conflicts, by the caller | 23, 25, 10, 11, 12 |
//!
//! The order is Fabric's, so that a transaction with several faults gets the code that Fabric gives it. The checks are
//! pure functions of the envelope.
//!
//! Left to the caller: every check that needs identities or state.
mod action;
mod header;
mod invalid;
mod parsed;
mod results;

pub use action::{ActionEvent, ActionOutcome, EndorsedAction, Endorsement, proposal_hash};
pub use header::{ChaincodeName, TransactionHeader};
pub use invalid::{InvalidTransaction, code_byte};
pub use parsed::{Transaction, is_exact};
pub use results::{data_of_valid, results_of_valid};

use invalid::fields_1_2;
