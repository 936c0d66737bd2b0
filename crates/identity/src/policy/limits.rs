//! The limits of a policy, and of the set of signatures that it is evaluated on.

/// How many signatures one set may hold. A larger set is refused whole.
pub const SIGNATURES_MAX: usize = 256;
/// How deep gates may nest.
pub const DEPTH_MAX: usize = 32;
/// How many gates and leaves one signature policy may have.
pub const RULES_MAX: usize = 4096;
/// How many principals one signature policy may name.
pub const PRINCIPALS_MAX: usize = 1024;
