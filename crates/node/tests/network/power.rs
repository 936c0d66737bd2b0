//! What a loss of power leaves of a network's files.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use base::durable::power::{Names, survivors};
use base::durable::{Step, recorded};
use node::config::{Config, Engine, organization_names};
use node::plan::Placement;
use node::{Network, NodeError, enlist};

fn config() -> Config {
    let mut config = Config::default();
    config.network.organizations = organization_names(2);
    config
}

/// Does work with a network on this thread alone, and gives what it wrote.
fn written<T>(work: impl Future<Output = T>) -> (T, Vec<Step>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    recorded(|| runtime.block_on(work))
}

/// The files of a folder and of those below it.
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

/// Power was lost ten seconds after `heddle up` had made a network: `heddle.toml`, `genesis.block`, keys and certificates were files of
/// no bytes. What had been acknowledged meanwhile could not be reached any more, and the next start spoke of another ordering engine.
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
    for names in [Names::Lost, Names::Kept] {
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

/// Power was lost seconds after `heddle orderer add` had succeeded: "orderers.json: EOF while parsing", and the network did not start.
#[test]
fn an_orderer_is_on_disk_before_the_roster_names_it() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut config = config();
    config.ordering.engine = Engine::Raft;
    let (network, _) = written(async { Network::create(folder.path(), &config).await.expect("a network") });
    let host = IpAddr::from([127, 0, 0, 1]);
    network.plan(&Placement::Hosts { default: host, by_name: BTreeMap::new() }).expect("a plan");
    drop(network);
    let (enlisted, steps) = recorded(|| enlist::enlist(folder.path(), Some((host, 9000).into())));
    let enlisted = enlisted.expect("another orderer");
    let roster = folder.path().join("orderers.json");
    let whole = survivors(&steps, Names::Lost);
    assert!(whole.contains_key(&roster));
    assert!(whole.keys().filter(|path| path.starts_with(&enlisted.folder)).count() > 5, "{:?}", whole.keys());
    for names in [Names::Lost, Names::Kept] {
        for count in 0..steps.len() {
            let left = survivors(&steps[..count], names);
            let empty = left.iter().find(|(path, bytes)| whole.contains_key(*path) && bytes.is_empty());
            assert_eq!(empty, None, "{names:?} after {count} steps");
            if left.contains_key(&roster) {
                let missing = whole.iter().find(|(path, bytes)| left.get(*path) != Some(bytes));
                assert_eq!(missing.map(|(path, _)| path), None, "{names:?}: the roster names it after {count} steps");
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
    for (path, bytes) in survivors(&steps[..steps.len() / 2], Names::Kept) {
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
