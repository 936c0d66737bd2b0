//! What an executor says of itself in the head of its area, for a supervisor outside of it.
//!
//! The program and its functions can write there what they like, so these numbers are claims: they are bounded here, they are never an index or a
//! size, and what follows from them concerns that program's executor alone.

use wire::{u32_at, u64_at};

use crate::area::{AREA_HEAD_BYTES, CONTEXTS_MAX, CallEnd, ExecutorState, HeadOffsets};
use crate::limits::VERSION;
use crate::ring::{RECEIVED, SENT};

/// More calls than this cannot wait: a process has no more threads.
const WAITING_MAX: u32 = 1 << 22;

/// Numbers of one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExecutorLoad {
    /// How far the executor is.
    pub state: ExecutorState,
    /// How many functions run at the same time, at most.
    pub contexts: u32,
    /// Functions that run.
    pub running: u32,
    /// Calls that wait for their turn.
    pub waiting: u32,
    /// For how many nanoseconds calls have waited, all together.
    pub queued_ns: u64,
    /// Functions that have begun.
    pub begun: u64,
    /// How calls have ended, by [`CallEnd`].
    pub ended: [u64; CallEnd::COUNT],
    /// How far the executor has taken what was sent to it.
    pub taken: u64,
    /// Whether it has not taken all.
    pub is_behind: bool,
    /// How far the program has taken what the executor has sent.
    pub taken_by_caller: u64,
    /// Whether it has not taken all.
    pub is_caller_behind: bool,
}

impl ExecutorLoad {
    /// From a copy of the head. `None` if it is too short, or of another version.
    pub fn of(head: &[u8]) -> Option<ExecutorLoad> {
        if head.len() < AREA_HEAD_BYTES || u32_at(head, HeadOffsets::VERSION) != VERSION {
            return None;
        }
        let ring = |at: usize| (u64_at(head, at + SENT), u64_at(head, at + RECEIVED));
        let (sent, taken) = ring(HeadOffsets::TO_EXECUTOR);
        let (sent_to_caller, taken_by_caller) = ring(HeadOffsets::TO_CALLER);
        let contexts = u32_at(head, HeadOffsets::CONTEXTS).clamp(1, CONTEXTS_MAX);
        let state = ExecutorState::of(u32_at(head, HeadOffsets::STATE), u32_at(head, HeadOffsets::ERROR));
        Some(ExecutorLoad {
            state,
            contexts,
            running: u32_at(head, HeadOffsets::RUNNING).min(contexts),
            waiting: u32_at(head, HeadOffsets::WAITING).min(WAITING_MAX),
            queued_ns: u64_at(head, HeadOffsets::QUEUED_NS),
            begun: u64_at(head, HeadOffsets::BEGUN),
            ended: CallEnd::ALL.map(|end| u64_at(head, HeadOffsets::ENDED + size_of::<u64>() * end as usize)),
            taken,
            is_behind: sent != taken,
            taken_by_caller,
            is_caller_behind: sent_to_caller != taken_by_caller,
        })
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::area::Area;
    use crate::ring::Shape;

    /// Memory as aligned as the head.
    #[repr(C, align(4096))]
    struct Memory([u8; AREA_HEAD_BYTES.next_multiple_of(4096)]);

    #[test]
    fn what_the_executor_writes_is_read_from_a_copy() {
        let mut memory = Box::new(Memory([0; _]));
        assert_eq!(ExecutorLoad::of(&memory.0), None, "it has no version yet");
        // SAFETY: the methods below use the head alone, which lies there.
        let area = unsafe { Area::at(std::ptr::from_mut(&mut *memory).addr()) };
        area.prepare(3, 0, Shape::default(), None);
        area.set_running(2);
        area.set_waiting(5);
        area.add_queued(Duration::from_nanos(70));
        area.count_begin();
        area.count_end(CallEnd::Killed);
        area.count_end(CallEnd::Busy);
        area.count_end(CallEnd::Busy);
        let load = ExecutorLoad::of(&memory.0).expect("it is of this version");
        assert_eq!((load.contexts, load.running, load.waiting, load.queued_ns, load.begun), (3, 2, 5, 70, 1));
        assert_eq!((load.state, load.ended), (ExecutorState::Starting, [0, 0, 1, 0, 2]));
        assert!(!load.is_behind && !load.is_caller_behind);
        area.set_state(ExecutorState::Failed { error: 13, step: 4 });
        let load = ExecutorLoad::of(&memory.0).expect("it is of this version");
        assert_eq!(load.state, ExecutorState::Failed { error: 13, step: 4 });
        assert_eq!(ExecutorLoad::of(&memory.0[..AREA_HEAD_BYTES - 1]), None);
    }

    #[test]
    fn numbers_that_cannot_be_are_bounded() {
        let mut head = vec![0xff; AREA_HEAD_BYTES];
        head[HeadOffsets::VERSION..HeadOffsets::VERSION + 4].copy_from_slice(&VERSION.to_le_bytes());
        let load = ExecutorLoad::of(&head).expect("it is of this version");
        assert_eq!((load.contexts, load.running, load.waiting), (CONTEXTS_MAX, CONTEXTS_MAX, WAITING_MAX));
    }
}
