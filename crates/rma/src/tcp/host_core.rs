//! The state that a host's handles, endpoints and progress thread share.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use base::Map;

use super::TcpConfig;
use super::attention::AttentionQueue;
use super::budget::NameBudget;
use super::memory::HostRegions;
use crate::failure::HostFailure;
use crate::{NodeId, TokenLookup};

/// State that a host's handles, endpoints and progress thread share.
pub struct HostCore {
    pub node: NodeId,
    pub tokens: TokenLookup,
    pub options: TcpConfig,
    pub regions: HostRegions,
    pub attention: Arc<AttentionQueue>,
    pub stopping: AtomicBool,
    /// The set of denied certificates may have changed: the progress thread must check all connections.
    pub denials_changed: AtomicBool,
    /// A defect of the progress thread.
    pub failure: HostFailure,
    /// The budgets of names that have connections.
    pub budgets: Mutex<Map<Arc<str>, Weak<NameBudget>>>,
    /// The connection that the progress thread polls; 0 when it polls none.
    pub looked_at: AtomicU64,
}

impl HostCore {
    /// The budget of this name.
    pub fn budget_of(&self, name: &Arc<str>) -> Arc<NameBudget> {
        let mut budgets = self.budgets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(budget) = budgets.get(name).and_then(Weak::upgrade) {
            return budget;
        }
        // Keeps the map no larger than the number of names with connections.
        budgets.retain(|_, budget| budget.strong_count() > 0);
        let budget = Arc::new(NameBudget::new(&self.options, Arc::clone(&self.attention)));
        budgets.insert(Arc::clone(name), Arc::downgrade(&budget));
        budget
    }
}
