//! Every provider from outside, in one program, but for real verbs, which need an adapter: the conformance suite, what is each one's
//! own, and providers that are broken on purpose ([`mutants`]).

mod mutants;
mod shaped;
mod shm;
mod sim;
mod tcp;
mod tcp_hostile;
mod tcp_hosts;
