//! How coherent a call is, and what each mode guarantees.

use std::time::Duration;

/// How coherent the memory of a call is while it runs. All calls that run at the same time have one mode, since they share a
/// context.
///
/// Threads of one side share that side's copy of a page, and the processor's own memory model orders them. So the guarantees below
/// are about threads of different sides. In every mode the call's start and end are synchronisation points: the function sees all that
/// the caller wrote before the call, and the caller sees after the reply all that the function wrote. So is a service of the caller for
/// a function, such as a system call: the caller sees before it what the function wrote, and the function sees after it what was written
/// for it.
///
/// A program that drops pages at the caller writes zeros there, in every mode. The caller reads zeros at once. The executor reads zeros
/// before it sees anything that the caller did later, also without a synchronisation point. What the function writes to the pages
/// before it hears of the discard is lost, as if it had been written before: memory does not show the difference.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum CoherenceMode {
    /// The default (section 4.1). A page is writable on one side or readable on both. Each read sees the newest write of either
    /// side, so both sides are one memory with the processor's own order; atomic instructions and locks work across the
    /// sides.
    #[default]
    Coherent,
    /// Partial store order (section 4.2). A write request downgrades the other side to read-only instead of taking the page away.
    /// * There is one writer of a page at a time, and it writes onto the newest content: no write is lost, and atomic
    ///   read-modify-write instructions work across the sides.
    /// * A read may see an older value than the newest of the other side. The values that a side reads of one location
    ///   never go backwards. Writes to different pages may become visible in another order than they were made.
    /// * `syncmem` on the reading side drops its old copies: reads after it see every write that was made before.
    Pso,
    /// Weak ordering (section 7.6). Both sides write a page at the same time, without messages.
    /// * A side sees its own writes at once. Of the other side's writes it sees at least those before the other's last
    ///   `syncmem`, once it calls `syncmem` itself after that one's messages have arrived: after it has seen, in this memory, a
    ///   write that the other made later. What it has learnt in another way, through a file say, may be ahead of the messages.
    ///   It may see other writes earlier.
    /// * Writes to different bytes are both kept, on the same page too. If both sides write one byte without `syncmem` in
    ///   between, one of the two values remains. Atomic instructions do not work across the sides.
    WeakOrdering,
    /// No coherence while the call runs (section 4.2). The function sees pool memory. A page of which pool memory lacks the contents
    /// comes from the caller when the function first uses it; from then on the sides say nothing to each other about it.
    /// * `syncmem` of the caller sends the bytes of a range, to the byte; `pull` fetches the bytes of a range. Other writes
    ///   may become visible at the other side before the reply: those of the caller to a page that the function has not used yet, or
    ///   that the caller evicts; those of the function to a page that the caller fetches. A program must not depend on their being
    ///   hidden.
    /// * Writes to different bytes are both kept, as with weak ordering.
    Off,
}

impl CoherenceMode {
    const ALL: [CoherenceMode; 4] =
        [CoherenceMode::Coherent, CoherenceMode::Pso, CoherenceMode::WeakOrdering, CoherenceMode::Off];

    /// Its number in messages.
    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    /// The mode with this number.
    pub(crate) fn of_number(number: u8) -> Option<CoherenceMode> {
        CoherenceMode::ALL.get(usize::from(number)).copied()
    }

    /// Whether both sides may write one page at the same time.
    pub fn shares_writes(self) -> bool {
        matches!(self, CoherenceMode::WeakOrdering | CoherenceMode::Off)
    }
}

/// Which side wins when both ask for a page at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Favour {
    /// The pool side, as in the paper: the function ends sooner.
    #[default]
    Pool,
    /// The caller: for the ablation of section 7.6.
    Caller,
}

/// Settings that both sides must have in common.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CoherenceSettings {
    /// Which side wins a tie.
    pub favour: Favour,
    /// How long the side that lost a tie waits before it asks again.
    pub retry_pause: Duration,
    /// The pause doubles with each tie that a fault loses, up to this.
    pub retry_pause_max: Duration,
    /// How many calls run at the same time; 0 is taken as 1.
    pub contexts_max: usize,
    /// How many calls wait for their turn.
    pub queued_max: usize,
}

impl Default for CoherenceSettings {
    fn default() -> CoherenceSettings {
        CoherenceSettings {
            favour: Favour::Pool,
            retry_pause: Duration::from_micros(10),
            retry_pause_max: Duration::from_micros(320),
            contexts_max: 2,
            queued_max: 64,
        }
    }
}

/// The pause of a fault that lost another tie.
pub(crate) fn next_pause(last: Duration, settings: &CoherenceSettings) -> Duration {
    (last * 2).clamp(settings.retry_pause, settings.retry_pause_max.max(settings.retry_pause))
}
