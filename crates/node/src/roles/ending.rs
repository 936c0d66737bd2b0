//! Shared by the roles: the reason why a role ends, and the directory of its watermarks.

use std::path::Path;
use std::sync::Arc;

use base::rt::disk::Directory;
use storage::watermark::WATERMARKS;

use crate::network::NodeError;
use crate::process::ProcessEnd;

/// The directory of a process's watermarks: in the process's own folder, apart from its data.
pub(super) async fn watermarks(folder: &Path) -> Result<Directory, NodeError> {
    let path = folder.join(WATERMARKS);
    Directory::open(&path).await.map_err(NodeError::file("creating", &path))
}

/// Why a part of a network has stopped.
pub(super) fn end_reason(name: &str, failure: Option<Arc<chain::Error>>) -> ProcessEnd {
    let cause = failure.as_ref().map_or_else(|| "no cause given".to_owned(), |error| error.to_string());
    let reason = format!("{name} has stopped: {cause}");
    match failure.as_deref() {
        Some(chain::Error::Panicked(_) | chain::Error::Consensus(ordered_log::Error::Panicked(_))) => {
            ProcessEnd::defect(reason)
        }
        _ => ProcessEnd::environment(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_defect_and_a_full_disk_is_none() {
        let panicked = end_reason("peer0", Some(Arc::new(chain::Error::Panicked("it was impossible".to_owned()))));
        assert_eq!(panicked, ProcessEnd::defect("peer0 has stopped: a stage panicked: it was impossible".to_owned()));
        let of_engine = end_reason("orderer", Some(Arc::new(ordered_log::Error::Panicked("a Raft node").into())));
        assert!(of_engine.is_defect, "{of_engine:?}");
        let full = ordered_log::Error::LogStore("no space left on device".to_owned());
        assert!(!end_reason("orderer", Some(Arc::new(full.into()))).is_defect);
        assert!(!end_reason("orderer", None).is_defect);
    }
}
