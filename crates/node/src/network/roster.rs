//! Which orderers a network on Raft has: those that it was made with, until that changes. Then `orderers.json` in its directory says so:
//! `{"numbers": [2, 3, 4], "next": 5}`.
//!
//! The group's own log decides who is a member; this file says which processes are to run, and is written before one is added, and
//! after one was removed. A number is used once.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::layout::{orderer_data, orderer_name};
use super::{NodeError, write};

const FILE: &str = "orderers.json";

/// The orderers of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Roster {
    /// Their numbers, ascending; one at least.
    pub numbers: Vec<u64>,
    /// The number of the next one that is added.
    pub next: u64,
    /// Whether they are not those that the network was made with.
    #[serde(skip)]
    pub has_changed: bool,
}

impl Roster {
    /// The orderers of the network in a directory, which was made with so many.
    ///
    /// # Errors
    /// [`NodeError::File`].
    pub fn load(network: &Path, count: usize) -> Result<Roster, NodeError> {
        let path = network.join(FILE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let count = count as u64;
                return Ok(Roster { numbers: (1..=count).collect(), next: count + 1, has_changed: false });
            }
            Err(error) => return Err(NodeError::file("reading", &path)(error)),
        };
        let strange = |reason: String| NodeError::file("reading", &path)(std::io::Error::other(reason));
        let roster: Roster = serde_json::from_slice(&bytes).map_err(|error| strange(error.to_string()))?;
        let is_ascending = roster.numbers.windows(2).all(|pair| pair[0] < pair[1]);
        if !is_ascending
            || roster.numbers.first().is_none_or(|first| *first == 0)
            || roster.numbers.last() >= Some(&roster.next)
        {
            return Err(strange("its numbers do not ascend from 1 to below `next`".to_owned()));
        }
        Ok(Roster { has_changed: true, ..roster })
    }

    /// Writes it down.
    ///
    /// # Errors
    /// [`NodeError::File`].
    pub fn store(&self, network: &Path) -> Result<(), NodeError> {
        let text = serde_json::to_string(self).expect("it has a JSON form");
        write(&network.join(FILE), (text + "\n").as_bytes())
    }

    /// The name of each orderer's process, and its data directory in that of its network.
    pub fn places<'a>(&'a self, network: &'a Path) -> impl Iterator<Item = (String, PathBuf)> + 'a {
        let name = |number: u64| orderer_name(number as usize - 1);
        self.numbers.iter().map(move |number| (name(*number), network.join(orderer_data(*number))))
    }

    /// When that of a network was written, if it was.
    pub fn written(network: &Path) -> Option<SystemTime> {
        std::fs::metadata(network.join(FILE)).and_then(|file| file.modified()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orderers_are_those_of_the_beginning_until_somebody_says_otherwise() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let first = Roster::load(folder.path(), 3).expect("there is none");
        assert_eq!(first, Roster { numbers: vec![1, 2, 3], next: 4, has_changed: false });
        let changed = Roster { numbers: vec![2, 3, 4], next: 5, has_changed: true };
        changed.store(folder.path()).expect("it can be written");
        let places: Vec<(String, PathBuf)> = changed.places(Path::new("net")).collect();
        let place = |number| (format!("orderer-{number}"), PathBuf::from(format!("net/orderers/{number}")));
        assert_eq!(places, [place(2), place(3), place(4)], "a removed one's folder is not the group's any more");
        assert_eq!(Roster::load(folder.path(), 3).expect("it is there"), changed);
        for wrong in
            ["", "{}", r#"{"numbers":[],"next":1}"#, r#"{"numbers":[2,1],"next":3}"#, r#"{"numbers":[0],"next":3}"#]
        {
            std::fs::write(folder.path().join(FILE), wrong).expect("it can be written");
            assert!(Roster::load(folder.path(), 3).is_err(), "{wrong}");
        }
        std::fs::write(folder.path().join(FILE), r#"{"numbers":[1,5],"next":5}"#).expect("it can be written");
        assert!(Roster::load(folder.path(), 3).is_err(), "the next number is taken");
    }
}
