//! Tests of the pool through its public interface, in one program: its services to owners ([`sections`], on real
//! memory [`shm`]), how it rejects hostile peers ([`hostile`]), and both under simulated faults ([`simulation`]).

mod hostile;
mod sections;
mod shm;
mod simulation;
mod support;
