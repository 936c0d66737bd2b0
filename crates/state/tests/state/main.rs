//! Tests of the disaggregated state through its public interface, in one program: compared with the monolithic state
//! ([`oracle`]), under simulated faults ([`simulation`]), with work offloaded to a follower ([`offloaded_work`]), and
//! with a donor that does not answer ([`silent_donor`]).

mod offloaded_work;
mod oracle;
mod silent_donor;
mod simulation;
mod support;
