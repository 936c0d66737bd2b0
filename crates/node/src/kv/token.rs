//! The token of a key-value store's port: a client that presents it may read and write.

use std::fmt;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::network::NodeError;

const BYTES_MIN: usize = 16;
const BYTES_MAX: usize = 256;

/// A secret that clients send with each call, as `authorization: Bearer TOKEN`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvToken(String);

impl KvToken {
    /// Reads the first line of a file.
    ///
    /// # Errors
    /// The file cannot be read, or its first line is not 16 to 256 printable ASCII characters.
    pub fn read(path: &Path) -> Result<KvToken, NodeError> {
        let text = std::fs::read_to_string(path).map_err(NodeError::file("read", path))?;
        let token = text.lines().next().unwrap_or_default().trim();
        if !(BYTES_MIN..=BYTES_MAX).contains(&token.len()) || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let problem = format!(
                "its first line is no token: a token is {BYTES_MIN} to {BYTES_MAX} printable characters without spaces; \
                 `openssl rand -hex 32` makes one"
            );
            return Err(NodeError::file("use", path)(io::Error::new(io::ErrorKind::InvalidData, problem)));
        }
        Ok(KvToken(token.to_owned()))
    }

    /// The token itself.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// Whether this header presents the token.
    pub(super) fn matches(&self, authorization: Option<&[u8]>) -> bool {
        let token = authorization.and_then(|value| value.strip_prefix(b"Bearer "));
        token.is_some_and(|token| identity::equal_in_constant_time(token, self.0.as_bytes()))
    }
}

impl fmt::Debug for KvToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KvToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_the_first_line_of_its_file_and_borne_by_nobody_else() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("token");
        let read = |text: &str| {
            std::fs::write(&path, text).expect("a file");
            KvToken::read(&path)
        };
        let token = read("0123456789abcdef\nmore\n").expect("a token");
        assert!(token.matches(Some(b"Bearer 0123456789abcdef")));
        for other in
            [None, Some(&b""[..]), Some(b"Bearer "), Some(b"0123456789abcdef"), Some(b"Bearer 0123456789abcdeF")]
        {
            assert!(!token.matches(other), "{other:?}");
        }
        for wrong in ["", "short", "0123456789 abcdef", &"x".repeat(257)] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(!format!("{token:?}").contains("0123"));
    }
}
