//! Integration tests of the crate, in one program: the conformance suite that every engine passes under simulated faults.

mod ordered;
