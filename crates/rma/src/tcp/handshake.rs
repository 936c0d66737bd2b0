//! The handshake: two ends prove to each other that they know the same token, before any other byte is exchanged.
//!
//! 1. The client sends its name, the versions that it speaks ([`wire::hello`]) and a nonce.
//! 2. The host answers with the version that it has chosen, its node number, a nonce of its own, and a proof: a keyed
//!    hash of all bytes sent so far, the ranges of versions included. If the two ends share no version, the answer says
//!    so, and the host ends the connection.
//! 3. The client checks the proof and answers with a proof of its own.
//! 4. The host answers whether it accepts the connection.
//!
//! The messages of steps 1 and 2 have the same length in every version. The token itself is never sent. Over TLS the
//! proofs also cover the TLS session, so that an attacker cannot relay them to another session. A host answers an
//! unknown name as it answers a known one, but its proof uses a random token.

use aws_lc_rs::hmac;
use wire::hello::{self, Hello, HelloAnswer};
use wire::{Reader, u32_at};

use super::wire::PROTOCOL_VERSIONS;
use crate::{Credential, Error, NodeId, Token};

const PURPOSE: [u8; 8] = *b"HDLRMATC";
/// Bytes of a name.
pub const NAME_BYTES_MAX: usize = 64;
/// `hello:16 | name_bytes:u32 le | nonce:32 | name:64`
pub const HELLO_BYTES: usize = hello::HELLO_BYTES + 4 + 32 + NAME_BYTES_MAX;
/// `magic:8 | answer:12 | node:u32 le | nonce:32 | proof:32`
pub const CHALLENGE_BYTES: usize = 8 + hello::ANSWER_BYTES + 4 + 32 + 32;
/// `proof:32`
pub const PROOF_BYTES: usize = 32;
/// `verdict:u32 le | 0:u32`
pub const VERDICT_BYTES: usize = 8;

pub const WELCOME: u32 = 0;
pub const REJECTED: u32 = 1;
pub const CROWDED: u32 = 2;

const HOST_LABEL: &[u8] = b"heddle rma tcp host";
const CLIENT_LABEL: &[u8] = b"heddle rma tcp client";

/// What both ends have received: the subject of the proofs.
struct HandshakeTranscript<'a> {
    hello: &'a [u8; HELLO_BYTES],
    answer: HelloAnswer,
    node: NodeId,
    nonce: &'a [u8; 32],
    binding: &'a [u8; 32],
}

impl HandshakeTranscript<'_> {
    fn bytes(&self, label: &[u8]) -> Vec<u8> {
        let node = self.node.0.to_le_bytes();
        [label, &[0], &self.hello[..], &self.answer.encode(), &node, &self.nonce[..], &self.binding[..]].concat()
    }

    fn prove(&self, token: &Token, label: &[u8]) -> [u8; PROOF_BYTES] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, token.bytes());
        let mut proof = [0; PROOF_BYTES];
        proof.copy_from_slice(hmac::sign(&key, &self.bytes(label)).as_ref());
        proof
    }

    fn check(&self, token: &Token, label: &[u8], proof: &[u8]) -> bool {
        let key = hmac::Key::new(hmac::HMAC_SHA256, token.bytes());
        hmac::verify(&key, &self.bytes(label), proof).is_ok()
    }
}

/// The first bytes that a client sends.
pub fn hello(name: &str, nonce: &[u8; 32]) -> Result<[u8; HELLO_BYTES], Error> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::TooLarge(name.len()));
    }
    Ok(wire::array(|writer| {
        writer.put(&Hello { purpose: PURPOSE, versions: PROTOCOL_VERSIONS }.encode());
        writer.u32(name.len() as u32).put(nonce).put(name.as_bytes()).zeros(NAME_BYTES_MAX - name.len());
    }))
}

/// The host's state between its challenge and the client's proof.
pub struct PendingChallenge {
    pub name: String,
    token: Token,
    hello: [u8; HELLO_BYTES],
    answer: HelloAnswer,
    node: NodeId,
    nonce: [u8; 32],
    binding: [u8; 32],
}

