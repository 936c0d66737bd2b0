//! How far forks are.

/// How far threads are that fork.
#[derive(Default)]
pub(crate) struct Forks {
    /// Threads that gather pages, or have them all.
    pub(crate) gatherers: u32,
    /// Of these, threads that have them all.
    pub(crate) holders: u32,
}

impl Forks {
    /// Whether pages that the program owns stay here.
    pub(crate) fn is_gathering(&self) -> bool {
        self.gatherers > 0
    }

    /// Whether no message may be handled.
    pub(crate) fn is_holding(&self) -> bool {
        self.holders > 0
    }
}
