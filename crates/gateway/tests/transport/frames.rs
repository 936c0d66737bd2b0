//! Tests of the server with HTTP/2 frames, or orders of frames, that other clients may send but the tests' client
//! library does not.

use super::raw::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, Raw, frame as http, headers, literal,
};
use super::*;

/// The frames of a call with a message, whose client has not ended its side.
fn call(stream: u32, path: &str) -> Vec<u8> {
    [http(HEADERS, END_HEADERS, stream, &headers(path)), http(DATA, 0, stream, &frame(&envelope(3)))].concat()
}

async fn plain(settings: ConnectionConfig) -> Server {
    Server::start(false, settings, PortLimits::default()).await
}

/// The story: Caliper on grpc-js lost calls after about a thousand on one connection. That client ends its side of a call
/// in a separate frame, which arrives after the answer was sent. The server had dropped the stream by then, and took the
/// frame for an error; after 1024 of them it ended the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_may_end_its_side_of_a_call_after_the_answer() {
    let server = plain(ConnectionConfig::default()).await;
    let mut raw = Raw::connect(server.address).await;
    for (path, numbers) in [("/echo/Once", 0..3000u32), ("/echo/Refuse", 3000..4500), ("/echo/Absent", 4500..6000)] {
        for number in numbers {
            let stream = 2 * number + 1;
            raw.send(&call(stream, path)).await.expect("an open connection");
            raw.answered(stream).await;
            raw.send(&http(DATA, END_STREAM, stream, &[])).await.expect("an open connection");
        }
    }
    server.end().await;
}

/// A client that never ends its side does not hold the call forever, and resets of such calls end no connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_its_client_does_not_end_is_reset_and_the_connection_stays() {
    const NO_ERROR: [u8; 4] = [0; 4];
    let server =
        plain(ConnectionConfig { linger_time_max: Duration::from_millis(200), ..ConnectionConfig::default() }).await;
    let mut raw = Raw::connect(server.address).await;
    let streams = 0..1500u32;
    let calls: Vec<u8> = streams.clone().flat_map(|number| call(2 * number + 1, "/echo/Once")).collect();
    raw.send(&calls).await.expect("an open connection");
    let mut resets = 0;
    while resets < streams.len() {
        let frame = raw.next().await.expect("a connection that stays");
        assert_ne!(frame.kind, GOAWAY, "{frame:?}");
        if frame.kind == RST_STREAM {
            assert_eq!(frame.payload, NO_ERROR);
            resets += 1;
        }
    }
    raw.send(&call(5001, "/echo/Once")).await.expect("an open connection");
    raw.answered(5001).await;
    server.end().await;
}

/// Bytes sent on an answered call are discarded, and their number is small.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_goes_on_after_its_answer_is_reset() {
    let server = plain(ConnectionConfig::default()).await;
    let mut raw = Raw::connect(server.address).await;
    raw.send(&call(1, "/echo/Once")).await.expect("an open connection");
    raw.answered(1).await;
    for _ in 0..4 {
        raw.send(&http(DATA, 0, 1, &[0; 15_000])).await.expect("an open connection");
    }
    while raw.next().await.expect("a connection that stays").kind != RST_STREAM {}
    raw.send(&call(3, "/echo/Once")).await.expect("an open connection");
    raw.answered(3).await;
    server.end().await;
}

/// CVE-2023-44487: streams that are opened and reset at once cost the server more than the client.
#[tokio::test(flavor = "multi_thread")]
async fn streams_that_are_reset_at_once_end_their_connection_alone() {
    let server = plain(ConnectionConfig::default()).await;
    let other = server.channel().await;
    let mut raw = Raw::connect(server.address).await;
    let flood: Vec<u8> = (0..20_000u32)
        .flat_map(|number| {
            let stream = 2 * number + 1;
            [http(HEADERS, END_HEADERS, stream, &headers("/echo/Forever")), http(RST_STREAM, 0, stream, &[0, 0, 0, 8])]
                .concat()
        })
        .collect();
    // The server may close the connection while we write.
    let _ = raw.send(&flood).await;
    raw.closed().await;
    echo(&other, 100).await;
    server.end().await;
}

/// A header block that continues in frame after frame never completes, and the server keeps each frame.
#[tokio::test(flavor = "multi_thread")]
async fn headers_without_an_end_end_their_connection_alone() {
    let server = plain(ConnectionConfig::default()).await;
    let other = server.channel().await;
    for filler in [Vec::new(), literal("x", &"y".repeat(100))] {
        let mut raw = Raw::connect(server.address).await;
        let mut flood = http(HEADERS, 0, 1, &headers("/echo/Once"));
        for _ in 0..20_000 {
            flood.extend(http(CONTINUATION, 0, 1, &filler));
        }
        let _ = raw.send(&flood).await;
        raw.closed().await;
        echo(&other, 100).await;
    }
    server.end().await;
}

/// One byte of a header block may refer to four kilobytes of the table: 16 KiB of them expand to 64 MiB.
#[tokio::test(flavor = "multi_thread")]
async fn headers_that_unfold_to_megabytes_are_refused() {
    const FIRST_OF_TABLE: u8 = 0x80 | 62;
    let server = plain(ConnectionConfig::default()).await;
    let other = server.channel().await;
    let mut raw = Raw::connect(server.address).await;
    // A literal with a new name, which goes into the table; its length of 3000 takes more than one byte.
    let mut block = vec![0x40, 1, b'x', 0x7f, 0xb9, 0x16];
    block.extend([b'y'; 3000]);
    block.extend([FIRST_OF_TABLE; 10_000]);
    raw.send(&http(HEADERS, END_HEADERS, 1, &[headers("/echo/Once"), block].concat())).await.expect("room");
    // It is answered (431) or reset, or the connection is ended.
    while let Some(frame) = raw.next().await {
        if matches!(frame.kind, RST_STREAM | GOAWAY) || frame.kind == HEADERS && frame.flags & END_STREAM != 0 {
            break;
        }
        assert_ne!(frame.kind, DATA, "the call was served");
    }
    echo(&other, 100).await;
    server.end().await;
}
