//! Accounts for the bytes of messages that links have only partly received, and bounds them for each organisation.
//!
//! 1. A listener has one [`ReceiveAccounts`]. Each of its links has a [`ReceiveAccount`], under the organisation that the
//!    link's other end proved ([`super::LinkAcceptor`]).
//! 2. The receiving half of a link accounts the bytes of a message before it allocates them ([`ReceiveAccount::resize`]), and
//!    ends the link when the organisation's budget is used up.
//! 3. The bytes of a message stay accounted until the receiver asks for the next message. The receiver may release them
//!    earlier, when another budget accounts for the message.
//!
//! Invariants: No organisation holds more than [`UNFINISHED_BYTES_MAX`], and no organisation uses up the budget of
//! another. A message of the greatest length fits if its organisation has no other unfinished message.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::acceptor::LinkBytesArriving;
use crate::admission::OverBudget;

/// Bytes of one organisation's unfinished messages at one listener: the longest message of a link, and a reserve.
pub const UNFINISHED_BYTES_MAX: u64 = 144 << 20;

/// The unfinished messages at one listener.
#[derive(Debug, Default)]
pub(super) struct ReceiveAccounts(Mutex<BTreeMap<Arc<str>, u64>>);

/// The unfinished messages of one link. Dropping it returns all bytes.
#[derive(Debug)]
pub struct ReceiveAccount {
    arrivals: Arc<ReceiveAccounts>,
    organization: Arc<str>,
    bytes: u64,
}

impl ReceiveAccounts {
    fn held(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReceiveAccount {
    pub(super) fn new(arrivals: &Arc<ReceiveAccounts>, organization: &Arc<str>) -> ReceiveAccount {
        ReceiveAccount { arrivals: Arc::clone(arrivals), organization: Arc::clone(organization), bytes: 0 }
    }

    /// Sets the bytes that the link holds, more or fewer than before.
    ///
    /// # Errors
    /// [`OverBudget`] when the organisation would hold too much; the link then keeps its previous account.
    pub fn resize(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let bytes = bytes as u64;
        if bytes == self.bytes {
            return Ok(());
        }
        let mut held = self.arrivals.held();
        let others = held.get(&self.organization).map_or(0, |all| all - self.bytes);
        if bytes > self.bytes && others.saturating_add(bytes) > UNFINISHED_BYTES_MAX {
            let more = bytes - self.bytes;
            return Err(OverBudget {
                bytes: more,
                limit: UNFINISHED_BYTES_MAX,
                holder: "unfinished messages of an organisation",
            });
        }
        // Empty accounts are removed, so that the map does not grow with names.
        match others + bytes {
            0 => drop(held.remove(&self.organization)),
            all => drop(held.insert(Arc::clone(&self.organization), all)),
        }
        drop(held);
        LinkBytesArriving.add(bytes as i64 - self.bytes as i64);
        self.bytes = bytes;
        Ok(())
    }

    /// The organisation whose messages they are.
    pub fn organization(&self) -> &str {
        &self.organization
    }
}

impl Drop for ReceiveAccount {
    fn drop(&mut self) {
        self.resize(0).expect("giving back needs no budget");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_organisation_uses_up_its_own_budget_and_gets_it_back() {
        let arrivals = Arc::new(ReceiveAccounts::default());
        let of = |organization: &str| ReceiveAccount::new(&arrivals, &Arc::from(organization));
        let (mut one, mut two, mut other) = (of("A"), of("A"), of("B"));
        one.resize(100 << 20).expect("it is within the budget");
        let over = two.resize(45 << 20).expect_err("both links are of one organisation");
        assert_eq!((over.bytes, over.limit), (45 << 20, UNFINISHED_BYTES_MAX));
        two.resize(44 << 20).expect("exactly the budget");
        other.resize(144 << 20).expect("another organisation has its own");
        one.resize(10 << 20).expect("less is always possible");
        two.resize(134 << 20).expect("what was given back");
        drop((one, two, other));
        assert!(arrivals.held().is_empty());
    }
}
