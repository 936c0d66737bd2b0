//! Clients that do what they must not: each is refused by name or closed, and the role goes on.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::Bytes;
use pushdown::{
    AREA_BYTES, NOTICE_BYTES_MAX, ProcessorFeatures, ProgramElsewhere, RELEASE, RoleHello, RoleNotice, RoleRequest,
    VERSION,
};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SocketAddrUnix, SocketFlags, connect, recv};

use crate::client::show;
use crate::role::ExecutorsRole;
use crate::settings::ExecutorsSettings;
use crate::socket::{send_with, socket_of_messages};
use crate::strangers::STRANGERS_MAX;

/// Something that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A role whose executors end at once: their program is another one.
fn role(folder: &tempfile::TempDir) -> (ExecutorsRole, PathBuf) {
    let socket = folder.path().join("role");
    let mut settings = ExecutorsSettings::new(socket.clone(), "/bin/true".into());
    // So that the tests need no rights.
    (settings.has_namespaces, settings.memory_bytes, settings.processor_percent) = (false, None, None);
    (ExecutorsRole::start(settings).expect("it needs nothing"), socket)
}

fn client(socket: &Path) -> OwnedFd {
    let client = socket_of_messages(SocketFlags::CLOEXEC).expect("a socket");
    set_socket_timeout(&client, Timeout::Recv, Some(PATIENCE)).expect("a time");
    connect(&client, &SocketAddrUnix::new(socket).expect("a path")).expect("the role listens");
    client
}

/// What the role says; `None` if it has closed the connection.
fn answer(client: &OwnedFd) -> Option<RoleNotice> {
    let mut bytes = vec![0; NOTICE_BYTES_MAX];
    match recv(client, &mut bytes[..], RecvFlags::empty()) {
        Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET) => None,
        Ok((_, count)) => Some(RoleNotice::decode(Bytes::copy_from_slice(&bytes[..count])).expect("well-formed")),
        Err(error) => panic!("no answer: {error}"),
    }
}

fn area(bytes: u64, seals: SealFlags) -> OwnedFd {
    let file = memfd_create("area", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&file, bytes).expect("its size");
    fcntl_add_seals(&file, seals).expect("its seals");
    file
}

fn refused(socket: &Path, message: &[u8], files: &[BorrowedFd<'_>]) -> String {
    let client = client(socket);
    send_with(&client, message, files).expect("the role is there");
    match answer(&client) {
        Some(RoleNotice::Refused(reason)) => {
            assert_eq!(answer(&client), None, "the connection is closed");
            reason
        }
        other => panic!("it is not refused: {other:?}"),
    }
}

#[test]
fn a_hello_that_does_not_hold_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_role, socket) = role(&folder);
    let hello = RoleRequest::hello(1).encode();
    let good = area(AREA_BYTES as u64, SealFlags::SHRINK);
    let (one, _other) = UnixStream::pair().expect("sockets");
    let one = OwnedFd::from(one);
    let with = |features, release: &str, area_version| {
        let hello = RoleHello { area_version, features, release: release.to_owned(), ..RoleHello::of_this_build(1) };
        RoleRequest::Hello(hello, None)
    };
    let of_root = ProgramElsewhere { user: 0, group: 0, process: 1, name: "far".to_owned() };
    let of_root = RoleRequest::Hello(RoleHello::of_this_build(1), Some(of_root)).encode();
    let none = ProcessorFeatures::default();
    let files = [good.as_fd(), one.as_fd()];
    let (unsealed, short) = (area(AREA_BYTES as u64, SealFlags::GROW), area(4096, SealFlags::SHRINK));
    let mut later = hello.to_vec();
    later[8] = 200;
    for (message, files, named) in [
        (&b"GET / HTTP/1.1"[..], &files[..], "malformed"),
        (&hello[..hello.len() - 1], &files, "malformed"),
        (&[&hello[..], b"x"].concat(), &files, "malformed"),
        (&later, &files, "upgrade the role"),
        (&with(none, RELEASE, VERSION + 1).encode(), &files, "upgrade the role"),
        (&with(none, "0.0.1", VERSION).encode(), &files, "same release"),
        (&with(ProcessorFeatures::from_bits(u64::MAX), RELEASE, VERSION).encode(), &files, "processors lack"),
        (&RoleRequest::hello(17).encode(), &files, "the role allows"),
        (&of_root, &files, "executors of root"),
        (&hello, &[], "0 descriptors"),
        (&hello, &[good.as_fd()], "1 descriptors"),
        (&hello, &[good.as_fd(), one.as_fd(), one.as_fd()], "3 descriptors"),
        (&hello, &[good.as_fd(); 20], "descriptors"),
        (&hello, &[unsealed.as_fd(), one.as_fd()], "can shrink"),
        (&hello, &[short.as_fd(), one.as_fd()], "another size"),
        (&hello, &[one.as_fd(), good.as_fd()], "no memory"),
        (&hello, &[good.as_fd(), good.as_fd()], "no stream socket"),
    ] {
        let reason = refused(&socket, message, files);
        assert!(reason.contains(named), "{named}: {reason}");
    }
    assert!(show(&socket).expect("it goes on").executors.is_empty());
}

