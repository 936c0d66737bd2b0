//! What a contract answers: a status, a message and a payload.

use base::Bytes;

/// What a contract answers, in Fabric's terms: the fields of the `ContractResponse` in a proposal response.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContractResponse {
    /// 200 for success; below [`ContractResponse::ERROR_THRESHOLD`] may be endorsed, from there on may not.
    pub status: i32,
    /// Empty on success.
    pub message: String,
    /// The result that the client's SDK returns.
    pub payload: Bytes,
}

impl ContractResponse {
    /// Status of a success.
    pub const OK: i32 = 200;
    /// The first status that a peer refuses to endorse.
    pub const ERROR_THRESHOLD: i32 = 400;
    /// Status of an application error.
    pub const ERROR: i32 = 500;

    /// A success with this payload.
    pub fn success(payload: impl Into<Bytes>) -> Self {
        Self { status: Self::OK, message: String::new(), payload: payload.into() }
    }

    /// A success with nothing to say.
    pub fn empty() -> Self {
        Self::success(Bytes::new())
    }

    /// A refusal or an error.
    pub fn failure(status: i32, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), payload: Bytes::new() }
    }

    /// Whether a peer may endorse it.
    pub fn is_endorsable(&self) -> bool {
        self.status < Self::ERROR_THRESHOLD
    }
}

impl From<Bytes> for ContractResponse {
    fn from(payload: Bytes) -> Self {
        Self::success(payload)
    }
}
