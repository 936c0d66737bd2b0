//! Tests the program as users run it. They are one test program, because linking it takes longer than running most
//! tests.

#![allow(clippy::disallowed_methods, reason = "files of tests need not outlive a loss of power")]

mod attack;
mod beside;
mod chaincodes;
mod copies;
mod disk;
mod elastic;
mod executors;
mod farmem;
mod farmem_profile;
mod farmem_programs;
mod hosts;
mod isolate;
mod kill;
mod kv;
mod memory;
mod network;
mod nodes;
mod ordering;
mod private_data;
mod replay;
mod soak;
mod support;
