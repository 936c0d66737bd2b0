//! Tests private data between organisations whose roles are separate processes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use identity::sha256;
use node::ProcessRole;

use crate::support::chaincode::{
    Call, Definition, FOLLOW_TIMEOUT, ListeningChaincode, TestChaincode, administrators, call, client, listener, port,
};
use crate::support::processes::Role;
use crate::support::{run, text};

/// The files below a folder that contain some bytes.
fn files_with(folder: &Path, bytes: &[u8]) -> Vec<PathBuf> {
    let (mut folders, mut found) = (vec![folder.to_path_buf()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let entry = entry.expect("an entry");
            match entry.file_type().expect("a type") {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() => {
                    let content = std::fs::read(entry.path()).expect("a file");
                    if content.windows(bytes.len()).any(|window| window == bytes) {
                        found.push(entry.path());
                    }
                }
                _ => {}
            }
        }
    }
    found
}

/// Waits until an organisation's peer has a private value.
async fn has(dir: &Path, number: usize, key: &str, value: &str) {
    let (user, start) = (client(dir, number).await, Instant::now());
    loop {
        let found = call("assets", &["GetPrivate", "shared", key]).evaluate(&user).await;
        match found {
            Ok(found) if found == value => return,
            other => assert!(start.elapsed() < FOLLOW_TIMEOUT, "org{number} has not got {key}: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn private_data_goes_over_mutual_tls_to_members_alone_and_to_a_member_that_was_down() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let (socket, address) = listener();
    let (chaincode, _hangs) = TestChaincode::new("assets");
    let _running = ListeningChaincode::start(chaincode, socket);
    let config = dir.with_extension("toml");
    let sections = format!(
        "[contracts]\nassets = {{}}\n\n[pool]\nform = \"monolithic\"\n\n[[chaincodes]]\nname = \"assets\"\naddress = \"{address}\"\n"
    );
    std::fs::write(&config, sections).expect("it can be written");
    let (shown, config) = (dir.display().to_string(), config.display().to_string());
    let (links, gateway, orderer) = (port(0), port(100), port(101));
    let output = run(&[
        &["plan", "--orgs", "3", "--dir", &shown, "--host", "127.0.0.1", "--config", &config][..],
        &["--links-port", &links, "--gateway-port", &gateway, "--orderer-port", &orderer, "--metrics-port", &port(102)],
    ]
    .concat());
    assert!(output.status.success(), "{}", text(&output));

    let nodes = dir.join("nodes");
    let begin = |name: &str| {
        let role = match name.split('-').next() {
            Some("compute") => ProcessRole::Compute,
            Some("gateway") => ProcessRole::Gateway,
            _ => ProcessRole::Orderer,
        };
        Role::begin(role, &nodes.join(name))
    };
    let names = "orderer compute-org1 compute-org2 compute-org3 gateway-org1 gateway-org2 gateway-org3".split(' ');
    let mut running: Vec<(&str, Role)> = names.map(|name| (name, begin(name))).collect();
    running.iter_mut().for_each(|(_, role)| role.wait_until_ready());
    let definition = Definition {
        channel: "mychannel",
        name: "assets",
        package: "",
        policy: "OR('Org1MSP.peer','Org2MSP.peer','Org3MSP.peer')",
        collection: Some(("shared", "OR('Org1MSP.member','Org2MSP.member')")),
    };
    definition.bring(&administrators(&dir).await).await;

    let secret = |number: u64| format!("secret-{}", identity::hex::encode(sha256([&number.to_be_bytes()[..]])));
    let write = async |key: &str, value: &str| {
        let args = ["PutPrivate", "shared", key];
        let own = ["Org1MSP"];
        let write = Call { value: Some(value), endorsing: &own, ..call("assets", &args) };
        write.submit(&client(&dir, 1).await).await.unwrap_or_else(|status| panic!("{key}: {status}"));
    };
    let (first, second) = (secret(1), secret(2));
    write("first", &first).await;
    has(&dir, 1, "first", &first).await;
    has(&dir, 2, "first", &first).await;

    // A member that is down while a value is written gets it from the other member afterwards.
    running.retain(|(name, _)| *name != "compute-org2");
    write("second", &second).await;
    has(&dir, 1, "second", &second).await;
    let mut back = begin("compute-org2");
    back.wait_until_ready();
    running.push(("compute-org2", back));
    has(&dir, 2, "second", &second).await;

    // The stranger has the hash of what it has not.
    let stranger = client(&dir, 3).await;
    for (key, value) in [("first", &first), ("second", &second)] {
        let start = Instant::now();
        while let found = call("assets", &["GetPrivateHash", "shared", key]).evaluate(&stranger).await
            && found.as_deref().ok() != Some(&sha256([value.as_bytes()])[..])
        {
            assert!(start.elapsed() < FOLLOW_TIMEOUT, "org3 has not got the hash of {key}: {found:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let found = call("assets", &["GetPrivate", "shared", key]).evaluate(&stranger).await;
        assert!(found.as_deref().map_or(true, <[u8]>::is_empty), "{found:?}");
    }
    drop(running);
    for value in [&first, &second] {
        for member in ["compute-org1", "compute-org2"] {
            assert!(!files_with(&nodes.join(member), value.as_bytes()).is_empty(), "{member} has {value} on its disk");
        }
        for other in ["orderer", "compute-org3", "gateway-org1", "gateway-org2", "gateway-org3"] {
            assert_eq!(files_with(&nodes.join(other), value.as_bytes()), Vec::<PathBuf>::new(), "{other}");
        }
    }
}