/// The host's answer to a hello.
pub enum HelloResponse {
    /// A proof must follow.
    Challenged(Box<PendingChallenge>),
    /// The other end speaks other versions, and learns ours from the answer.
    OtherVersions,
}

/// The host's answer to a hello, ready to send.
///
/// # Errors
/// [`Error::Malformed`]: send nothing.
pub fn challenge(
    hello: &[u8; HELLO_BYTES],
    node: NodeId,
    nonce: [u8; 32],
    binding: [u8; 32],
    token_of: impl Fn(&str) -> Option<Token>,
) -> Result<(HelloResponse, [u8; CHALLENGE_BYTES]), Error> {
    let mut reader = Reader::new(&hello[..]);
    let Hello { versions, .. } = Hello::read(&mut reader, PURPOSE)?;
    let chosen = HelloAnswer::to(PROTOCOL_VERSIONS, versions);
    let respond = |node: NodeId, nonce: &[u8; 32], proof: &[u8; PROOF_BYTES]| {
        wire::array(|writer| {
            writer.put(&PURPOSE).put(&chosen.encode()).u32(node.0).put(nonce).put(proof);
        })
    };
    if chosen.is_refusal() {
        return Ok((HelloResponse::OtherVersions, respond(NodeId(0), &[0; 32], &[0; PROOF_BYTES])));
    }
    let (name_bytes, _nonce) = (reader.u32()? as usize, reader.array::<32>()?);
    let name = reader.bytes(name_bytes).ok().and_then(|name| std::str::from_utf8(name).ok());
    let name = name.ok_or(Error::Malformed("a name that is too long or no text"))?;
    reader.zeros(reader.left())?;
    let token = token_of(name).unwrap_or_else(Token::random);
    let transcript = HandshakeTranscript { hello, answer: chosen, node, nonce: &nonce, binding: &binding };
    let answer = respond(node, &nonce, &transcript.prove(&token, HOST_LABEL));
    let challenged =
        PendingChallenge { name: name.to_owned(), token, hello: *hello, answer: chosen, node, nonce, binding };
    Ok((HelloResponse::Challenged(Box::new(challenged)), answer))
}

impl PendingChallenge {
    /// Whether the client knows the token.
    pub fn check(&self, proof: &[u8; PROOF_BYTES]) -> bool {
        let PendingChallenge { hello, answer, node, nonce, binding, .. } = self;
        let transcript = HandshakeTranscript { hello, answer: *answer, node: *node, nonce, binding };
        transcript.check(&self.token, CLIENT_LABEL, proof)
    }
}

/// The client's proof, and the host's number.
pub fn answer(
    hello: &[u8; HELLO_BYTES],
    challenge: &[u8; CHALLENGE_BYTES],
    binding: &[u8; 32],
    credential: &Credential,
) -> Result<(NodeId, [u8; PROOF_BYTES]), Error> {
    let mut reader = Reader::new(&challenge[..]);
    reader.expect(&PURPOSE, "the other side does not speak this protocol")?;
    let answer = HelloAnswer::read(&mut reader)?;
    answer.chosen_by(PROTOCOL_VERSIONS)?;
    let (node, nonce) = (NodeId(reader.u32()?), reader.array()?);
    let transcript = HandshakeTranscript { hello, answer, node, nonce: &nonce, binding };
    if !transcript.check(&credential.token, HOST_LABEL, reader.peek()) {
        let reason = format!("the host does not know our name {:?}, or knows it with another token", credential.name);
        return Err(Error::Rejected(reason));
    }
    Ok((node, transcript.prove(&credential.token, CLIENT_LABEL)))
}

/// Decodes the host's verdict.
pub fn verdict(bytes: &[u8; VERDICT_BYTES]) -> Result<(), Error> {
    match u32_at(bytes, 0) {
        WELCOME => Ok(()),
        REJECTED => Err(Error::Rejected("the host rejected our proof; use the same token on both ends".to_owned())),
        CROWDED => Err(Error::Rejected("too many connections wait at the host; try again later".to_owned())),
        _ => Err(Error::Malformed("an unknown verdict")),
    }
}

#[cfg(test)]
mod tests {
    use wire::VersionRange;
    use wire::hello::VersionMismatch;

