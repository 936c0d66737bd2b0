//! Remembers which namespaces have no rows, so that only the first question about a namespace reads storage.
//!
//! 1. The writer notes which namespaces a block writes to, before any view shows the block
//!    ([`EmptyNamespaces::note_block`]). Such a namespace may have rows from then on, even if they are deleted later.
//! 2. A reader that has looked for rows at the height of its view notes whether it found any
//!    ([`EmptyNamespaces::note_found`]).
//! 3. A namespace that was empty at a height, and that no block has been noted for, is empty at every later height.
//!
//! The ledger defines contracts and collections, and so bounds the number of namespaces. Above [`KNOWN_MAX`] everything
//! is forgotten and learnt again.

use std::sync::{Mutex, MutexGuard, PoisonError};

use base::Map;

/// The largest number of namespaces that are remembered.
const KNOWN_MAX: usize = 65_536;

/// What is known about one namespace.
#[derive(Clone, Copy, Debug)]
enum Rows {
    /// There are none at this height, nor at any later one.
    NoneSince(u64),
    /// There may be some.
    Possible,
}

#[derive(Debug, Default)]
struct Known {
    namespaces: Map<String, Rows>,
    /// The number of blocks noted so far.
    height: u64,
    /// Blocks below this height may have been noted and forgotten.
    forgotten: u64,
}

/// The namespaces of one state.
#[derive(Debug, Default)]
pub(crate) struct EmptyNamespaces(Mutex<Known>);

impl EmptyNamespaces {
    /// Step 1. `namespaces` may repeat a name.
    pub fn note_block<'a>(&self, number: u64, namespaces: impl Iterator<Item = &'a str>) {
        let mut known = self.known();
        known.height = known.height.max(number + 1);
        let mut last = None;
        for namespace in namespaces {
            if last.replace(namespace) != Some(namespace) {
                known.note(namespace, Rows::Possible);
            }
        }
    }

    /// Whether a view of this height may see rows of a namespace; `None` if the reader must look.
    pub fn may_have_rows(&self, namespace: &str, height: u64) -> Option<bool> {
        match self.known().namespaces.get(namespace)? {
            Rows::Possible => Some(true),
            Rows::NoneSince(empty) => (*empty <= height).then_some(false),
        }
    }

    /// Step 2.
    pub fn note_found(&self, namespace: &str, height: u64, is_empty: bool) {
        let mut known = self.known();
        // A block that the view does not show may have been noted and forgotten.
        if height >= known.forgotten {
            known.note(namespace, if is_empty { Rows::NoneSince(height) } else { Rows::Possible });
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn note(&mut self, name: &str, rows: Rows) {
        match (self.namespaces.get_mut(name), rows) {
            (Some(Rows::Possible), _) => {}
            (Some(Rows::NoneSince(known)), Rows::NoneSince(height)) => *known = height.min(*known),
            (Some(known), Rows::Possible) => *known = Rows::Possible,
            (None, _) => {
                if self.namespaces.len() >= KNOWN_MAX {
                    self.namespaces.clear();
                    self.forgotten = self.height;
                }
                self.namespaces.insert(name.to_owned(), rows);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_namespace_is_empty_until_a_block_writes_to_it() {
        let known = EmptyNamespaces::default();
        assert_eq!(known.may_have_rows("cc", 7), None);
        known.note_found("cc", 7, true);
        known.note_block(7, ["other"].into_iter());
        assert_eq!([6, 7, 8].map(|height| known.may_have_rows("cc", height)), [None, Some(false), Some(false)]);
        known.note_block(8, ["cc"].into_iter());
        assert_eq!([8, 9].map(|height| known.may_have_rows("cc", height)), [Some(true); 2]);
        // A block that is applied again, after the first attempt failed.
        known.note_block(7, ["other"].into_iter());
        assert_eq!(known.may_have_rows("cc", 9), Some(true));
    }

    #[test]
    fn a_block_that_is_noted_while_a_reader_looks_counts() {
        let known = EmptyNamespaces::default();
        // The reader looks at height 7; block 7 comes meanwhile.
        known.note_block(7, ["cc"].into_iter());
        known.note_found("cc", 7, true);
        assert_eq!(known.may_have_rows("cc", 8), Some(true));
    }

    #[test]
    fn a_reader_that_saw_none_of_the_forgotten_blocks_is_not_believed() {
        let known = EmptyNamespaces::default();
        known.note_block(7, ["cc"].into_iter());
        let others: Vec<String> = (0..KNOWN_MAX).map(|number| format!("other{number}")).collect();
        known.note_block(8, others.iter().map(String::as_str));
        known.note_found("cc", 7, true);
        assert_eq!(known.may_have_rows("cc", 9), None);
        known.note_found("cc", 9, true);
        assert_eq!(known.may_have_rows("cc", 9), Some(false));
    }
}
