//! Tests full and read-only disks: checks the messages, and that nothing acknowledged is lost.
//!
//! The test must run as root, since it mounts an in-memory disk.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use base::Bytes;
use gateway::client::GatewayClient;

use crate::support::load::connect;
use crate::support::{Network, run, text};

const MIB: u64 = 1 << 20;
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);

/// An in-memory disk, mounted in a folder until it is dropped.
struct Disk(PathBuf);

impl Disk {
    fn mount(folder: &Path) -> Disk {
        let disk = folder.join("disk");
        std::fs::create_dir(&disk).expect("it can be made");
        let disk = Disk(disk);
        disk.run("mount", &["-t", "tmpfs", "-o", "size=256m", "tmpfs"]);
        disk
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let output = Command::new(program).args(arguments).arg(&self.0).output();
        let output = output.unwrap_or_else(|error| panic!("{program} cannot be run: {error}"));
        assert!(output.status.success(), "{program}: {}; this test must run as root", text(&output));
    }

    /// Makes the disk writable or read-only.
    fn allow(&self, mode: &str) {
        self.run("mount", &["-o", &format!("remount,{mode}")]);
    }

    /// Fills the disk, except for `free` bytes.
    fn fill_but(&self, free: u64) {
        let disk = rustix::fs::statvfs(&self.0).expect("it is mounted");
        let length = (disk.f_bavail * disk.f_frsize).saturating_sub(free);
        let filler = std::fs::OpenOptions::new().create(true).append(true).open(self.0.join("filler"));
        let mut filler = filler.expect("it has room for a name");
        let mut rest = length;
        while rest > 0 {
            let chunk = rest.min(MIB) as usize;
            if std::io::Write::write_all(&mut filler, &vec![1; chunk]).is_err() {
                return;
            }
            rest -= chunk as u64;
        }
    }

    fn empty(&self) {
        std::fs::remove_file(self.0.join("filler")).expect("it is there");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

fn refused(arguments: &[&str], expected: &[&str]) {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", text(&output));
    for part in expected {
        assert!(text(&output).contains(part), "{arguments:?}: {}", text(&output));
    }
}

async fn write(client: &GatewayClient, channel: &str, key: &str) -> Result<(), String> {
    let call = [Bytes::from(key.to_owned()), Bytes::from(format!("value of {key}"))];
    let committed = client.transact(channel, "ycsb", "update", &call).await.map_err(|status| status.to_string())?;
    assert!(committed.commit.is_valid());
    Ok(())
}

async fn check(dir: &Path, keys: &[&str]) {
    let (client, channel) = connect(dir, 1).await.expect("its gateway is ready");
    for key in keys {
        let proposal = client.proposal(&channel, "ycsb", "read", &[Bytes::from((*key).to_owned())]).sign();
        let found = client.evaluate(&proposal).await.expect("it is there");
        assert_eq!(found, format!("value of {key}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_may_not_be_written_is_named_and_what_to_do() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let disk = Disk::mount(folder.path());
    let dir = disk.0.join("network");
    let network = Network::start(&dir, &["--orgs", "1"]);
    let (client, channel) = connect(&dir, 1).await.expect("its gateway is ready");
    write(&client, &channel, "before").await.expect("it is committed");
    network.down();
    disk.allow("ro");
    let (shown, other) = (dir.display().to_string(), disk.0.join("other").display().to_string());
    for form in [&[][..], &["--isolate"]] {
        let expected = [shown.as_str(), "Read-only file system", "must be able to write there"];
        refused(&[&["up", "--bound", "--any-ports", "--dir", &shown], form].concat(), &expected);
    }
    let expected = [other.as_str(), "Read-only file system", "must be able to write there"];
    refused(&["up", "--bound", "--any-ports", "--dir", &other], &expected);
    disk.allow("rw");
    let network = Network::start(&dir, &[]);
    check(&dir, &["before"]).await;
    network.down();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fills_up_is_named_and_loses_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let disk = Disk::mount(folder.path());
    let (dir, config) = (disk.0.join("network"), folder.path().join("heddle.toml"));
    std::fs::write(&config, "[network]\norganizations = [\"Org1\"]\n[storage]\nfree_bytes_min = 16777216\n")
        .expect("ours");
    let network = Network::start(&dir, &["--isolate", "--config", &config.display().to_string()]);
    let (client, channel) = connect(&dir, 1).await.expect("its gateway is ready");
    write(&client, &channel, "before").await.expect("it is committed");
    disk.fill_but(8 * MIB);
    // The free space is checked once a second: none or many writes are acknowledged before one is refused.
    let mut acknowledged = vec!["before"];
    let start = Instant::now();
    let refusal = loop {
        match write(&client, &channel, "meanwhile").await {
            Err(refusal) => break refusal,
            Ok(()) => assert!(start.elapsed() < RECOVERY_TIMEOUT, "nothing is refused"),
        }
        acknowledged.push("meanwhile");
    };
    assert!(refusal.contains("the disk is nearly full") && refusal.contains("16 MiB are needed"), "{refusal}");
    let shown = dir.display().to_string();
    assert!(text(&run(&["status", "--dir", &shown])).contains("the disk is nearly full"));

    disk.fill_but(0);
    let memory = ["peer", "memory", "org1", "--dir", &shown];
    let budget = ["--set", "64MiB"];
    refused(&[&memory[..], &budget].concat(), &["the budget stays as it was", "No space left", "free space"]);
    let other = disk.0.join("other").display().to_string();
    refused(&["up", "--bound", "--any-ports", "--dir", &other], &[&other, "the disk is full", "free space"]);
    check(&dir, &acknowledged).await;

    disk.empty();
    let start = Instant::now();
    while let Err(refusal) = write(&client, &channel, "after").await {
        assert!(start.elapsed() < RECOVERY_TIMEOUT, "{refusal}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let set = run(&[&memory[..], &budget].concat());
    assert!(set.status.success() && text(&set).contains("64 MiB"), "{}", text(&set));
    network.down();
    let verify = run(&["ledger", "verify", "--dir", &shown]);
    assert!(verify.status.success(), "{}", text(&verify));
}
