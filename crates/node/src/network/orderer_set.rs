//! The orderer set of a network on Raft. At first it consists of the orderers with which the network was created. After
//! a change, `orderers.json` in the network's directory holds the set: `{"numbers": [2, 3, 4], "next": 5}`.
//!
//! The group's log decides which orderers are members. This file decides which orderer processes run: a number is
//! written before its orderer is admitted, and deleted after the orderer was removed. A number is never reused.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::layout::{orderer_data, orderer_name};
use super::{NodeError, write};

const ORDERERS_FILE: &str = "orderers.json";

/// The orderers of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OrdererSet {
    /// Their numbers, ascending; at least one.
    pub numbers: Vec<u64>,
    /// The number of the next orderer to be added.
    pub next: u64,
    /// Whether they differ from those that the network was created with.
    #[serde(skip)]
    pub has_changed: bool,
}

impl OrdererSet {
    /// The orderers of the network in a directory, which was created with `count` orderers.
    ///
    /// # Errors
    /// [`NodeError::File`].
    pub fn load(network: &Path, count: usize) -> Result<OrdererSet, NodeError> {
        let path = network.join(ORDERERS_FILE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let count = count as u64;
                return Ok(OrdererSet { numbers: (1..=count).collect(), next: count + 1, has_changed: false });
            }
            Err(error) => return Err(NodeError::file("reading", &path)(error)),
        };
        let strange = |reason: String| NodeError::file("reading", &path)(std::io::Error::other(reason));
        let set: OrdererSet = serde_json::from_slice(&bytes).map_err(|error| strange(error.to_string()))?;
        let is_ascending = set.numbers.windows(2).all(|pair| pair[0] < pair[1]);
        if !is_ascending || set.numbers.first().is_none_or(|first| *first == 0) || set.numbers.last() >= Some(&set.next)
        {
            return Err(strange("its numbers do not ascend from 1 to below `next`".to_owned()));
        }
        Ok(OrdererSet { has_changed: true, ..set })
    }

    /// Writes the set to the network's directory.
    ///
    /// # Errors
    /// [`NodeError::File`].
    pub fn store(&self, network: &Path) -> Result<(), NodeError> {
        let text = serde_json::to_string(self).expect("it has a JSON form");
        write(&network.join(ORDERERS_FILE), (text + "\n").as_bytes())
    }

    /// The name of each orderer's process, and its data directory within the network's.
    pub fn folders<'a>(&'a self, network: &'a Path) -> impl Iterator<Item = (String, PathBuf)> + 'a {
        let name = |number: u64| orderer_name(number as usize - 1);
        self.numbers.iter().map(move |number| (name(*number), network.join(orderer_data(*number))))
    }

    /// When the network's file was written, if there is one.
    pub fn modified_at(network: &Path) -> Option<SystemTime> {
        std::fs::metadata(network.join(ORDERERS_FILE)).and_then(|file| file.modified()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orderers_are_those_of_the_beginning_until_somebody_says_otherwise() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let first = OrdererSet::load(folder.path(), 3).expect("there is none");
        assert_eq!(first, OrdererSet { numbers: vec![1, 2, 3], next: 4, has_changed: false });
        let changed = OrdererSet { numbers: vec![2, 3, 4], next: 5, has_changed: true };
        changed.store(folder.path()).expect("it can be written");
        let places: Vec<(String, PathBuf)> = changed.folders(Path::new("net")).collect();
        let place = |number| (format!("orderer-{number}"), PathBuf::from(format!("net/orderers/{number}")));
        assert_eq!(places, [place(2), place(3), place(4)], "a removed one's folder is not the group's any more");
        assert_eq!(OrdererSet::load(folder.path(), 3).expect("it is there"), changed);
        for wrong in
            ["", "{}", r#"{"numbers":[],"next":1}"#, r#"{"numbers":[2,1],"next":3}"#, r#"{"numbers":[0],"next":3}"#]
        {
            std::fs::write(folder.path().join(ORDERERS_FILE), wrong).expect("it can be written");
            assert!(OrdererSet::load(folder.path(), 3).is_err(), "{wrong}");
        }
        std::fs::write(folder.path().join(ORDERERS_FILE), r#"{"numbers":[1,5],"next":5}"#).expect("it can be written");
        assert!(OrdererSet::load(folder.path(), 3).is_err(), "the next number is taken");
    }
}
