//! Harness of the messages between ordering nodes on Sift; see [`base::fuzz`].

use base::Bytes;
use base::fuzz::{Shape, Target, authenticated};

use super::message::{Answer, Command, Mark, Reign};
use crate::Term;

/// The targets of this module.
pub const TARGETS: &[Target] = &[Target { name: "consensus-sift-messages", shape: Shape::Bytes, run: messages, seeds }];

fn seeds() -> Vec<Vec<u8>> {
    let reign = Reign { term: Term(3), holder: 4 };
    let entries = vec![Bytes::from_static(b"one"), Bytes::new(), Bytes::from_static(b"three")];
    let commands = [
        Command::Look,
        Command::Fence { leader: 2 },
        Command::Marks { from: 4, count: 5 },
        Command::Read { from: 6, bytes: 7 },
        Command::Align { position: 10, entries: entries.clone() },
        Command::Append { position: 11, safe: 10, entries: entries.clone() },
    ];
    let answers = [
        Answer::Is { promised: Term(1), adopted: Term(2), height: 3 },
        Answer::Marks(vec![1, Mark::MAX]),
        Answer::Entries(entries),
        Answer::Holds { height: 4, durable: 3 },
    ];
    let commands = commands.into_iter().map(|command| command.encode(reign).concat().to_vec());
    commands.chain(answers.into_iter().map(|answer| answer.encode().concat().to_vec())).collect()
}

/// What decodes has that one encoding.
fn messages(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    if let Ok((reign, command)) = authenticated(input, || Command::decode(bytes.clone())) {
        assert_eq!(command.encode(reign).concat(), bytes);
    }
    if let Ok(answer) = authenticated(input, || Answer::decode(bytes.clone())) {
        assert_eq!(answer.encode().concat(), bytes);
    }
}