#[test]
fn an_executor_that_ends_at_once_is_reported_with_its_status() {
    let folder = tempfile::tempdir().expect("a folder");
    let (role, socket) = role(&folder);
    let client = client(&socket);
    let (one, _other) = UnixStream::pair().expect("sockets");
    let (area, one) = (area(AREA_BYTES as u64, SealFlags::SHRINK), OwnedFd::from(one));
    send_with(&client, &RoleRequest::hello(1).encode(), &[area.as_fd(), one.as_fd()]).expect("the role is there");
    assert!(matches!(answer(&client), Some(RoleNotice::Started { process, is_elsewhere: false }) if process > 0));
    // The program is another one, which returns.
    assert_eq!(answer(&client), Some(RoleNotice::Ended("its program ended".to_owned())));
    assert_eq!(answer(&client), None);
    assert!(role.view().executors.is_empty());
}

#[test]
fn silent_connections_give_way_and_keep_nobody_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_role, socket) = role(&folder);
    let silent: Vec<OwnedFd> = (0..4 * STRANGERS_MAX).map(|_| client(&socket)).collect();
    assert!(show(&socket).expect("it answers others").executors.is_empty());
    assert_eq!(answer(&silent[0]), None, "the oldest was closed");
    drop(silent);
    assert!(show(&socket).is_ok());
}

#[test]
fn a_second_role_at_a_socket_is_refused_and_an_ended_ones_is_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let (role, socket) = role(&folder);
    let mut settings = ExecutorsSettings::new(socket.clone(), "/bin/true".into());
    (settings.has_namespaces, settings.memory_bytes, settings.processor_percent) = (false, None, None);
    let error = ExecutorsRole::start(settings.clone()).map(drop).expect_err("one is there").to_string();
    assert!(error.contains("another process listens"), "{error}");
    assert!(role.stop(), "in order");
    drop(role);
    assert!(!socket.exists(), "its file goes with it");
    // As a role that was killed leaves it.
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("a path"));
    let role = ExecutorsRole::start(settings).expect("nobody listens");
    assert!(show(&socket).is_ok() && role.stop());
}

#[test]
fn a_role_without_its_program_or_in_a_missing_folder_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    for (socket, program) in [("role", "/nonexistent/heddle-executor"), ("missing/role", "/bin/true")] {
        let mut settings = ExecutorsSettings::new(folder.path().join(socket), program.into());
        (settings.has_namespaces, settings.memory_bytes, settings.processor_percent) = (false, None, None);
        let error = ExecutorsRole::start(settings).map(drop).expect_err("it is not there").to_string();
        assert!(error.contains(program) || error.contains(socket), "{error}");
    }
}
