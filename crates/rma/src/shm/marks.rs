//! The fence: marks of verbs in flight, and generations that a revoker raises.
//!
//! A caller can be paused at any instruction, between checking a grant's generation and the last byte of its copy as well.
//! So:
//!
//! 1. A caller puts a mark that names the grant into a slot that the revoker can read ([`enter`]).
//! 2. A sequentially consistent fence.
//! 3. It reads the grant's generation ([`generation`]). Not the capability's: it takes the mark away and fails.
//! 4. It copies, then takes the mark away ([`leave`]).
//!
//! and
//!
//! 1. A revoker raises the generation ([`raise`]).
//! 2. A sequentially consistent fence.
//! 3. It reads every slot. A slot that holds a mark of the grant is awaited until it holds something else ([`is_over`]), or
//!    until its process has ended.
//!
//! Either the caller's fence comes first, and the revoker sees its mark; or the revoker's, and the caller sees the new
//! generation. What a revoker has awaited happened before its return; what begins later fails.
//!
//! Invariants:
//! * Two marks that one thread puts one after the other differ ([`mark`]'s sequence number), so that a slot which is busy
//!   all the time with verbs that fail is not taken for one verb that does not end.
//! * A mark is also a hazard pointer: a mapping is found only after the mark was put, and unmapped only when, after it was
//!   taken from the table, no slot of this process named its region ([`region_of`]).

use std::sync::atomic::Ordering;

/// A word that is shared with others; loom's and the machine's.
pub(super) trait Word {
    fn load(&self, ordering: Ordering) -> u64;
    fn store(&self, value: u64, ordering: Ordering);
    fn compare_exchange(&self, current: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64>;
    fn swap(&self, value: u64, ordering: Ordering) -> u64;
    fn fence(ordering: Ordering);
}

/// The [`Word`] of one kind of atomics.
macro_rules! word {
    ($($atomic:ident)::+) => {
        impl $crate::shm::marks::Word for $($atomic)::+::AtomicU64 {
            #[inline(always)]
            fn load(&self, ordering: std::sync::atomic::Ordering) -> u64 {
                self.load(ordering)
            }
            #[inline(always)]
            fn store(&self, value: u64, ordering: std::sync::atomic::Ordering) {
                self.store(value, ordering);
            }
            #[inline(always)]
            fn compare_exchange(
                &self,
                current: u64,
                new: u64,
                success: std::sync::atomic::Ordering,
                failure: std::sync::atomic::Ordering,
            ) -> Result<u64, u64> {
                self.compare_exchange(current, new, success, failure)
            }
            #[inline(always)]
            fn swap(&self, value: u64, ordering: std::sync::atomic::Ordering) -> u64 {
                self.swap(value, ordering)
            }
            #[inline(always)]
            fn fence(ordering: std::sync::atomic::Ordering) {
                $($atomic)::+::fence(ordering);
            }
        }
    };
}
#[cfg(test)]
pub(super) use word;

word!(std::sync::atomic);

/// A slot without a mark.
pub(super) const FREE: u64 = 0;

/// The mark of a verb: region (32 bits), grant (16), a number that tells a thread's verbs apart (15), 1.
#[inline]
pub(super) fn mark(region: u32, grant: u16, sequence: u16) -> u64 {
    (u64::from(region) << 32) | (u64::from(grant) << 16) | (u64::from(sequence << 1)) | 1
}

/// The region that a mark names; `None` for a free slot.
pub(super) fn region_of(mark: u64) -> Option<u32> {
    (mark != FREE).then_some((mark >> 32) as u32)
}

/// Whether a mark is of a verb under this grant.
pub(super) fn is_under(mark: u64, region: u32, grant: u16) -> bool {
    mark != FREE && mark >> 16 == (u64::from(region) << 16) | u64::from(grant)
}

/// Puts a mark into a slot, unless the slot is taken. What the caller reads from here on is read after the mark was put.
#[inline]
pub(super) fn enter<W: Word>(slot: &W, mark: u64) -> bool {
    if slot.compare_exchange(FREE, mark, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return false;
    }
    W::fence(Ordering::SeqCst);
    true
}

/// Takes the mark away. What the caller did before was done before that.
#[inline]
pub(super) fn leave<W: Word>(slot: &W) {
    slot.store(FREE, Ordering::Release);
}

/// A grant's generation, as a caller that has put its mark reads it.
#[inline]
pub(super) fn generation<W: Word>(word: &W) -> u64 {
    // A relaxed load and a fence: the page can only be read, where stronger loads are not defined.
    let generation = word.load(Ordering::Relaxed);
    W::fence(Ordering::Acquire);
    generation
}

/// Gives a grant another generation. What the revoker reads from here on is read after that.
pub(super) fn raise<W: Word>(word: &W, generation: u64) {
    word.store(generation, Ordering::Release);
    W::fence(Ordering::SeqCst);
}

/// What a slot holds, for a revoker.
pub(super) fn seen<W: Word>(slot: &W) -> u64 {
    slot.load(Ordering::Acquire)
}

/// Whether the verb whose mark the slot held is over.
pub(super) fn is_over<W: Word>(slot: &W, mark: u64) -> bool {
    slot.load(Ordering::Acquire) != mark
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_name_their_grant() {
        let one = mark(0x0102_0304, 0x0506, 3);
        assert_eq!(one, 0x0102_0304_0506_0007);
        assert!(is_under(one, 0x0102_0304, 0x0506) && !is_under(one, 0x0102_0304, 0x0507));
        assert_eq!(region_of(one), Some(0x0102_0304));
        assert_eq!(mark(1, 2, u16::MAX) & 0xFFFF, 0xFFFF);
        assert_ne!(mark(1, 2, 7), mark(1, 2, 8));
        assert_ne!(mark(0, 0, 0), FREE);
    }
}
