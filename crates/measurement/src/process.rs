//! Reads processor time, memory and disk space from the kernel.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use heddle_cli::process_usage::TICKS_PER_SECOND;
pub use heddle_cli::process_usage::{Usage, usage};

/// Idle time of all cores of this machine since it started, in microseconds of one core; waiting for a disk
/// is idle.
///
/// # Errors
/// `/proc` is not there (Linux only).
pub fn idle_us() -> io::Result<u64> {
    let stat = fs::read_to_string("/proc/stat")?;
    // "cpu", then user, nice, system, idle, iowait and others.
    let all = stat.lines().next().unwrap_or("").split_whitespace().skip(4).take(2);
    Ok(all.filter_map(|field| field.parse::<u64>().ok()).sum::<u64>() * (1_000_000 / TICKS_PER_SECOND))
}

/// Bytes that the files of a folder and its folders take on disk; files that disappear meanwhile do not count.
pub fn disk_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .filter_map(|entry| entry.metadata().ok().map(|metadata| (entry, metadata)))
        .map(|(entry, metadata)| if metadata.is_dir() { disk_bytes(&entry.path()) } else { metadata.blocks() * 512 })
        .sum()
}

/// Cores of this machine that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The machine of a measurement: processor model, number of cores, memory.
pub fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))
        .and_then(|line| line.split(':').nth(1))
        .map_or("unknown processor", str::trim);
    let cores = cores();
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory_kib: u64 = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0);
    format!("{model}, {cores} processors, {} GiB", memory_kib.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_bytes_are_those_of_all_files_below() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir(folder.path().join("inner")).expect("a folder");
        assert_eq!(disk_bytes(folder.path()), 0);
        fs::write(folder.path().join("inner/file"), vec![1; 100_000]).expect("a file");
        fs::File::open(folder.path().join("inner/file")).and_then(|file| file.sync_all()).expect("on disk");
        assert!((100_000..200_000).contains(&disk_bytes(folder.path())));
        assert_eq!(disk_bytes(Path::new("/no/such/folder")), 0);
    }

    #[test]
    fn a_machine_is_idle_at_most_all_of_the_time() {
        let (start, before) = (std::time::Instant::now(), idle_us().expect("Linux"));
        std::thread::sleep(std::time::Duration::from_millis(50));
        let idle = idle_us().expect("Linux") - before;
        // Each core counts in hundredths of a second.
        let most = (start.elapsed().as_micros() as u64 + 20_000) * all_cores();
        assert!(idle <= most, "{idle} of {most}");
    }

    fn all_cores() -> u64 {
        let stat = fs::read_to_string("/proc/stat").expect("Linux");
        stat.lines().skip(1).filter(|line| line.starts_with("cpu")).count() as u64
    }
}
