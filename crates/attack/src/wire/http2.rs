//! HTTP/2 frames written by hand, for traffic that no library would send.

/// The first bytes of a client's connection: the preface and empty settings.
pub fn preface() -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frame(SETTINGS, 0, 0, &[])].concat()
}

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// One frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// The headers of a gRPC call, none of them entered into the table.
pub fn call(path: &str) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", path),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        block.push(0);
        text(&mut block, name.as_bytes());
        text(&mut block, value.as_bytes());
    }
    block
}

/// A header that is entered into the table, where its index is 62 until the next one.
pub fn indexed(name: &str, value: &[u8]) -> Vec<u8> {
    let mut block = vec![0x40];
    text(&mut block, name.as_bytes());
    text(&mut block, value);
    block
}

/// A reference of one byte to the header last entered into the table.
pub const LAST_INDEXED: u8 = 0x80 | 62;

fn text(block: &mut Vec<u8>, value: &[u8]) {
    // The length in seven bits, continued in further bytes.
    match value.len() {
        short @ 0..127 => block.push(short as u8),
        long => {
            block.push(127);
            let mut rest = long - 127;
            while rest >= 128 {
                block.push(rest as u8 | 128);
                rest >>= 7;
            }
            block.push(rest as u8);
        }
    }
    block.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_say_their_length_as_hpack_does() {
        let mut block = Vec::new();
        text(&mut block, &[b'x'; 1337]);
        // RFC 7541, appendix C.1, with seven bits.
        assert_eq!(block[..3], [127, 0x80 | (1210 & 127) as u8, (1210 >> 7) as u8]);
        assert_eq!(block.len(), 3 + 1337);
        assert_eq!(frame(PING, 0, 0, &[7; 8])[..9], [0, 0, 8, PING, 0, 0, 0, 0, 0]);
    }
}
