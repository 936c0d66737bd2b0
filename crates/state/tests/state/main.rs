//! The disaggregated state from outside, in one program: beside the monolithic one ([`oracle`]), under simulated faults
//! ([`simulation`]), and work that a reader does for its primary ([`borrowed_work`]).

mod borrowed_work;
mod oracle;
mod simulation;
mod support;
