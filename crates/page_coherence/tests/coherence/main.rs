//! Simulates both sides under delays, evictions and losses, checks them, and checks the checkers with planted mistakes; explores small
//! systems in every order of their steps.

mod check;
mod litmus;
mod model;
mod mutants;
mod run;
mod scenarios;
mod shims;
mod system;
mod truth;
