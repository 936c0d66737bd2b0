//! Reads a running process's processor time and memory from the kernel.

use std::{fs, io};

/// Processor time and memory of one process at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// User and system time of all its threads, in microseconds, since it started.
    pub cpu_us: u64,
    /// Resident memory in bytes.
    pub resident_bytes: u64,
}

/// Reads the usage of a process; `None` names this one.
///
/// # Errors
/// The process is gone, or `/proc` is not there (Linux only).
pub fn usage(pid: Option<u32>) -> io::Result<Usage> {
    let folder = pid.map_or_else(|| "/proc/self".to_owned(), |pid| format!("/proc/{pid}"));
    let stat = fs::read_to_string(format!("{folder}/stat"))?;
    // The command name may hold spaces and brackets; fields count from after its closing bracket.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    let cpu_us = (ticks(11) + ticks(12)) * (1_000_000 / TICKS_PER_SECOND);
    let status = fs::read_to_string(format!("{folder}/status"))?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse::<u64>().ok())
        .unwrap_or(0);
    Ok(Usage { cpu_us, resident_bytes: kib * 1024 })
}

/// Linux reports processor time in hundredths of a second on every architecture (`USER_HZ`).
pub const TICKS_PER_SECOND: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_this_process_grows_with_work() {
        let before = usage(None).expect("this process exists");
        let mut sum = 0u64;
        while usage(None).expect("this process exists").cpu_us < before.cpu_us + 50_000 {
            sum = (0..100_000u64).fold(sum, |sum, n| std::hint::black_box(sum ^ n));
        }
        assert!(before.resident_bytes > 0);
    }
}
