//! The simulated world (under construction).
