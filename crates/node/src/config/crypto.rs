//! The section `[crypto]`: how signatures are verified.

use serde::{Deserialize, Serialize};

/// How signatures are verified. Each process has its own setting; no verdict depends on it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CryptoConfig {
    /// How P-256 signatures are verified.
    pub verify: VerificationMethod,
    /// Bytes of memory for tables of keys, in each process.
    pub tables_bytes: usize,
}

/// How P-256 signatures are verified.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerificationMethod {
    /// With tables of each key's multiples.
    #[default]
    Tables,
    /// By the crypto library alone.
    Library,
}

impl Default for CryptoConfig {
    fn default() -> CryptoConfig {
        CryptoConfig { verify: VerificationMethod::Tables, tables_bytes: identity::verifier::BUDGET_BYTES_DEFAULT }
    }
}

impl CryptoConfig {
    pub(crate) fn is_default(&self) -> bool {
        *self == CryptoConfig::default()
    }

    /// Makes this process verify in this way, after a self-test with known answers.
    ///
    /// # Errors
    /// The self-test failed.
    pub fn use_in_process(&self) -> Result<(), identity::Error> {
        let verifier = match self.verify {
            VerificationMethod::Tables => identity::SignatureVerifier::Tables,
            VerificationMethod::Library => identity::SignatureVerifier::Library,
        };
        verifier.set_of_process()?;
        if verifier == identity::SignatureVerifier::Tables {
            identity::verifier::set_budget(self.tables_bytes);
        }
        Ok(())
    }
}
