//! The pool from outside, in one program: what owners get ([`sections`], on real memory [`shm`]), what strangers do not
//! ([`hostile`]), and both under simulated faults ([`simulation`]).

mod hostile;
mod sections;
mod shm;
mod simulation;
mod support;
