//! The state of a network's files after a power failure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use base::durable::power::{UnsyncedNames, survivors};
use base::durable::{DurabilityStep, recorded};
use node::config::{HeddleConfig, OrderingEngine, organization_names};
use node::plan::Placement;
use node::{Network, NodeError, membership};

fn config() -> HeddleConfig {
    let mut config = HeddleConfig::default();
    config.network.organizations = organization_names(2);
    config
}

/// Runs work with a network on this thread alone, and returns the writes that it made.
fn written<T>(work: impl Future<Output = T>) -> (T, Vec<DurabilityStep>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    recorded(|| runtime.block_on(work))
}

/// Reads the files of a folder and of the folders below it.
fn files(folder: &Path, into: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, into);
        } else {
            into.insert(path.clone(), std::fs::read(&path).expect("it can be read"));
        }
    }
}

/// Regression: power failed ten seconds after `heddle up` had made a network: `heddle.toml`, `genesis.block`, keys and
/// certificates were empty files. Writes acknowledged meanwhile could not be reached any more, and the next start
/// reported another ordering engine.
#[test]
fn a_network_is_on_disk_when_its_creation_returns_and_is_no_network_before() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (network, steps) = written(async { Network::create(folder.path(), &config()).await.expect("a network") });
    drop(network);
    let mut made = BTreeMap::new();
    files(folder.path(), &mut made);
    // These two are the data directory's own.
    let made: BTreeMap<_, _> =
        made.into_iter().filter(|(path, _)| !path.ends_with("VERSION") && !path.ends_with("LOCK")).collect();
    let genesis = folder.path().join("genesis.block");
    assert!(made.contains_key(&genesis) && made.len() > 40, "{} files", made.len());
    for names in [UnsyncedNames::Lost, UnsyncedNames::Kept] {
        assert_eq!(survivors(&steps, names), made, "{names:?}: all of it is on disk");
        for count in 0..steps.len() {
            let left = survivors(&steps[..count], names);
            let empty = left.iter().find(|(path, bytes)| made.contains_key(*path) && bytes.is_empty());
            assert_eq!(empty, None, "{names:?} after {count} steps");
            if left.contains_key(&genesis) {
                let missing = made.iter().find(|(path, bytes)| left.get(*path) != Some(bytes));
                assert_eq!(missing.map(|(path, _)| path), None, "{names:?}: there is a network after {count} steps");
            }
        }
    }
}

/// Regression: power failed seconds after `heddle orderer add` had succeeded: "orderers.json: EOF while parsing", and
/// the network did not start.
#[test]
fn an_orderer_is_on_disk_before_the_orderer_set_names_it() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut config = config();
    config.ordering.engine = OrderingEngine::Raft;
    let (network, _) = written(async { Network::create(folder.path(), &config).await.expect("a network") });
    let host = IpAddr::from([127, 0, 0, 1]);
    network.plan(&Placement::Hosts { default: host, by_name: BTreeMap::new() }).expect("a plan");
    drop(network);
    let (added, steps) = recorded(|| membership::add_orderer(folder.path(), Some((host, 9000).into())));
    let added = added.expect("another orderer");
    let file = folder.path().join("orderers.json");
    let whole = survivors(&steps, UnsyncedNames::Lost);
    assert!(whole.contains_key(&file));
    assert!(whole.keys().filter(|path| path.starts_with(&added.folder)).count() > 5, "{:?}", whole.keys());
    for names in [UnsyncedNames::Lost, UnsyncedNames::Kept] {
        for count in 0..steps.len() {
            let left = survivors(&steps[..count], names);
            let empty = left.iter().find(|(path, bytes)| whole.contains_key(*path) && bytes.is_empty());
            assert_eq!(empty, None, "{names:?} after {count} steps");
            if left.contains_key(&file) {
                let missing = whole.iter().find(|(path, bytes)| left.get(*path) != Some(bytes));
                assert_eq!(
                    missing.map(|(path, _)| path),
                    None,
                    "{names:?}: the orderer set names it after {count} steps"
                );
            }
        }
    }
}

#[test]
fn a_creation_that_lost_its_power_is_begun_again() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (network, steps) = written(async { Network::create(folder.path(), &config()).await.expect("a network") });
    drop(network);
    let again = tempfile::tempdir().expect("a temporary directory");
    for (path, bytes) in survivors(&steps[..steps.len() / 2], UnsyncedNames::Kept) {
        let path = again.path().join(path.strip_prefix(folder.path()).expect("it lies there"));
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
        std::fs::write(path, bytes).expect("it can be written");
    }
    std::fs::copy(folder.path().join("VERSION"), again.path().join("VERSION")).expect("it is there");
    let (network, _) = written(async { Network::open_or_create(again.path(), Some(&config())).await });
    assert_eq!(network.expect("a network").config().network, config().network);
}

#[test]
fn a_network_whose_files_an_earlier_release_left_empty_says_so() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (network, _) = written(async { Network::create(folder.path(), &config()).await.expect("a network") });
    drop(network);
    for file in ["organizations/created.toml", "genesis.block"] {
        std::fs::write(folder.path().join(file), "").expect("it can be written");
        let (opened, _) = written(async { Network::open(folder.path()).await });
        let error = opened.expect_err("it cannot be opened");
        assert!(matches!(&error, NodeError::Unfinished { file: named, .. } if named.ends_with(file)), "{error}");
    }
}
