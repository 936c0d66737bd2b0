//! Tests of validation: each code by a crafted transaction, and conflicts against a naive oracle.

mod codes;
mod conflicts;
