//! Which page a message carries.

use page_coherence::{PageNumber, Payload, ToExecutor as CoherenceToExecutor};

use crate::pages::PageContents;

/// A page that was taken from the program, and its contents, until a message carries them.
pub(crate) type TakenPage = (PageNumber, Option<Box<PageContents>>);

/// The page whose contents a message carries, and how.
pub(crate) fn payload(message: &CoherenceToExecutor) -> Option<(PageNumber, Payload)> {
    match message {
        CoherenceToExecutor::Answer { page, payload, .. } | CoherenceToExecutor::Home { page, payload, .. } => {
            Some((*page, *payload)).filter(|(_, payload)| *payload != Payload::None)
        }
        _ => None,
    }
}
