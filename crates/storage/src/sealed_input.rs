//! Inputs of fuzz targets whose format ends with a checksum.

/// The bytes unchanged, and with their last eight replaced by the correct checksum.
pub(crate) fn with_sealed(input: &[u8]) -> Vec<Vec<u8>> {
    let mut sealed = input.to_vec();
    if sealed.len() >= 8 {
        crate::blocks::seal(&mut sealed);
    }
    vec![input.to_vec(), sealed]
}
