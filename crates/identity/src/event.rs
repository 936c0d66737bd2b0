//! The metrics of identities: signatures made and verified, tables of keys, identities validated and denied.

base::events! {
    /// Signatures that were checked, with whatever result; those inside certificates are not counted.
    counter SignatureVerified("heddle_signatures_verified_total");
    /// Groups of signatures that were checked together.
    counter SignatureBatch("heddle_signature_batches_total");
    /// Signatures on P-256 that tables did not show to be right, so that the library was asked.
    counter SignatureUnsure("heddle_signatures_unsure_total");
    /// Signatures that tables showed to be right and of which the library was asked too.
    counter SignatureRechecked("heddle_signatures_rechecked_total");
    /// Keys that have a table of their multiples, or will have one soon.
    gauge VerifierTables("heddle_signature_tables");
    /// Tables of a key's multiples that were built.
    counter VerifierTablesBuilt("heddle_signature_tables_built_total");
    /// Tables that were dropped for that of a key that is used more.
    counter VerifierTablesDisplaced("heddle_signature_tables_displaced_total");
    /// Signatures that were made.
    counter SignatureMade("heddle_signatures_made_total");
    /// Times that a certificate was turned away because this node's operator denies it.
    counter IdentityDenied("heddle_identities_denied_total");
    /// Identities that had to be parsed and validated because no cache remembered them.
    counter IdentityValidated("heddle_identities_validated_total");
}
