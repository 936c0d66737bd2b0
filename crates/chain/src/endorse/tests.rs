//! Tests of endorsing.
