//! gRPC's status: a code, a message and details, and their encoding in a trailer.
//!
//! 1. `grpc-status` carries the code in decimal.
//! 2. `grpc-message` carries the message, percent-encoded.
//! 3. `grpc-status-details-bin` carries a `google.rpc.Status` with one `gateway.ErrorDetail` per failed endpoint, each
//!    in an `Any`, as base64 without padding.
//!
//! Invariant: the size of trailers is bounded by [`MESSAGE_BYTES_MAX`] and [`DETAILS_MAX`], because clients bound the
//! header lists that they accept.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::fmt;

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use http::{HeaderMap, HeaderName, HeaderValue};
use ledger::wire::{FieldValue, Fields, Span};
use prost::Message as _;
use proto::gateway::ErrorDetail;

/// A longer message is truncated; clients accept header lists of 16 KiB and more.
pub const MESSAGE_BYTES_MAX: usize = 2 << 10;
/// Further details are left out.
pub const DETAILS_MAX: usize = 16;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
/// The field of the details in a `google.rpc.Status`.
const STATUS_DETAILS: u32 = 3;
/// Bytes that are read of a message; servers other than ours may send longer ones.
const READ_BYTES_MAX: usize = 8 << 10;
const DETAIL_TYPE: &str = "type.googleapis.com/gateway.ErrorDetail";

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_encode_padding(false).with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// gRPC's codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum GrpcCode {
    /// The call succeeded.
    Ok = 0,
    /// The client cancelled the call.
    Cancelled = 1,
    /// The call failed for a reason that no other code names, such as an error of another system.
    Unknown = 2,
    /// The request is malformed, whatever the state of the server.
    InvalidArgument = 3,
    /// The client's deadline passed; the request may have taken effect.
    DeadlineExceeded = 4,
    /// The thing that the request names does not exist.
    NotFound = 5,
    /// The thing that the request would create exists already.
    AlreadyExists = 6,
    /// The client has proved its identity and may not do this.
    PermissionDenied = 7,
    /// A limit is reached; the client backs off and retries.
    ResourceExhausted = 8,
    /// The server is not in the state that the request needs; a retry alone does not help.
    FailedPrecondition = 9,
    /// The request was given up, such as an endorsement that the peers refused.
    Aborted = 10,
    /// A position lies beyond the end of the data.
    OutOfRange = 11,
    /// The server has no such method.
    Unimplemented = 12,
    /// The server broke one of its own invariants, or the protocol was violated.
    Internal = 13,
    /// The server cannot serve now; the client backs off and retries.
    Unavailable = 14,
    /// Stored data is lost or corrupt.
    DataLoss = 15,
    /// The client has not proved its identity.
    Unauthenticated = 16,
}

const CODES: [GrpcCode; 17] = [
    GrpcCode::Ok,
    GrpcCode::Cancelled,
    GrpcCode::Unknown,
    GrpcCode::InvalidArgument,
    GrpcCode::DeadlineExceeded,
    GrpcCode::NotFound,
    GrpcCode::AlreadyExists,
    GrpcCode::PermissionDenied,
    GrpcCode::ResourceExhausted,
    GrpcCode::FailedPrecondition,
    GrpcCode::Aborted,
    GrpcCode::OutOfRange,
    GrpcCode::Unimplemented,
    GrpcCode::Internal,
    GrpcCode::Unavailable,
    GrpcCode::DataLoss,
    GrpcCode::Unauthenticated,
];

impl GrpcCode {
    /// The code of that number; unknown numbers are [`GrpcCode::Unknown`].
    pub fn from_number(number: u32) -> GrpcCode {
        CODES.get(number as usize).copied().unwrap_or(GrpcCode::Unknown)
    }

