//! The organisations of one channel, and the identities of their members.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::MspId;
use bytes::Bytes;

use crate::cache::{Cache, ENTRIES_DEFAULT};
use crate::certificate::Certificate;
use crate::error::Error;
use crate::event;
use crate::identity::Identity;
use crate::msp::{Msp, decode_serialized};

/// The organisations of one channel. Immutable: a new configuration makes a new manager, with an empty cache, because
/// it may have revoked what the old one remembered.
#[derive(Debug)]
pub struct MspManager {
    msps: BTreeMap<MspId, Arc<Msp>>,
    cache: Cache,
}

impl MspManager {
    /// Takes the organisations. Where two share a name, as an organisation that both orders and endorses does, either
    /// will do: the configuration that names it twice must define it the same.
    pub fn new(msps: impl IntoIterator<Item = Arc<Msp>>) -> MspManager {
        MspManager::with_cache(msps, ENTRIES_DEFAULT)
    }

    /// As [`MspManager::new`], remembering about this many identities.
    pub fn with_cache(msps: impl IntoIterator<Item = Arc<Msp>>, identities: usize) -> MspManager {
        let msps = msps.into_iter().map(|msp| (msp.id().clone(), msp)).collect();
        MspManager { msps, cache: Cache::new(identities) }
    }

    /// An organisation by name.
    pub fn msp(&self, id: &str) -> Option<&Arc<Msp>> {
        self.msps.get(id)
    }

    /// All organisations, by name.
    pub fn msps(&self) -> impl Iterator<Item = &Arc<Msp>> {
        self.msps.values()
    }

    /// The valid identity that these bytes, a `SerializedIdentity`, name. Expiry is not looked at.
    ///
    /// A hit in the cache costs a hash and a comparison of the bytes; a miss parses the certificate and verifies one
    /// signature. Failures are not remembered.
    ///
    /// # Errors
    /// Every kind of failure that identities have, except [`Error::Expired`].
    pub fn identify(&self, serialized: &Bytes) -> Result<Arc<Identity>, Error> {
        if let Some(identity) = self.cache.get(serialized) {
            return Ok(identity);
        }
        event::IdentityValidated.add(1);
        let decoded = decode_serialized(serialized)?;
        let msp = self.msp(&decoded.mspid).ok_or_else(|| Error::UnknownMsp(decoded.mspid.as_str().into()))?;
        let certificate = Certificate::from_pem(&decoded.id_bytes)?;
        let identity = Arc::new(msp.validate(certificate, Bytes::copy_from_slice(serialized))?);
        self.cache.insert(&identity);
        Ok(identity)
    }

    /// How many identities are remembered.
    pub fn remembered(&self) -> usize {
        self.cache.len()
    }
}
