//! The thread that fetches what lies ahead of streams.

use std::sync::Arc;

use base::BytesMut;

use super::core::PagerCore;
use super::read_ahead::ReadAheadRequest;
use crate::page::PageRange;
use crate::store::StoreFuture;

/// Fetches pages until the region ends.
pub(super) async fn run(core: Arc<PagerCore>) {
    while let Some(request) = core.ahead.next() {
        fetch(&core, &request).await;
    }
}

/// Fetches one group after the other; the next group is on its way while one is mapped.
async fn fetch(core: &PagerCore, request: &ReadAheadRequest) {
    let mut parts = request.ranges.iter().flat_map(|range| range.by_group()).map(|(_, part)| part);
    let post = |part: PageRange| -> (PageRange, StoreFuture<'_, BytesMut>) {
        (part, core.store.read(part, BytesMut::with_capacity(part.bytes())))
    };
    let mut in_flight = parts.next().map(post);
    while let Some((part, read)) = in_flight {
        in_flight = parts.next().map(post);
        match read.await {
            Ok(bytes) => {
                core.map(part, &bytes, request.writable);
                // A thread that wrote to one of these pages after it was mapped, and before the table said so, was told to wait.
                core.wake(part);
            }
            // If the program touches these pages, the fault finds out what became of them.
            Err(_) => core.give_up_filling(part),
        }
    }
}
