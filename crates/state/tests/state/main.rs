//! The disaggregated state from outside, in one program: beside the monolithic one ([`oracle`]), under simulated faults
//! ([`simulation`]), work that a reader does for its primary ([`borrowed_work`]), and beside a donor that does not answer
//! ([`silent_donor`]).

mod borrowed_work;
mod oracle;
mod silent_donor;
mod simulation;
mod support;
