//! Fuzz harnesses of the decoders that are private to this crate; see [`base::fuzz`].

use bytes::Bytes;

use crate::certificate::RevocationList;

/// A revocation list, in PEM or DER. It comes with a configuration, which is signed.
pub fn revocation_list(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let _ = base::fuzz::authenticated(input, || RevocationList::parse(&bytes));
}

/// The contents of a PEM block that this crate wrote.
///
/// # Panics
/// If it is none.
pub fn der_of_pem(text: &[u8]) -> Vec<u8> {
    pem::parse(text).expect("this crate wrote it").into_contents()
}
