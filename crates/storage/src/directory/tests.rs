#![allow(clippy::disallowed_methods, reason = "files of tests need not outlive a loss of power")]

use base::ErrorKind;
use base::rt::production::run;

use super::*;

fn write(path: &Path, name: &str, text: &str) {
    std::fs::write(path.join(name), text).expect("the test directory is writable");
}

#[test]
fn new_directory_is_opened_again_and_not_twice_at_once() {
    run(async {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("data");
        let first = DataDirectory::open(&path).await.expect("a new directory opens");
        let error = DataDirectory::open(&path).await.expect_err("the first holder keeps the lock");
        assert!(matches!(error, Error::Locked { .. }) && error.kind() == ErrorKind::Retry, "{error}");
        first.subdirectory("channel").await.expect("a subdirectory is created");
        drop(first);
        DataDirectory::open(&path).await.expect("it opens again when the holder has gone");
        assert_eq!(std::fs::read_to_string(path.join("VERSION")).expect("VERSION is there"), "heddle 1\n");
    });
}

#[test]
fn crash_while_the_version_was_written_leaves_an_openable_directory() {
    run(async {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        write(scratch.path(), "LOCK", "");
        write(scratch.path(), "VERSION.new", "hedd");
        DataDirectory::open(scratch.path()).await.expect("the half-written version is replaced");
    });
}

#[test]
fn other_versions_and_other_programs_directories_are_refused_with_advice() {
    let cases = [
        ("VERSION", "heddle 2\n", "formats up to 1; run the version of heddle that wrote it"),
        ("VERSION", "heddle 0\n", "no longer reads; start with an empty directory"),
        ("VERSION", "PG 16\n", "cannot read; restore the file"),
        ("VERSION", "", "cannot read; restore the file"),
        ("holiday.jpg", "", "not a data directory; choose an empty directory"),
    ];
    for (name, text, expected) in cases {
        run(async {
            let scratch = tempfile::tempdir().expect("a scratch directory");
            write(scratch.path(), name, text);
            let error = DataDirectory::open(scratch.path()).await.expect_err("it is refused");
            assert_eq!(error.kind(), ErrorKind::Rejected);
            assert!(error.to_string().contains(expected), "{error} lacks {expected:?}");
        });
    }
}

#[test]
fn full_disk_is_named_and_asks_for_a_retry() {
    let error = Error::io("appending to", Path::new("/data/blocks"), std::io::ErrorKind::StorageFull.into());
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert_eq!(error.to_string(), "the disk is full (ENOSPC) appending to /data/blocks: free space and try again");
}

#[test]
fn disk_that_is_full_for_the_table_engine_closes_it_and_is_named() {
    let full = || fjall::Error::Io(std::io::ErrorKind::StorageFull.into());
    let error = Error::engine("writing rows", Path::new("/data/tables"), full());
    assert_eq!(error.kind(), ErrorKind::Closed);
    let expected = "closed after a failure (the disk is full (ENOSPC) writing rows /data/tables: free space); \
                    open it again to find out what is on disk";
    assert_eq!(error.to_string(), expected);
    assert_eq!(Error::engine_opening(Path::new("/data/tables"), full()).kind(), ErrorKind::Retry);
}
