//! A few buffers a thread, between the last use of a version and the read or write of another: such buffers are too long for
//! what the allocator keeps at hand, and a cold read needs and frees one, as does a write of what the cache has.
//!
//! A buffer comes back by itself, to whichever thread lets go of the last part of it ([`lend`]).

use std::cell::{Cell, RefCell};

use base::{Bytes, BytesMut};

/// Buffers above this are not worth holding on to.
const BYTES_MAX: usize = 64 << 10;
/// Buffers of a thread: reads and writes of values of one length want two lengths of buffers.
const SPARES: usize = 4;

thread_local! {
    static KEPT: RefCell<[BytesMut; SPARES]> = RefCell::default();
    /// Which of them leaves when there are too many.
    static NEXT: Cell<usize> = const { Cell::new(0) };
    static LAST_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// What a buffer has, as bytes that anybody may hold; it is kept when nobody does any more.
pub fn lend(buffer: BytesMut) -> Bytes {
    match buffer.capacity() {
        1..=BYTES_MAX => Bytes::from_owner(Lent(buffer)),
        _ => buffer.freeze(),
    }
}

struct Lent(BytesMut);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut buffer = std::mem::take(&mut self.0);
        buffer.clear();
        keep(buffer);
    }
}

fn keep(buffer: BytesMut) {
    // A thread that ends keeps nothing.
    let _ = KEPT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        let place = kept.iter().position(|one| one.capacity() == 0).unwrap_or_else(|| {
            NEXT.set((NEXT.get() + 1) % SPARES);
            NEXT.get()
        });
        kept[place] = buffer;
    });
}

/// A buffer with room for exactly so many bytes: what it costs follows from what is read, not from what the thread did before.
pub fn take(bytes: usize) -> BytesMut {
    LAST_BYTES.set(bytes);
    exactly(bytes)
}

/// A copy of a value, and the bytes of its buffer. Long values have a buffer as long as their record, so that reads and writes of
/// such records use the same ones; others no more than they need.
pub fn copy(value: &[u8], record_bytes: usize) -> (Bytes, usize) {
    let is_long = (value.len()..=value.len() + value.len() / 16).contains(&record_bytes);
    let bytes = if is_long { record_bytes } else { value.len() };
    let mut buffer = exactly(bytes);
    buffer.extend_from_slice(value);
    (lend(buffer), bytes)
}

fn exactly(bytes: usize) -> BytesMut {
    let kept = KEPT.with_borrow_mut(|kept| kept.iter_mut().find(|one| one.capacity() == bytes).map(std::mem::take));
    kept.unwrap_or_else(|| BytesMut::with_capacity(bytes))
}

/// Sees to it that there is a buffer as the one read into last: whoever waits for a verb has time for that.
pub fn prepare() {
    let bytes = LAST_BYTES.get();
    if bytes <= BYTES_MAX {
        keep(exactly(bytes));
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
        let mut read = lend(read);
        let place = read.as_ptr();
        // A head was before the value.
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
        drop(lend(again));
        let (long, bytes) = copy(&[4; 195], 200);
        assert_eq!((&long[..], bytes, long.as_ptr()), (&[4; 195][..], 200, place));
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "what a thread leaves behind is the matter")]
    fn a_thread_that_ends_with_a_value_in_its_own_keeping_ends_well() {
        thread_local!(static HELD: RefCell<Bytes> = const { RefCell::new(Bytes::new()) });
        std::thread::spawn(|| {
            HELD.set(copy(&[4; 300], 300).0);
            // Touched after it, so gone before it.
            drop(copy(&[5; 300], 300));
        })
        .join()
        .expect("no panic");
    }
}
