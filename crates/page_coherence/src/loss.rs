//! What a caller knows after it has lost its executor.

use base::ErrorKind;

use crate::page::{CallId, PageNumber};
use crate::run_map::RunMap;

/// The state of memory after the executor or the connection was lost. Pool memory itself is still there; if it is lost as
/// well, memory is lost, and the process must stop (section 3.2).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loss {
    /// The calls that were open. Each has run wholly, in part or not at all.
    pub calls: Vec<CallId>,
    /// Resident pages whose newest contents are certainly in the caller's copy, whole.
    pub good: RunMap<()>,
    /// Pages of which the caller had a copy that is certainly older than what the executor had. It has no right to them any more.
    pub old: RunMap<()>,
    /// Pages that the caller gave away and that may not have arrived.
    pub(crate) given: RunMap<()>,
    /// Whether no call was open: then no executor wrote to the pages in the pool.
    pub(crate) pool_is_good: bool,
}

impl Loss {
    /// Whether a page may be torn: the executor may have been writing it, or its contents were on their way. All other pages have
    /// the contents that the program gave them.
    pub fn may_be_torn(&self, page: PageNumber) -> bool {
        !self.good.contains(page) && (!self.pool_is_good || self.given.contains(page))
    }

    /// What the threads whose calls were lost are told: [`ErrorKind::Ambiguous`].
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Ambiguous
    }
}
