//! A small pool of buffers per thread. When a version is no longer used, the pool keeps its buffer until the thread
//! needs a buffer of exactly that length for a read or write, or until a newer buffer displaces it. Buffers above 64
//! KiB are not pooled. The pool exists because each cold read, and each write of a cached value, takes one buffer and
//! frees another, and these buffers are too long for the allocator's own caches.
//!
//! The thread that drops the last reference to a buffer returns it to its own pool ([`recyclable`]).

use std::cell::{Cell, RefCell};

use base::{Bytes, BytesMut};

/// Longer buffers are not worth pooling.
const BYTES_MAX: usize = 64 << 10;
/// Buffers per thread: reads and writes of values of one length need two lengths of buffers.
const BUFFERS_MAX: usize = 4;

thread_local! {
    static POOL: RefCell<[BytesMut; BUFFERS_MAX]> = RefCell::default();
    /// Which of them is replaced when there are too many.
    static NEXT: Cell<usize> = const { Cell::new(0) };
    static LAST_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The buffer's content as shared bytes; the buffer returns to a pool when nobody holds them any more.
pub fn recyclable(buffer: BytesMut) -> Bytes {
    match buffer.capacity() {
        1..=BYTES_MAX => Bytes::from_owner(RecycledBuffer(buffer)),
        _ => buffer.freeze(),
    }
}

struct RecycledBuffer(BytesMut);

impl AsRef<[u8]> for RecycledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for RecycledBuffer {
    fn drop(&mut self) {
        let mut buffer = std::mem::take(&mut self.0);
        buffer.clear();
        put_back(buffer);
    }
}

fn put_back(buffer: BytesMut) {
    // A thread that ends keeps nothing.
    let _ = POOL.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        let place = kept.iter().position(|one| one.capacity() == 0).unwrap_or_else(|| {
            NEXT.set((NEXT.get() + 1) % BUFFERS_MAX);
            NEXT.get()
        });
        kept[place] = buffer;
    });
}

/// A buffer with a capacity of exactly `bytes`: its cost follows from what is read, not from what the thread did
/// before.
pub fn take(bytes: usize) -> BytesMut {
    LAST_BYTES.set(bytes);
    exactly(bytes)
}

/// A copy of a value, and the length of its buffer. Long values get a buffer as long as their record, so that reads and
/// writes of such records share buffers; others get no more than they need.
pub fn copy(value: &[u8], record_bytes: usize) -> (Bytes, usize) {
    let is_long = (value.len()..=value.len() + value.len() / 16).contains(&record_bytes);
    let bytes = if is_long { record_bytes } else { value.len() };
    let mut buffer = exactly(bytes);
    buffer.extend_from_slice(value);
    (recyclable(buffer), bytes)
}

fn exactly(bytes: usize) -> BytesMut {
    let kept = POOL.with_borrow_mut(|kept| kept.iter_mut().find(|one| one.capacity() == bytes).map(std::mem::take));
    kept.unwrap_or_else(|| BytesMut::with_capacity(bytes))
}

/// Ensures that the pool has a buffer of the length last read into; to be called while waiting for a verb.
pub fn prepare() {
    let bytes = LAST_BYTES.get();
    if bytes <= BYTES_MAX {
        put_back(exactly(bytes));
    }
}

#[cfg(test)]
mod tests {
    use base::bytes::Buf as _;

    use super::*;

    #[test]
    fn a_buffer_is_used_again_for_the_same_length_only_and_only_once_nobody_holds_it() {
        let mut read = take(200);
        read.extend_from_slice(&[1; 200]);
        let mut read = recyclable(read);
        let place = read.as_ptr();
        // A head precedes the value.
        read.advance(40);
        let held = read.clone();
        drop(read);
        assert_ne!(take(200).as_ptr(), place);
        drop(held);
        let (copied, bytes) = copy(&[2; 160], 200);
        assert_eq!((&copied[..], bytes), (&[2; 160][..], 160));
        assert!(!(place..place.wrapping_add(200)).contains(&copied.as_ptr()));
        let again = take(200);
        assert_eq!((again.as_ptr(), again.len(), again.capacity()), (place, 0, 200));
        drop(copied);
        assert_eq!(copy(&[3; 160], 200).0, [3; 160][..]);
        let place = again.as_ptr();
        drop(recyclable(again));
        let (long, bytes) = copy(&[4; 195], 200);
        assert_eq!((&long[..], bytes, long.as_ptr()), (&[4; 195][..], 200, place));
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "what a thread leaves behind is the matter")]
    fn a_thread_that_ends_with_a_value_in_its_own_keeping_ends_well() {
        thread_local!(static HELD: RefCell<Bytes> = const { RefCell::new(Bytes::new()) });
        std::thread::spawn(|| {
            HELD.set(copy(&[4; 300], 300).0);
            // First used after `HELD`, so destroyed before it.
            drop(copy(&[5; 300], 300));
        })
        .join()
        .expect("no panic");
    }
}
