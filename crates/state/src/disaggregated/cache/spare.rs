//! One buffer a thread, between the eviction of a version and the read of another: such buffers are too long for what the
//! allocator keeps at hand, and a cold read does both.

use std::cell::Cell;

use base::{Bytes, BytesMut};

/// Buffers above this are not worth holding on to.
const BYTES_MAX: usize = 64 << 10;

thread_local! {
    static SPARE: Cell<BytesMut> = Cell::default();
    static LAST_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// Keeps the buffer of a value that nobody else holds.
pub fn put(value: Bytes) {
    if value.is_empty() || value.len() > BYTES_MAX {
        return;
    }
    if let Ok(mut buffer) = value.try_into_mut() {
        buffer.clear();
        SPARE.set(buffer);
    }
}

/// A buffer with room for exactly so many bytes: what it costs follows from what is read, not from what the thread did before.
pub fn take(bytes: usize) -> BytesMut {
    let mut buffer = SPARE.take();
    // What lay before the value, names and header, is room again.
    if !buffer.try_reclaim(bytes) || buffer.capacity() != bytes {
        buffer = BytesMut::with_capacity(bytes);
    }
    LAST_BYTES.set(bytes);
    buffer
}

/// Sees to it that there is a buffer as the one taken last: whoever waits for a verb has time for that.
pub fn prepare() {
    let bytes = LAST_BYTES.get();
    if bytes <= BYTES_MAX {
        SPARE.set(take(bytes));
    }
}