    use super::*;

    fn credential(token: u8) -> Credential {
        Credential { name: "compute0".to_owned(), token: Token::new([token; 32]) }
    }

    /// Runs a handshake with these tokens and TLS sessions; returns whether each end believes the other.
    fn meet(client: u8, host: Option<u8>, bindings: [u8; 2]) -> (bool, bool) {
        let hello = hello("compute0", &[1; 32]).expect("the name is short");
        let token_of = |name: &str| host.filter(|_| name == "compute0").map(|token| Token::new([token; 32]));
        let challenged = challenge(&hello, NodeId(7), [2; 32], [bindings[1]; 32], token_of);
        let Ok((HelloResponse::Challenged(challenged), bytes)) = challenged else { panic!("the hello is well-formed") };
        match answer(&hello, &bytes, &[bindings[0]; 32], &credential(client)) {
            Ok((node, proof)) => {
                assert_eq!(node, NodeId(7));
                (true, challenged.check(&proof))
            }
            Err(_) => (false, false),
        }
    }

    #[test]
    fn only_who_knows_the_token_is_believed() {
        assert_eq!(meet(3, Some(3), [0, 0]), (true, true));
        assert_eq!(meet(3, Some(4), [0, 0]), (false, false));
        assert_eq!(meet(3, None, [0, 0]), (false, false));
    }

    #[test]
    fn proofs_of_another_tls_session_are_not_believed() {
        assert_eq!(meet(3, Some(3), [1, 2]), (false, false));
    }

    #[test]
    fn the_token_is_not_sent() {
        let hello = hello("compute0", &[1; 32]).expect("the name is short");
        let Ok((_, bytes)) = challenge(&hello, NodeId(7), [2; 32], [0; 32], |_| Some(Token::new([3; 32]))) else {
            panic!("the hello is well-formed")
        };
        let (_, proof) = answer(&hello, &bytes, &[0; 32], &credential(3)).expect("the token is the same");
        let said = [&hello[..], &bytes, &proof].concat();
        assert!(!said.windows(8).any(|window| window == [3; 8]));
    }

    #[test]
    fn other_versions_are_named_to_both() {
        let mut other = hello("compute0", &[1; 32]).expect("the name is short");
        (other[8], other[12]) = (9, 10);
        let answered = challenge(&other, NodeId(7), [2; 32], [0; 32], |_| panic!("no token is looked up"));
        let Ok((HelloResponse::OtherVersions, bytes)) = answered else { panic!("the versions are others") };
        let mut golden = b"HDLRMATC\0\0\0\0\x01\0\0\0\x01\0\0\0".to_vec();
        golden.resize(CHALLENGE_BYTES, 0);
        assert_eq!(bytes[..], golden);
        let mut theirs = bytes;
        (theirs[12], theirs[16]) = (9, 10);
        let told = answer(&other, &theirs, &[0; 32], &credential(3)).expect_err("the versions are others");
        let mismatch = VersionMismatch { ours: PROTOCOL_VERSIONS, theirs: VersionRange::new(9, 10) };
        assert_eq!(told, Error::Version(mismatch));
    }

    #[test]
    fn an_attacker_cannot_change_the_ranges_of_versions() {
        let hello = hello("compute0", &[1; 32]).expect("the name is short");
        let Ok((_, bytes)) = challenge(&hello, NodeId(7), [2; 32], [0; 32], |_| Some(Token::new([3; 32]))) else {
            panic!("the hello is well-formed")
        };
        let mut more = bytes;
        more[16] = 2;
        assert!(answer(&hello, &bytes, &[0; 32], &credential(3)).is_ok());
        assert!(answer(&hello, &more, &[0; 32], &credential(3)).is_err());
    }

    #[test]
    fn the_hello_has_the_documented_layout() {
        let bytes = hello("ab", &[5; 32]).expect("the name is short");
        let mut golden = b"HDLRMATC\x01\0\0\0\x01\0\0\0\x02\0\0\0".to_vec();
        golden.extend([5; 32]);
        golden.extend(b"ab");
        golden.extend([0; 62]);
        assert_eq!(bytes[..], golden);
    }
}
