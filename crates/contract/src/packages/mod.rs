//! Chaincode packages, as Fabric's tools make them.
//!
//! A package is a `tar.gz` of `metadata.json` and `code.tar.gz`; the latter holds `connection.json` if the chaincode runs as a
//! service. The id of a package, which organisations approve, is its label, a colon and its SHA-256.
//!
//! 1. [`ChaincodePackage::parse`] reads both archives as streams, in memory, and keeps only the two JSON files ([`archive`]).
//! 2. Whatever the archives contain, nothing of them becomes a file or a path.
//!
//! Bounds: the bytes of a package and of what it unpacks to, the number of entries, and the size of each JSON file.

pub mod archive;
mod package;

pub use package::{
    ChaincodeConnection, ChaincodePackage, PACKAGE_BYTES_MAX, TEMPLATE_VARIABLE, TemplateValues, package_of_dialer,
    package_of_service, template_values,
};
