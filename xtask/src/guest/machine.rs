//! QEMU: boots the image, streams the console, and reports how the guest ended.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// A byte `v` written to this port of the guest ends QEMU with the status `2 v + 1`.
pub const EXIT_PORT: u32 = 0x501;
/// The byte that `/init` writes if the program succeeded. QEMU's own statuses are 0 and 1, so neither can be mistaken for
/// it.
pub const PASSED: u8 = 16;
const STATUS_PASSED: i32 = 2 * PASSED as i32 + 1;

/// Time from power-on to the end, on a machine that is busy with other work.
const RUN_LIMIT: Duration = Duration::from_secs(170);
const POLL: Duration = Duration::from_millis(20);
/// Emulated string moves store bytes one by one, whereas a processor and an adapter store whole words; without these two
/// features the kernel moves words.
const CPU_MODEL: &str = "max,-erms,-fsrm";
/// The host emulates each processor with one thread.
const CPU_CORES: &str = "2";
const MEMORY: &str = "1G";
/// `panic=-1` reboots at once, which `-no-reboot` turns into an exit with status 0: a failure.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off random.trust_cpu=on";

/// Runs the guest to its end and returns its output.
pub fn run(kernel: &Path, image: &Path) -> Result<Vec<String>, String> {
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-accel", "tcg,thread=multi", "-cpu", CPU_MODEL, "-smp", CPU_CORES, "-m", MEMORY]);
    command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"]);
    command.args(["-device", &format!("isa-debug-exit,iobase={EXIT_PORT:#x},iosize=1")]);
    command.arg("-kernel").arg(kernel).arg("-initrd").arg(image).args(["-append", KERNEL_ARGUMENTS]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut machine = command.spawn().map_err(|error| format!("qemu-system-x86_64: {error}"))?;
    let console = machine.stdout.take().expect("the output was piped");

    let (lines, received) = mpsc::channel();
    let reader = thread::spawn(move || {
        for line in BufReader::new(console).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            println!("  | {line}");
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    let outcome = wait(&mut machine, RUN_LIMIT);
    reader.join().map_err(|_| "the reader of the console panicked")?;
    // The image would be the largest remaining file in `target/rdma-guest`.
    std::fs::remove_file(image).map_err(|error| format!("{}: {error}", image.display()))?;
    outcome.map(|()| received.into_iter().collect())
}

fn wait(machine: &mut Child, limit: Duration) -> Result<(), String> {
    let start = Instant::now();
    loop {
        let ended = machine.try_wait().map_err(|error| format!("qemu-system-x86_64: {error}"))?;
        match ended.map(|status| status.code()) {
            Some(Some(STATUS_PASSED)) => return Ok(()),
            Some(Some(3)) => return Err("the program in the guest failed; its console output is above".to_owned()),
            Some(Some(0)) => return Err("the guest exited without a verdict: its kernel or /init died".to_owned()),
            Some(code) => return Err(format!("qemu-system-x86_64 ended with {code:?}")),
            None if start.elapsed() > limit => {
                let killed = machine.kill().and_then(|()| machine.wait());
                killed.map_err(|error| format!("qemu-system-x86_64 cannot be killed: {error}"))?;
                return Err(format!("the guest did not end within {} s and was killed", limit.as_secs()));
            }
            None => thread::sleep(POLL),
        }
    }
}
