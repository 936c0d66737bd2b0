//! Tests of the pool through its public interface, in one program: its services to owners ([`sections`], and [`shm`] on
//! real memory), the rejection of hostile peers ([`hostile`]), and the pool under simulated faults ([`simulation`]).

mod hostile;
mod sections;
mod shm;
mod simulation;
mod support;
