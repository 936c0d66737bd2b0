//! Twins: what pages were before this process wrote them, while a function may be writing them too (weak ordering, and coherence off).

use std::collections::BTreeMap;
use std::ops::Range;

use bare::PAGE_BYTES;
use base::Bytes;
use page_coherence::{PageBytes, PageNumber, diff};

use crate::pages::PageContents;

/// The twins of all pages that have one.
pub(crate) struct Twins(BTreeMap<PageNumber, Box<PageContents>>);

const _: () = assert!(PAGE_BYTES as u64 == page_coherence::PAGE_BYTES, "both have the same pages");

impl Twins {
    pub(crate) fn new() -> Twins {
        Twins(BTreeMap::new())
    }

    /// The page has these contents now, and is about to be written.
    pub(crate) fn keep(&mut self, page: PageNumber, contents: Box<PageContents>) {
        self.0.insert(page, contents);
    }

    pub(crate) fn drop(&mut self, page: PageNumber) {
        self.0.remove(&page);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// What was written since; `None` if the page has no twin.
    pub(crate) fn difference(&self, page: PageNumber, contents: &PageContents) -> Option<Bytes> {
        self.0.get(&page).map(|twin| diff(twin, contents))
    }

    /// What was written in a range since. The twin has it too from now on. `None` if the page has no twin.
    pub(crate) fn pushed(&mut self, range: PageBytes, contents: &PageContents) -> Option<Bytes> {
        let twin = self.0.get_mut(&range.page)?;
        let mut new = twin.clone();
        new.get_mut(places(range))?.copy_from_slice(contents.get(places(range))?);
        let pushed = diff(twin, &new);
        *twin = new;
        Some(pushed)
    }

    /// Bytes of the other side have come. Those that this process has written, and the other does not have yet, stay.
    pub(crate) fn pulled(&mut self, range: PageBytes, bytes: &[u8], contents: &mut PageContents) {
        let mut twin = self.0.get_mut(&range.page);
        for (at, byte) in places(range).zip(bytes) {
            let (Some(now), was) = (contents.get_mut(at), twin.as_mut().and_then(|twin| twin.get_mut(at))) else {
                return;
            };
            match was {
                Some(was) if was != now => *was = *byte,
                Some(was) => (*was, *now) = (*byte, *byte),
                None => *now = *byte,
            }
        }
    }
}

/// Where in its page a range is.
fn places(range: PageBytes) -> Range<usize> {
    let from = usize::from(range.offset);
    from..from + usize::from(range.count)
}
