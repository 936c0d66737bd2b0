//! What messages carry of pages, and bytes of pages that come.

use bare::system_call::Errno;
use page_coherence::{PageBytes, Payload, ToExecutor as CoherenceToExecutor};

use crate::caller::{Broken, Caller};
use crate::payload::{TakenPage, payload};

/// A twin is missing, or a page that must be here.
const MISSING: Errno = Errno(libc::ENODATA);

impl Caller {
    /// The bytes of memory that a message carries, as they are now.
    pub(crate) fn body(
        &mut self,
        message: &CoherenceToExecutor,
        taken: &mut Option<TakenPage>,
    ) -> Result<Vec<u8>, Broken> {
        if let CoherenceToExecutor::Push(range) = message {
            // Threads may be writing the page: what is sent is what the twin has from now on.
            let contents = self.pages.contents(range.page)?;
            return Ok(self.twins.pushed(*range, &contents).ok_or(MISSING)?.to_vec());
        }
        let Some((page, payload)) = payload(message) else { return Ok(Vec::new()) };
        let of_taken = taken.as_mut().filter(|(already, _)| *already == page);
        let contents = match of_taken.and_then(|(_, contents)| contents.take()) {
            Some(contents) => contents,
            None => self.pages.contents(page)?,
        };
        match payload {
            Payload::Diff => Ok(self.twins.difference(page, &contents).ok_or(MISSING)?.to_vec()),
            Payload::Page | Payload::None => Ok((contents as Box<[u8]>).into_vec()),
        }
    }

    /// Bytes of a page have come, of which the program may be using others. It finds the page absent for a moment.
    pub(crate) fn install_bytes(&mut self, range: PageBytes, body: &[u8]) -> Result<(), Broken> {
        let is_writable = self.side.is_dirty(range.page);
        let twins = &mut self.twins;
        Ok(self.pages.rewrite(range.page, is_writable, |contents| twins.pulled(range, body, contents))?)
    }
}
