//! Requests of the program's threads to the server.
//!
//! 1. The thread writes the request to the page that both share, under the lock of the heap.
//! 2. It reads the doorbell. That page is absent, so the kernel tells the server, and the thread sleeps.
//! 3. The server writes its reply, and maps the doorbell. The thread goes on, takes the reply and drops the doorbell.
//!
//! The kind of the request is 0 between two requests, and the server sets it to 0 when it takes one. So it does nothing when
//! the doorbell is read for another reason, by a debugger say, or twice for one request.

#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::Ordering;

use bare::system_call::advise;
use farmem_control::{PAGE_BYTES, RequestPage};

/// Sends a request, and waits for the reply. The caller holds the lock of the heap.
pub(crate) fn send(page: &RequestPage, doorbell: usize, kind: u32, first: u32, pages: u32) -> u32 {
    page.first.store(first, Ordering::Relaxed);
    page.pages.store(pages, Ordering::Relaxed);
    page.reply.store(0, Ordering::Relaxed);
    page.kind.store(kind, Ordering::Release);
    loop {
        touch(doorbell);
        let reply = page.reply.load(Ordering::Acquire);
        // There is no reply if somebody else had read the doorbell before, so it was no longer absent.
        if reply != 0 {
            page.kind.store(0, Ordering::Relaxed);
            drop_page(doorbell);
            return reply;
        }
        drop_page(doorbell);
    }
}

fn touch(address: usize) {
    // SAFETY: the doorbell is readable memory of the reservation; nobody writes it.
    unsafe { ptr::read_volatile(address as *const u8) };
}

fn drop_page(address: usize) {
    // SAFETY: the page has no content.
    let _ = unsafe { advise(address, PAGE_BYTES, libc::MADV_DONTNEED) };
}
