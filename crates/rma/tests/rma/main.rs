//! Tests of every provider through its public interface, in one program: the conformance suite, tests of each provider's own
//! features, and deliberately broken providers ([`mutants`]). The provider over RDMA adapters needs an adapter and is tested in
//! `crates/rma_verbs/tests/verbs.rs`.

mod mutants;
mod shaped;
mod shm;
mod sim;
mod tcp;
mod tcp_hostile;
mod tcp_hosts;
