//! Exit codes, in the order in which `heddle --help` explains them.

/// The command failed; standard error says what and why.
pub const FAILURE: u8 = 1;
/// `heddle ledger verify` found damage, or `heddle ledger replay` a difference.
pub const DAMAGED: u8 = 3;
/// The network that the command needs is not running.
pub const NOT_RUNNING: u8 = 4;
/// A key of a key-value store has no value, or not the expected one.
pub const ABSENT: u8 = 5;
/// A program defect ended an essential part of a process: its log has the panic, and the supervisor restarts the
/// process.
pub const DEFECT: u8 = 70;
/// Interrupted by Ctrl-C; the code that shells expect.
pub const INTERRUPTED: u8 = 130;
