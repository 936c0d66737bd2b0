//! The fence of a revocation: marks of verbs in flight, and generations that a revoker raises.
//!
//! A *mark* is the word by which a caller shows, in its connection's shared segment, under which grant it runs a verb.
//! A caller can be paused at any instruction, even between its check of a grant's generation and the last byte of its
//! copy. Therefore a caller
//!
//! 1. sets a mark that names the grant, in a slot that the revoker can read ([`enter`]);
//! 2. executes a sequentially consistent memory fence;
//! 3. reads the grant's generation ([`generation`]); if this differs from the capability's generation, it clears the
//!    mark and fails the verb;
//! 4. copies, then clears the mark ([`leave`]);
//!
//! and a revoker
//!
//! 1. raises the generation ([`raise`]);
//! 2. executes a sequentially consistent memory fence;
//! 3. reads every slot; if a slot holds a mark of the grant, the revoker waits until the slot holds another value
//!    ([`is_over`]), or until the caller's process has ended.
//!
//! If the caller's memory fence comes first, the revoker sees the mark. If the revoker's memory fence comes first, the
//! caller sees the new generation. The verbs for which a revoker waited happened before the revocation returns; verbs
//! that start later fail.
//!
//! Invariants:
//! * Two successive marks of one thread differ (the sequence number of [`hazard`]). So a revoker does not mistake a
//!   series of failing verbs in one slot for a single verb that does not end.
//! * A mark is also a hazard pointer: a caller looks up a mapping only after it has set the mark. A mapping is unmapped
//!   only if, after its removal from the table, no slot of this process named its region ([`region_of`]).

use std::sync::atomic::Ordering;

/// A word shared with other threads: loom's or the machine's.
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
        impl $crate::shm::hazards::Word for $($atomic)::+::AtomicU64 {
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

/// The value of a slot without a mark.
pub(super) const FREE: u64 = 0;

/// The mark of a verb: region (32 bits), grant (16), a number that tells the verbs of a thread apart (15), 1.
#[inline]
pub(super) fn hazard(region: u32, grant: u16, sequence: u16) -> u64 {
    (u64::from(region) << 32) | (u64::from(grant) << 16) | (u64::from(sequence << 1)) | 1
}

/// The region that a mark names; `None` for a free slot.
pub(super) fn region_of(mark: u64) -> Option<u32> {
    (mark != FREE).then_some((mark >> 32) as u32)
}

/// Whether a mark belongs to a verb under this grant.
pub(super) fn is_under(mark: u64, region: u32, grant: u16) -> bool {
    mark != FREE && mark >> 16 == (u64::from(region) << 16) | u64::from(grant)
}

/// Sets a mark in a slot, unless the slot is in use. The caller's later reads happen after the mark was set.
#[inline]
pub(super) fn enter<W: Word>(slot: &W, mark: u64) -> bool {
    if slot.compare_exchange(FREE, mark, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return false;
    }
    W::fence(Ordering::SeqCst);
    true
}

/// Clears the mark. The caller's earlier accesses happen before that.
#[inline]
pub(super) fn leave<W: Word>(slot: &W) {
    slot.store(FREE, Ordering::Release);
}

/// A grant's generation, read by a caller that has set its mark.
#[inline]
pub(super) fn generation<W: Word>(word: &W) -> u64 {
    // A relaxed load and a fence, since the page is read-only and stronger loads are not defined there.
    let generation = word.load(Ordering::Relaxed);
    W::fence(Ordering::Acquire);
    generation
}

/// Changes a grant's generation. The revoker's later reads happen after that.
pub(super) fn raise<W: Word>(word: &W, generation: u64) {
    word.store(generation, Ordering::Release);
    W::fence(Ordering::SeqCst);
}

/// The contents of a slot, for a revoker.
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
        let one = hazard(0x0102_0304, 0x0506, 3);
        assert_eq!(one, 0x0102_0304_0506_0007);
        assert!(is_under(one, 0x0102_0304, 0x0506) && !is_under(one, 0x0102_0304, 0x0507));
        assert_eq!(region_of(one), Some(0x0102_0304));
        assert_eq!(hazard(1, 2, u16::MAX) & 0xFFFF, 0xFFFF);
        assert_ne!(hazard(1, 2, 7), hazard(1, 2, 8));
        assert_ne!(hazard(0, 0, 0), FREE);
    }
}
