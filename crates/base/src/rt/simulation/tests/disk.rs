//! The guarantees of the disk: crashes lose what was not synced, and nothing else.

use crate::rt::disk::Directory;
use crate::rt::simulation::{DiskOperation, Simulation};

#[test]
fn a_crash_loses_unsynced_bytes_and_names_and_never_synced_ones() {
    let (mut lost, mut kept, mut torn, mut vanished) = (0, 0, 0, 0);
    for seed in 0..100 {
        let report = Simulation::new(seed).check(|sim| async move {
            let node = sim.node("peer");
            let written = node.spawn(async {
                let directory = Directory::open("/data").await.expect("the disk works");
                let file = directory.open_file("log", true).expect("the disk works");
                file.write_at(0, &[1; 2000]).expect("there is room");
                file.sync().await.expect("the disk works");
                directory.sync().await.expect("the disk works");
                file.write_at(2000, &[2; 2000]).expect("there is room");
                directory.open_file("unsynced", true).expect("the disk works");
                file
            });
            let stale = written.await.expect("nobody aborts it");
            node.crash();
            assert!(stale.read_at(0, 1).is_err(), "a handle ends with its node's life");
            let read = node.spawn(async {
                let directory = Directory::open("/data").await.expect("the disk works");
                let file = directory.open_file("log", false).expect("its name was synced");
                (file.read_at(0, 9999).expect("readable"), directory.list().expect("readable"))
            });
            read.await.expect("nobody aborts it")
        });
        let (bytes, names) = report.expect("the run succeeds").value;
        assert_eq!(bytes[..2000], [1; 2000], "seed {seed}");
        match bytes[2000..].iter().filter(|byte| **byte == 2).count() {
            0 => lost += 1,
            2000 => kept += 1,
            _ => torn += 1,
        }
        vanished += usize::from(!names.contains(&"unsynced".to_owned()));
    }
    assert!(lost > 10 && kept > 10 && torn > 10, "lost {lost}, kept {kept}, torn {torn}");
    assert!((20..80).contains(&vanished), "{vanished}");
}

#[test]
fn a_rename_survives_a_crash_as_a_whole() {
    for seed in 0..100 {
        let report = Simulation::new(seed).run(|sim| async move {
            let node = sim.node("peer");
            let replaced = node.spawn(async {
                let directory = Directory::open("/").await.expect("the disk works");
                for (name, content) in [("current", b"old"), ("next", b"new")] {
                    let file = directory.open_file(name, true).expect("the disk works");
                    file.write_at(0, content).expect("there is room");
                    file.sync().await.expect("the disk works");
                }
                directory.sync().await.expect("the disk works");
                directory.rename("next", "current").expect("it is there");
            });
            replaced.await.expect("nobody aborts it");
            node.crash();
            let read = node.spawn(async {
                let directory = Directory::open("/").await.expect("the disk works");
                let file = directory.open_file("current", false).expect("one of the two has the name");
                (file.read_at(0, 9).expect("readable"), directory.list().expect("readable").len())
            });
            read.await.expect("nobody aborts it")
        });
        let (content, names) = report.expect("the run succeeds").value;
        assert!((&content[..], names) == (b"old", 2) || (&content[..], names) == (b"new", 1), "seed {seed}");
    }
}

#[test]
fn a_disk_is_full_fails_rots_and_is_replaced_when_told_to() {
    let check = Simulation::new(1).check(|sim| async move {
        let node = sim.node("peer");
        let disk = node.disk();
        let task = node.spawn(async move {
            let directory = Directory::open("/data").await.expect("the disk works");
            let file = directory.open_file("log", true).expect("the disk works");
            file.write_at(0, b"12345").expect("there is room");
            disk.fill();
            assert_eq!(file.write_at(4, b"xy").expect_err("full").kind(), std::io::ErrorKind::StorageFull);
            file.write_at(0, b"abc").expect("writing in place needs no room");
            disk.set_capacity(Some(7));
            file.write_at(5, b"67").expect("there is room");
            assert!(file.truncate(8).is_err());
            disk.set_capacity(None);

            disk.fail_next(DiskOperation::Sync, 1);
            file.sync().await.expect_err("it is to fail");
            file.sync().await.expect("only one is to fail");
            disk.set_failing(true);
            assert!(file.read_at(0, 1).is_err() && directory.sync().await.is_err());
            disk.set_failing(false);

            assert!(disk.flip("/data/log", 1, 0x80) && !disk.flip("/data/log", 99, 1) && !disk.flip("/x", 0, 1));
            assert_eq!(file.read_at(1, 1).expect("readable")[0], b'b' ^ 0x80);
            let before = file.read_at(0, 9).expect("readable");
            let (path, offset) = disk.rot().expect("there is a byte to flip");
            assert_eq!(path, std::path::Path::new("/data/log"));
            let after = file.read_at(0, 9).expect("readable");
            let differing: Vec<_> = (0..7).filter(|at| before[*at] != after[*at]).collect();
            assert_eq!(differing, [offset as usize]);
            directory.remove("log").expect("it is there");
            directory.sync().await.expect("the disk works");
            assert_eq!(disk.used(), 7, "an open file keeps its bytes");
            drop(file);
            assert_eq!(disk.used(), 0);
        });
        task.await.expect("nobody aborts it");
        node.crash();
        node.disk().wipe();
        let list = node.spawn(async { Directory::open("/data").await?.list() });
        assert!(list.await.expect("nobody aborts it").expect("readable").is_empty());
    });
    check.expect("the run succeeds");
}

#[test]
fn a_disk_that_lies_about_syncs_loses_what_was_synced() {
    let lost = (0..20).any(|seed| {
        let run = Simulation::new(seed).run(|sim| async move {
            let node = sim.node("peer");
            node.disk().set_lying(true);
            let written = node.spawn(async {
                let directory = Directory::open("/data").await?;
                let file = directory.open_file("log", true)?;
                directory.sync().await?;
                file.write_at(0, b"12345")?;
                file.sync().await
            });
            written.await.expect("nobody aborts it").expect("the disk says that all is well");
            node.crash();
            let left = node.spawn(async { Directory::open("/data").await?.open_file("log", false)?.len() });
            left.await.expect("nobody aborts it").expect("its name was synced")
        });
        run.expect("the run succeeds").value == 0
    });
    assert!(lost);
}

#[test]
fn a_sync_that_lies_loses_what_a_crash_takes() {
    let lost = (0..20).any(|seed| {
        let report = Simulation::new(seed).run(|sim| async move {
            let node = sim.node("peer");
            node.disk().set_lying(true);
            let written = node.spawn(async {
                let directory = Directory::open("/").await.expect("the disk works");
                let file = directory.open_file("log", true).expect("the disk works");
                file.write_at(0, b"bytes").expect("there is room");
                directory.sync().await.expect("the disk works");
                file.sync().await.expect("it says so");
            });
            written.await.expect("nobody aborts it");
            node.crash();
            let read = node.spawn(async {
                let directory = Directory::open("/").await.expect("the disk works");
                directory.open_file("log", false).expect("names are synced all the same").len().expect("it is open")
            });
            read.await.expect("nobody aborts it")
        });
        report.expect("the run succeeds").value == 0
    });
    assert!(lost);
}