    /// The name that gRPC's documents use, such as `FAILED_PRECONDITION`.
    pub fn name(self) -> &'static str {
        match self {
            GrpcCode::Ok => "OK",
            GrpcCode::Cancelled => "CANCELLED",
            GrpcCode::Unknown => "UNKNOWN",
            GrpcCode::InvalidArgument => "INVALID_ARGUMENT",
            GrpcCode::DeadlineExceeded => "DEADLINE_EXCEEDED",
            GrpcCode::NotFound => "NOT_FOUND",
            GrpcCode::AlreadyExists => "ALREADY_EXISTS",
            GrpcCode::PermissionDenied => "PERMISSION_DENIED",
            GrpcCode::ResourceExhausted => "RESOURCE_EXHAUSTED",
            GrpcCode::FailedPrecondition => "FAILED_PRECONDITION",
            GrpcCode::Aborted => "ABORTED",
            GrpcCode::OutOfRange => "OUT_OF_RANGE",
            GrpcCode::Unimplemented => "UNIMPLEMENTED",
            GrpcCode::Internal => "INTERNAL",
            GrpcCode::Unavailable => "UNAVAILABLE",
            GrpcCode::DataLoss => "DATA_LOSS",
            GrpcCode::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

/// How a call ended.
#[derive(Clone, PartialEq, Debug)]
pub struct GrpcStatus {
    /// The kind of end.
    pub code: GrpcCode,
    /// An explanation for people.
    pub message: String,
    /// The errors of each failed endpoint.
    pub details: Vec<ErrorDetail>,
}

impl GrpcStatus {
    /// A status without details.
    pub fn new(code: GrpcCode, message: impl Into<String>) -> GrpcStatus {
        GrpcStatus { code, message: message.into(), details: Vec::new() }
    }

    /// The same status with one more detail.
    pub fn with_detail(mut self, detail: ErrorDetail) -> GrpcStatus {
        self.details.push(detail);
        self
    }

    /// The same status with these details.
    pub fn with_details(mut self, details: Vec<ErrorDetail>) -> GrpcStatus {
        self.details = details;
        self
    }

    /// Success.
    pub fn ok() -> GrpcStatus {
        GrpcStatus::new(GrpcCode::Ok, "")
    }

    /// The deadline that the client set has passed.
    pub fn deadline_exceeded() -> GrpcStatus {
        GrpcStatus::new(GrpcCode::DeadlineExceeded, "the deadline of the call has passed")
    }

    /// The bytes of a request are not well-formed or not as required.
    pub fn invalid_argument(message: impl Into<String>) -> GrpcStatus {
        GrpcStatus::new(GrpcCode::InvalidArgument, message)
    }

    /// The trailers that encode this status.
    pub(crate) fn to_trailers(&self) -> HeaderMap {
        let mut trailers = HeaderMap::with_capacity(3);
        self.write(&mut trailers);
        trailers
    }

    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        headers.insert(GRPC_STATUS, number_value(self.code));
        if self.code == GrpcCode::Ok {
            return;
        }
        let message = cut(&self.message, MESSAGE_BYTES_MAX);
        if !message.is_empty() {
            let encoded = percent_encode(message);
            let value = HeaderValue::from_str(&encoded).expect("percent-encoding leaves printable ASCII only");
            headers.insert(GRPC_MESSAGE, value);
        }
        if !self.details.is_empty() {
            let status = proto::google::rpc::Status {
                code: self.code as i32,
                message: message.to_owned(),
                details: self.details.iter().take(DETAILS_MAX).map(detail_to_any).collect(),
            };
            let encoded = BASE64.encode(status.encode_to_vec());
            let value = HeaderValue::from_str(&encoded).expect("base64 is printable ASCII");
            headers.insert(GRPC_DETAILS, value);
        }
    }

    /// The status in trailers; `None` if they carry none.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Option<GrpcStatus> {
        let code = headers.get(GRPC_STATUS)?;
        let number = std::str::from_utf8(code.as_bytes()).ok().and_then(|text| text.parse().ok()).unwrap_or(2);
        let message = headers.get(GRPC_MESSAGE).map(|value| percent_decode(value.as_bytes())).unwrap_or_default();
        let details = headers.get(GRPC_DETAILS).map(|value| decode_details(value.as_bytes())).unwrap_or_default();
        Some(GrpcStatus { code: GrpcCode::from_number(number), message, details })
    }
}

