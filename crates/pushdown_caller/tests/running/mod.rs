//! What tests with programs of C share: they are compiled here, and the role *executors* runs as a process of its own.

#![allow(dead_code, reason = "each test uses a part")]

pub mod compiled;
pub mod role_process;
