//! What this crate counts.

base::events! {
    /// Signatures that were checked, with whatever result; those inside certificates are not counted.
    counter SignatureVerified("heddle_signatures_verified_total");
    /// Signatures that were made.
    counter SignatureMade("heddle_signatures_made_total");
    /// Times that a certificate was turned away because this node's operator denies it.
    counter IdentityDenied("heddle_identities_denied_total");
    /// Identities that had to be parsed and validated because no cache remembered them.
    counter IdentityValidated("heddle_identities_validated_total");
}
