//! One buffer a thread, between the eviction of a version and the read of another: such buffers are too long for what the
//! allocator keeps at hand, and a cold read does both.

use std::cell::Cell;

use base::{Bytes, BytesMut};

/// Buffers above this are not worth holding on to.
const BYTES_MAX: usize = 64 << 10;

thread_local! {
    static SPARE: Cell<BytesMut> = Cell::default();
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

/// A buffer with room for so many bytes, and for not many more.
pub fn take(bytes: usize) -> BytesMut {
    let mut buffer = SPARE.take();
    // What lay before the value, names and header, is room again, if there is enough of it.
    if !buffer.try_reclaim(bytes) || buffer.capacity() > bytes + bytes / 4 {
        buffer = BytesMut::with_capacity(bytes);
    }
    buffer
}
