//! The messages between a program and the role *executors*, over a socket that keeps messages apart (`SOCK_SEQPACKET`).
//!
//! ```text
//! hello      "HDEX" | kind u8 = 1 | 0 × 3 | version u32 | area version u32 | contexts u32 | processor features u64 | release (text)
//!            | is elsewhere u8 | if so: user u32 | group u32 | process u32 | name (text)
//!            with two descriptors: the area, and the executor's end of the pair of sockets
//! show       "HDEX" | kind u8 = 2 | 0 × 3 | version u32
//! started    kind u8 = 1 | is elsewhere u8 | 0 × 2 | process u32
//! refused    kind u8 = 2 | reason (text)
//! ended      kind u8 = 3 | reason (text)
//! shown      kind u8 = 4 | what the role's view is
//! ```
//!
//! Text is a length of two bytes and UTF-8. *Elsewhere* is another host: a relay says hello for a program there, and tells a program that its
//! executor is there. The head of `heddle-executors` has the steps, that of `heddle-executor-relay` those of the relay.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::Bytes;
use wire::{Input, Malformed, Reader, Writer, beginning};

use crate::processor::ProcessorFeatures;

/// The version of these messages.
pub const ROLE_VERSION: u32 = 2;
/// Bytes of the longest message of a client.
pub const REQUEST_BYTES_MAX: usize = 256;
/// Bytes of the longest message of the role to a program.
pub const NOTICE_BYTES_MAX: usize = 1024;

const MAGIC: &[u8; 4] = b"HDEX";
const HELLO: u8 = 1;
const SHOW: u8 = 2;
const STARTED: u8 = 1;
const REFUSED: u8 = 2;
const ENDED: u8 = 3;
const SHOWN: u8 = 4;
/// Bytes of a release's name.
const RELEASE_BYTES_MAX: usize = 32;
/// Bytes of the name of a program on another host.
pub const ELSEWHERE_NAME_BYTES_MAX: usize = 128;
/// Bytes of a reason.
const REASON_BYTES_MAX: usize = NOTICE_BYTES_MAX - 16;

/// The release of this build.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// What a program says of itself, for whom an executor has to be fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RoleHello {
    /// Of these messages.
    pub version: u32,
    /// Of the area and its messages.
    pub area_version: u32,
    /// How many functions shall run at the same time.
    pub contexts: u32,
    /// What the program may have chosen its instructions by.
    pub features: ProcessorFeatures,
    /// The release of the program's library.
    pub release: String,
}

/// What a client asks of the role.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RoleRequest {
    /// An executor; a relay asks for a program of another host.
    Hello(RoleHello, Option<ProgramElsewhere>),
    /// What the role shows of executors.
    Show {
        /// Of these messages.
        version: u32,
    },
}

/// A program on another host, for which a relay asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgramElsewhere {
    /// The user of the role's host that owns its executor.
    pub user: u32,
    /// That user's group.
    pub group: u32,
    /// The number of its process at its host.
    pub process: u32,
    /// What it is called, as its relay says.
    pub name: String,
}

/// What the role says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RoleNotice {
    /// The executor has started.
    Started {
        /// Its number at its host.
        process: u32,
        /// That host is another one.
        is_elsewhere: bool,
    },
    /// There is no executor, for this reason. The role closes the connection.
    Refused(String),
    /// The executor has ended, for this reason. The role closes the connection.
    Ended(String),
    /// What the role shows. The role closes the connection.
    Shown(Bytes),
}

impl RoleHello {
    /// Of this build, on this machine.
    pub fn of_this_build(contexts: u32) -> RoleHello {
        RoleHello {
            version: ROLE_VERSION,
            area_version: crate::limits::VERSION,
            contexts,
            features: ProcessorFeatures::of_this_machine(),
            release: RELEASE.to_owned(),
        }
    }

    fn write(&self, writer: &mut Writer) {
        writer.u32(self.area_version).u32(self.contexts).u64(self.features.bits()).text(&self.release);
    }

    /// What follows the version.
    fn read<I: Input>(version: u32, reader: &mut Reader<I>) -> Result<RoleHello, Malformed> {
        Ok(RoleHello {
            version,
            area_version: reader.u32()?,
            contexts: reader.u32()?,
            features: ProcessorFeatures::from_bits(reader.u64()?),
            release: reader.text(RELEASE_BYTES_MAX)?,
        })
    }
}

impl RoleRequest {
    /// A request for an executor of this build.
    pub fn hello(contexts: u32) -> RoleRequest {
        RoleRequest::Hello(RoleHello::of_this_build(contexts), None)
    }

