//! Fuzz harnesses of the decoders of gRPC's headers; see [`base::fuzz`].

use base::fuzz::{FuzzTarget, InputShape, authenticated, untrusted};
use http::{HeaderMap, HeaderValue};

use super::status::GrpcStatus;
use super::timeout;

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "gateway-timeouts", shape: InputShape::Bytes, run: timeouts, seeds: timeout_seeds },
    FuzzTarget { name: "gateway-statuses", shape: InputShape::Bytes, run: statuses, seeds: status_seeds },
];

fn timeout_seeds() -> Vec<Vec<u8>> {
    ["10S", "99999999H", "1n", "500m"].map(|text| text.as_bytes().to_vec()).to_vec()
}

fn timeouts(input: &[u8]) {
    let Some(given) = untrusted(input, || timeout::parse(input)) else { return };
    let shown = timeout::format(given);
    let again = timeout::parse(shown.as_bytes()).expect("what is shown is read");
    assert!(again <= given, "a timeout is never made longer");
}

/// Number, message and details, each after a newline.
fn status_seeds() -> Vec<Vec<u8>> {
    [GrpcStatus::invalid_argument("no: 50 % of é"), GrpcStatus::ok()]
        .map(|status| {
            let trailers = status.to_trailers();
            let of = |name: &str| trailers.get(name).map_or(Vec::new(), |value| value.as_bytes().to_vec());
            [of("grpc-status"), of("grpc-message"), of("grpc-status-details-bin")].join(&b'\n')
        })
        .to_vec()
}

fn statuses(input: &[u8]) {
    let mut headers = HeaderMap::new();
    for (name, value) in
        ["grpc-status", "grpc-message", "grpc-status-details-bin"].iter().zip(input.split(|b| *b == b'\n'))
    {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.insert(*name, value);
        }
    }
    if let Some(status) = authenticated(input, || GrpcStatus::from_headers(&headers)) {
        let _ = status.to_trailers();
    }
}
