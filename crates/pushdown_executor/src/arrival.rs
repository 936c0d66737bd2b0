//! What messages bring of a page, and how it gets into memory while functions may be using the page.

use page_coherence::{PageNumber, Payload, ToExecutor, WordChange};

use crate::pages::{PageContents, Pages};

/// What a message brings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrival {
    /// No part of a page.
    Nothing,
    /// A page.
    Page,
    /// A difference.
    Difference,
}

/// The message has a body of another size, or the contents that it changes are not here.
pub(crate) struct Unfit;

impl Arrival {
    pub(crate) fn of(message: &ToExecutor) -> Arrival {
        match message {
            ToExecutor::Home { payload, .. } | ToExecutor::Answer { payload, .. } => match payload {
                Payload::None => Arrival::Nothing,
                Payload::Page => Arrival::Page,
                Payload::Diff => Arrival::Difference,
            },
            ToExecutor::Push(_) => Arrival::Difference,
            _ => Arrival::Nothing,
        }
    }

    /// Puts it into memory. `protection` is that of the page's mapping; `is_idle` says that no function runs.
    ///
    /// # Errors
    /// [`Unfit`].
    pub(crate) fn install(
        self,
        pages: &mut Pages,
        page: PageNumber,
        protection: u32,
        is_idle: bool,
        body: &[u8],
    ) -> Result<(), Unfit> {
        let done = match self {
            Arrival::Nothing => return Err(Unfit),
            Arrival::Page => {
                let contents: &PageContents = body.try_into().map_err(|_| Unfit)?;
                match is_idle && pages.replace(page, protection, contents) {
                    true => Ok(()),
                    false => pages.put(page, Box::new(*contents)),
                }
            }
            Arrival::Difference => pages.merge(page, protection, &WordChange::of_diff(body).map_err(|_| Unfit)?),
        };
        done.map_err(|_| Unfit)
    }
}
