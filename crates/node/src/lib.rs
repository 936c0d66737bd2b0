//! A whole network in one process: composition, and nothing else.
#![warn(missing_docs)]

pub mod config;
