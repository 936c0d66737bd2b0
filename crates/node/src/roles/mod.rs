//! The roles of a network: what each is made of, how it starts, and how it stops.
//!
//! A network in one process ([`crate::network`]) and processes of their own ([`crate::process`]) are composed of the same
//! roles; only the addresses differ:
//!
//! * [`memory`]: gives sections of its memory to peers, and is passive otherwise.
//! * [`log_memory`]: keeps the log of a group of orderers in its memory, and is passive otherwise.
//! * [`storage`]: blocks and tables of one organisation.
//! * [`compute`]: endorses and commits for one organisation, on memory and storage.
//! * [`orderer`]: puts transactions into blocks.
//! * [`gateway`]: what clients of one organisation talk to.

pub(crate) mod compute;
pub(crate) mod gateway;
pub(crate) mod log_memory;
pub(crate) mod memory;
pub(crate) mod orderer;
pub(crate) mod storage;

use std::path::Path;
use std::sync::Arc;

use ::storage::watermark::WATERMARKS;
use base::rt::disk::Directory;

use crate::network::NodeError;
use crate::process::Ended;

/// Where a process notes how far its channels have come: in its own folder, apart from its data.
async fn watermarks(folder: &Path) -> Result<Directory, NodeError> {
    let path = folder.join(WATERMARKS);
    Directory::open(&path).await.map_err(NodeError::file("creating", &path))
}

/// Why a part of a network has stopped.
fn said(name: &str, failure: Option<Arc<chain::Error>>) -> Ended {
    let cause = failure.as_ref().map_or_else(|| "no cause given".to_owned(), |error| error.to_string());
    let reason = format!("{name} has stopped: {cause}");
    match failure.as_deref() {
        Some(chain::Error::Panicked(_) | chain::Error::Consensus(consensus::Error::Panicked(_))) => {
            Ended::defect(reason)
        }
        _ => Ended::of_surroundings(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_defect_and_a_full_disk_is_none() {
        let panicked = said("peer0", Some(Arc::new(chain::Error::Panicked("it was impossible".to_owned()))));
        assert_eq!(panicked, Ended::defect("peer0 has stopped: a stage panicked: it was impossible".to_owned()));
        let of_engine = said("orderer", Some(Arc::new(consensus::Error::Panicked("a Raft node").into())));
        assert!(of_engine.is_defect, "{of_engine:?}");
        let full = consensus::Error::Journal("no space left on device".to_owned());
        assert!(!said("orderer", Some(Arc::new(full.into()))).is_defect);
        assert!(!said("orderer", None).is_defect);
    }
}
