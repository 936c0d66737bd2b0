//! gRPC's prefix around a message that is encoded already.

use bytes::{BufMut as _, Bytes, BytesMut};

use crate::grpc::message::{PREFIX_BYTES, put_prefix};

pub(super) fn framed(message: &Bytes) -> Bytes {
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    put_prefix(&mut framed, message.len());
    framed.put_slice(message);
    framed.freeze()
}