    /// As a message.
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(64);
        writer.put(MAGIC);
        match self {
            RoleRequest::Hello(hello, elsewhere) => {
                writer.u8(HELLO).zeros(3).u32(hello.version);
                hello.write(&mut writer);
                writer.flag(elsewhere.is_some());
                if let Some(ProgramElsewhere { user, group, process, name }) = elsewhere {
                    writer.u32(*user).u32(*group).u32(*process).text(beginning(name, ELSEWHERE_NAME_BYTES_MAX));
                }
            }
            RoleRequest::Show { version } => {
                writer.u8(SHOW).zeros(3).u32(*version);
            }
        }
        writer.done()
    }

    /// Of a message. Of another version only the beginning is read: the rest may differ.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(message: &[u8]) -> Result<RoleRequest, Malformed> {
        let mut reader = Reader::new(message);
        reader.expect(MAGIC, "this is no message to the role executors")?;
        let kind = reader.u8()?;
        reader.zeros(3)?;
        let version = reader.u32()?;
        match kind {
            HELLO if version != ROLE_VERSION => {
                let unread = RoleHello {
                    version,
                    area_version: 0,
                    contexts: 0,
                    features: ProcessorFeatures::default(),
                    release: String::new(),
                };
                Ok(RoleRequest::Hello(unread, None))
            }
            HELLO => {
                let hello = RoleHello::read(version, &mut reader)?;
                let elsewhere = match reader.flag()? {
                    true => Some(ProgramElsewhere {
                        user: reader.u32()?,
                        group: reader.u32()?,
                        process: reader.u32()?,
                        name: reader.text(ELSEWHERE_NAME_BYTES_MAX)?,
                    }),
                    false => None,
                };
                reader.end()?;
                Ok(RoleRequest::Hello(hello, elsewhere))
            }
            SHOW => Ok(RoleRequest::Show { version }),
            _ => Err(reader.malformed("unknown kind of request")),
        }
    }
}

impl RoleNotice {
    /// As a message. A reason that is too long is cut.
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(64);
        match self {
            RoleNotice::Started { process, is_elsewhere } => {
                writer.u8(STARTED).flag(*is_elsewhere).zeros(2).u32(*process)
            }
            RoleNotice::Refused(reason) => writer.u8(REFUSED).text(beginning(reason, REASON_BYTES_MAX)),
            RoleNotice::Ended(reason) => writer.u8(ENDED).text(beginning(reason, REASON_BYTES_MAX)),
            RoleNotice::Shown(view) => writer.u8(SHOWN).put(view),
        };
        writer.done()
    }

    /// Of a message.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(message: Bytes) -> Result<RoleNotice, Malformed> {
        let mut reader = Reader::new(message);
        let notice = match reader.u8()? {
            STARTED => {
                let is_elsewhere = reader.flag()?;
                reader.zeros(2)?;
                RoleNotice::Started { process: reader.u32()?, is_elsewhere }
            }
            REFUSED => RoleNotice::Refused(reader.text(REASON_BYTES_MAX)?),
            ENDED => RoleNotice::Ended(reader.text(REASON_BYTES_MAX)?),
            SHOWN => return Ok(RoleNotice::Shown(reader.rest())),
            _ => return Err(reader.malformed("unknown kind of notice")),
        };
        reader.end()?;
        Ok(notice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_decode_to_themselves_and_prefixes_do_not_decode() {
        let elsewhere = ProgramElsewhere { user: 7, group: 8, process: 9, name: "n".repeat(128) };
        let elsewhere = RoleRequest::Hello(RoleHello::of_this_build(4), Some(elsewhere));
        for request in [RoleRequest::hello(4), elsewhere, RoleRequest::Show { version: ROLE_VERSION }] {
            let bytes = request.encode();
            assert!(bytes.len() <= REQUEST_BYTES_MAX);
            assert_eq!(RoleRequest::decode(&bytes).expect("well-formed"), request);
            for end in 0..bytes.len() {
                assert!(RoleRequest::decode(&bytes[..end]).is_err(), "{request:?} cut to {end} bytes");
            }
        }
        assert!(RoleRequest::decode(b"HDEX\x03\0\0\0\x01\0\0\0").is_err());
    }

    #[test]
    fn the_version_of_a_later_hello_is_read() {
        let mut bytes = RoleRequest::hello(1).encode().to_vec();
        bytes[8] = 9;
        bytes.extend([7; 20]);
        let request = RoleRequest::decode(&bytes).expect("its beginning is well-formed");
        assert!(matches!(request, RoleRequest::Hello(RoleHello { version: 9, .. }, None)), "{request:?}");
    }

    #[test]
    fn notices_decode_to_themselves_and_long_reasons_are_cut() {
        let reason = "it does not fit: ü".to_owned();
        for notice in [
            RoleNotice::Started { process: 77, is_elsewhere: false },
            RoleNotice::Started { process: 78, is_elsewhere: true },
            RoleNotice::Refused(reason.clone()),
            RoleNotice::Ended(reason.clone()),
            RoleNotice::Shown(Bytes::from_static(b"view")),
        ] {
            assert_eq!(RoleNotice::decode(notice.encode()).expect("well-formed"), notice);
        }
        let long = RoleNotice::Ended("ü".repeat(REASON_BYTES_MAX)).encode();
        assert!(long.len() <= NOTICE_BYTES_MAX);
        let RoleNotice::Ended(cut) = RoleNotice::decode(long).expect("well-formed") else { panic!("it has ended") };
        assert!(cut.chars().all(|c| c == 'ü') && cut.len() >= REASON_BYTES_MAX - 2);
        assert!(RoleNotice::decode(Bytes::new()).is_err());
        assert!(RoleNotice::decode(Bytes::from_static(&[9])).is_err());
    }
}