impl fmt::Display for GrpcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.message)?;
        for detail in &self.details {
            write!(f, "; {} ({}): {}", detail.address, detail.msp_id, detail.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for GrpcStatus {}

fn number_value(code: GrpcCode) -> HeaderValue {
    const NUMBERS: [&str; 17] =
        ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16"];
    HeaderValue::from_static(NUMBERS[code as usize])
}

fn detail_to_any(detail: &ErrorDetail) -> prost_types::Any {
    let detail = ErrorDetail {
        address: detail.address.clone(),
        msp_id: detail.msp_id.clone(),
        message: cut(&detail.message, MESSAGE_BYTES_MAX / 2).to_owned(),
    };
    prost_types::Any { type_url: DETAIL_TYPE.to_owned(), value: detail.encode_to_vec() }
}

fn decode_details(value: &[u8]) -> Vec<ErrorDetail> {
    let Ok(bytes) = BASE64.decode(value) else { return Vec::new() };
    // Encoded one by one: a detail takes as little as two bytes.
    let mut details = Vec::new();
    let Ok(whole) = Span::whole(&bytes) else { return details };
    let mut fields = Fields::new(&bytes, whole);
    while let Ok(Some(field)) = fields.next() {
        if let (STATUS_DETAILS, FieldValue::Bytes(any), true) = (field.number, field.value, details.len() < DETAILS_MAX)
        {
            let any = prost_types::Any::decode(any.of(&bytes)).ok().filter(|any| any.type_url == DETAIL_TYPE);
            details.extend(any.and_then(|any| ErrorDetail::decode(any.value.as_slice()).ok()));
        }
    }
    details
}

/// The longest prefix of whole characters that has at most `bytes_max` bytes.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
fn cut(text: &str, bytes_max: usize) -> &str {
    if text.len() <= bytes_max {
        return text;
    }
    let mut end = bytes_max;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn percent_encode(text: &str) -> String {
    const HEX: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if (0x20..=0x7e).contains(&byte) && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            encoded.push(HEX[usize::from(byte >> 4)]);
            encoded.push(HEX[usize::from(byte & 15)]);
        }
    }
    encoded
}

fn percent_decode(text: &[u8]) -> String {
    let text = &text[..text.len().min(READ_BYTES_MAX)];
    let mut decoded = Vec::with_capacity(text.len());
    let mut position = 0;
    while position < text.len() {
        let hex =
            |offset: usize| text.get(position.saturating_add(offset)).and_then(|byte| char::from(*byte).to_digit(16));
        match (text[position], hex(1), hex(2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high << 4 | low) as u8);
                position = position.saturating_add(3);
            }
            (byte, ..) => {
                decoded.push(byte);
                position = position.saturating_add(1);
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_survives_its_trailers() {
        let status = GrpcStatus::new(GrpcCode::Aborted, "50 % of it\nfehlt: ü").with_detail(ErrorDetail {
            address: "127.0.0.1:7051".into(),
            msp_id: "Org1MSP".into(),
            message: "chaincode response 500, no such account".into(),
        });
        assert_eq!(GrpcStatus::from_headers(&status.to_trailers()), Some(status));
    }

    #[test]
    fn success_is_one_header() {
        let trailers = GrpcStatus::ok().to_trailers();
        assert_eq!(trailers.len(), 1);
        assert_eq!(trailers["grpc-status"], "0");
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let status = GrpcStatus::new(GrpcCode::Unknown, "ü".repeat(MESSAGE_BYTES_MAX));
        let read = GrpcStatus::from_headers(&status.to_trailers()).expect("there is a status");
        assert_eq!(read.message.len(), MESSAGE_BYTES_MAX);
        assert!(read.message.chars().all(|character| character == 'ü'));
    }

    #[test]
    fn any_header_value_decodes() {
        for text in [&b"%"[..], b"%4", b"%zz", b"%C3", b"\xff"] {
            percent_decode(text);
        }
        assert!(decode_details(b"!").is_empty());
        assert!(decode_details(b"/////w").is_empty());
    }
}
