//! Why a process has stopped by itself.

/// Why a process has stopped by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessEnd {
    /// The reason, for people.
    pub reason: String,
    /// Whether a program defect ended an essential part: restart the process, and report the defect.
    pub is_defect: bool,
}

impl ProcessEnd {
    /// An essential part ended.
    pub(crate) fn defect(reason: String) -> ProcessEnd {
        ProcessEnd { reason, is_defect: true }
    }

    /// The process cannot continue in its environment: a disk, a configuration, another process.
    pub(crate) fn environment(reason: String) -> ProcessEnd {
        ProcessEnd { reason, is_defect: false }
    }
}
