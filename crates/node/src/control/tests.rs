use std::sync::Arc;

use async_trait::async_trait;
use base::rt::CancellationToken;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixListener;

use super::budget::{MemorySettings, VacatedNodes};
use super::*;
use crate::control::protocol::socket_path;
use crate::process::file::{DonorFile, Secret};

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[test]
fn a_budget_is_kept_until_the_configuration_says_something_else() {
    let folder = temporary();
    let load = |configured| {
        let kept = budget::load(folder.path(), configured, 1 << 20);
        kept.map(|MemorySettings { bytes, vacated, joined }| (bytes, vacated, joined.len()))
    };
    let (none, vacated) = (VacatedNodes::new(), VacatedNodes::from(["tcp:10.0.0.1:7301".to_owned()]));
    assert_eq!(load(64 << 20).expect("nothing was set"), (64 << 20, none, 0));
    let joined = vec![DonorFile { address: "tcp:10.0.0.2:7301".to_owned(), token: Secret::random() }];
    let settings = MemorySettings { bytes: 16 << 20, vacated: vacated.clone(), joined };
    budget::store(folder.path(), 64 << 20, settings).expect("it can be written");
    assert_eq!(load(64 << 20).expect("it is there"), (16 << 20, vacated.clone(), 1));
    assert_eq!(load(32 << 20).expect("the newer word counts"), (32 << 20, vacated, 1));
    // As the last release wrote it.
    let former = "bytes = 16777216\nconfigured_bytes = 67108864\nvacated = []\n";
    std::fs::write(folder.path().join(budget::BUDGET_FILE), former).expect("it can be written");
    assert_eq!(load(64 << 20).expect("it is there"), (16 << 20, VacatedNodes::new(), 0));
    let smaller = budget::load(folder.path(), 64 << 20, 32 << 20).expect_err("less than a section");
    assert!(smaller.to_string().contains("less than one section"), "{smaller}");
    std::fs::write(folder.path().join(budget::BUDGET_FILE), "bytes = many\n").expect("it can be written");
    let damaged = load(64 << 20).expect_err("no budget").to_string();
    assert!(damaged.contains(budget::BUDGET_FILE) && damaged.contains("remove it"), "{damaged}");
}

#[tokio::test]
async fn who_does_not_run_is_named() {
    let folder = temporary();
    let absent = request_memory(folder.path(), &ControlRequest::Memory {}).await.expect_err("nobody listens");
    assert!(absent.to_string().contains(&folder.path().display().to_string()), "{absent}");
    assert!(matches!(absent, ControlError::Unreachable { .. }));
}

#[tokio::test]
async fn a_long_path_is_no_obstacle_and_a_strange_answer_is_none() {
    let folder = temporary();
    let deep = folder.path().join("a".repeat(120));
    std::fs::create_dir(&deep).expect("it can be made");
    let (directory, path) = socket_path(&deep).expect("it is there");
    let listener = UnixListener::bind(path).expect("it is short");
    let answering = tokio::spawn(async move {
        for answer in ["{\"moon\":1}\n", ""] {
            let (mut socket, _) = listener.accept().await.expect("a caller");
            socket.write_all(answer.as_bytes()).await.expect("it listens");
        }
        drop(directory);
    });
    let strange = request_memory(&deep, &ControlRequest::Memory {}).await.expect_err("no report");
    assert!(matches!(strange, ControlError::UnexpectedResponse { .. }), "{strange}");
    let ended = request_memory(&deep, &ControlRequest::SetMemory { bytes: 1 }).await.expect_err("no report");
    assert!(matches!(ended, ControlError::Unreachable { .. }), "{ended}");
    answering.await.expect("no panic");
}

#[test]
fn requests_and_replies_are_lines_that_are_read_back() {
    for (request, line) in [
        (ControlRequest::Memory {}, r#"{"memory":{}}"#),
        (ControlRequest::SetMemory { bytes: 7 }, r#"{"set_memory":{"bytes":7}}"#),
    ] {
        assert_eq!(serde_json::to_string(&request).expect("JSON"), line);
        assert_eq!(serde_json::from_str::<ControlRequest>(line).expect("a request"), request);
    }
    for line in ["", "{}", "{\"memory\":{\"x\":1}}", "{\"set_memory\":{\"bytes\":-1}}", "null"] {
        assert!(serde_json::from_str::<ControlRequest>(line).is_err(), "{line}");
    }
}

struct Fixed;

#[async_trait]
impl ControlHandler for Fixed {
    async fn handle(&self, _: ControlRequest) -> ControlResponse {
        ControlResponse::Busy {}
    }
}

/// Regression: between `bind` and `chmod` the socket had the mode that the umask left it. Now a socket under this name
/// has its final mode from the start, even where an earlier process left a file.
#[tokio::test]
async fn the_socket_is_its_users_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = temporary();
    let place = folder.path().join("node");
    for _ in 0..2 {
        let stop = CancellationToken::new();
        let serving = start(&place, Arc::new(Fixed), stop.clone()).expect("it can listen");
        let mode = std::fs::metadata(place.join(SOCKET)).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(matches!(request_orderer(&place, &ControlRequest::Orderers {}).await, Err(ControlError::Busy)));
        let names: Vec<_> =
            std::fs::read_dir(&place).expect("it is there").flatten().map(|one| one.file_name()).collect();
        assert_eq!(names, [SOCKET], "nothing is left of the way there");
        stop.cancel();
        serving.await.expect("no panic");
        std::fs::write(place.join(SOCKET), "left behind").expect("it can be written");
    }
}
