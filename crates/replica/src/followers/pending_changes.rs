//! The changes that are logged for followers and not sent yet.
//!
//! Nearly all changes go to every follower. They are kept once, and each follower's update shares their bytes: the cost
//! of logging a block does not depend on the number of followers.

use base::{Bytes, BytesMut};

/// Changes that every follower gets.
#[derive(Default)]
pub(super) struct SharedChanges(BytesMut);

/// What one follower gets.
pub(super) enum PendingChanges {
    /// The shared changes from this offset on.
    Shared(usize),
    /// It got a change that others did not get, so all of its changes are kept for it.
    Own(BytesMut),
}

impl SharedChanges {
    /// Appends changes.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Of a follower that joins now.
    pub(super) fn joined_here(&self) -> PendingChanges {
        PendingChanges::Shared(self.0.len())
    }

    /// Takes everything, for one update.
    pub(super) fn take(&mut self) -> Bytes {
        self.0.split().freeze()
    }
}

impl PendingChanges {
    /// Appends changes that every follower gets, and that [`SharedChanges`] gets as well.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        if let PendingChanges::Own(own) = self {
            own.extend_from_slice(bytes);
        }
    }

    /// The changes of this follower alone, with those logged so far before them.
    pub(super) fn own(&mut self, shared: &SharedChanges) -> &mut BytesMut {
        if let PendingChanges::Shared(from) = self {
            *self = PendingChanges::Own(BytesMut::from(&shared.0[*from..]));
        }
        match self {
            PendingChanges::Own(own) => own,
            PendingChanges::Shared(_) => unreachable!("it was replaced just now"),
        }
    }

    /// Takes the changes of this follower; `shared` are those that were taken of all.
    pub(super) fn take(&mut self, shared: &Bytes) -> Bytes {
        match std::mem::replace(self, PendingChanges::Shared(0)) {
            PendingChanges::Shared(from) => shared.slice(from..),
            PendingChanges::Own(own) => own.freeze(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_follower_gets_its_changes_in_the_order_in_which_they_were_logged() {
        let mut shared = SharedChanges::default();
        let mut first = shared.joined_here();
        let mut log = |bytes: &[u8], followers: &mut [&mut PendingChanges]| {
            shared.extend(bytes);
            followers.iter_mut().for_each(|one| one.extend(bytes));
        };
        log(b"a", &mut [&mut first]);
        let mut second = shared.joined_here();
        let mut log = |bytes: &[u8], followers: &mut [&mut PendingChanges]| {
            shared.extend(bytes);
            followers.iter_mut().for_each(|one| one.extend(bytes));
        };
        log(b"b", &mut [&mut first, &mut second]);
        first.own(&shared).extend_from_slice(b"1");
        shared.extend(b"c");
        [&mut first, &mut second].into_iter().for_each(|one| one.extend(b"c"));
        let all = shared.take();
        assert_eq!((&first.take(&all)[..], &second.take(&all)[..]), (&b"ab1c"[..], &b"bc"[..]));
        shared.extend(b"d");
        let all = shared.take();
        assert_eq!((&first.take(&all)[..], &second.take(&all)[..]), (&b"d"[..], &b"d"[..]));
    }
}
