//! The relay of executors: a program's executor runs on another host, beside the memory that it uses (TELEPORT, section 3).
//!
//! A program and its executor talk through an *area*, which is memory of both ([`pushdown`]). Where they run on two hosts, each host has an area of its
//! own, and the relay carries the messages from one to the other. It has two ends: [`ProgramEnd`] on the program's host, which programs take for the
//! role *executors*, and [`ExecutorsEnd`] beside that role, which takes the relay for a program. Program and executor run unchanged.
//!
//! # Steps
//!
//! 1. **Hello.** A program connects to the program's end, and sends what it sends to the role: its hello, its area, one end of a pair of sockets. The
//!    program's end checks the owner and the descriptors, and maps the area. A connection without a hello is a stranger, as at the role.
//! 2. **Connecting.** The program's end opens a link of this program's own to the executors' end: mutual TLS between organisations. It sends
//!    [`RelayMessage::Hello`]. The executors' end closes a link that says nothing for [`HELLO_TIME_MAX`].
//! 3. **Asking the role.** The link's name is the organisation that has issued the certificate of the program's end. Settings say which user of the
//!    executors' host it stands for. The executors' end makes an area and a pair of sockets, and asks the role for that user. The role compares
//!    releases and processors, and admits, limits and supervises the executor, as it does for programs of its own host. The program gets the role's answer.
//! 4. **Beginning.** The executor says in its area that it is ready, or why it is not: [`RelayMessage::State`]. The program's end writes it to the
//!    program's area, where the program looks.
//! 5. **Frames.** Each end takes the frames that have come in its area, as many as a message has room for, and sends them as one
//!    [`RelayMessage::Frames`]. The other end puts all of them into its area at once, so that most of what was sent together arrives together, and nobody
//!    is woken for a part of it. While there is no room in its area, it takes no message from the link, whose buffers fill, until the first end takes no
//!    more frames.
//! 6. **Load.** What the executor says of its calls, if it has changed, goes to the program's area before the next frames, or within a tenth of a second.
//! 7. **Ending.** A session ends when the program, the executor, the link or either end of the relay does. Each end then closes all that it has of the
//!    session: the program's end tells the program why ([`RelayMessage::Ended`] has the role's reason), the executors' end has the role end the executor.
//!    What the executor has said before its end goes to the program first.
//!
//! | message | direction | what the receiver does |
//! |---|---|---|
//! | hello | to the executors' end | step 3 |
//! | started | to the program's end | tells the program, which waits for its executor to begin |
//! | refused | to the program's end | tells the program why |
//! | state, load | to the program's end | writes it to the program's area |
//! | frames | both | puts them into its area |
//! | ended | to the program's end | tells the program why |
//! | ended | to the executors' end | the program has ended: the role ends the executor |
//!
//! # Invariants
//!
//! 1. What one side's area gets is a prefix of what the other side has sent: each frame once, in order, unchanged. A session never goes on behind a gap.
//! 2. A session has at most 4 MiB of frames in its link's queue, and one message in each direction beside it. A message has at most
//!    [`MESSAGE_BYTES_MAX`]; a larger one ends the session once it has come.
//! 3. Each session has its own task and its own link, so no session waits for another. A new session never ends one of another user or organisation.
//! 4. No end believes the other, or an area: numbers in an area are checked as executors and libraries check them, and a message with impossible ones ends
//!    its session alone. The organisation's name is the certificate's, never what a message says.
//!
//! # What it needs around it
//!
//! - Linux on x86-64. A registered transport for the addresses (`link_transport`), whose certificates name organisations.
//! - Below: [`pushdown`] and [`executors`]. Above: `heddle farmem relay` is the program's end, `heddle farmem executors --listen` the other.
//! - A call takes a round trip of the link and four wake-ups more than with an executor of the same host. So does each system call of a function and each page.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![deny(missing_docs)]

mod area_end;
mod error;
pub mod events;
mod executors_end;
mod fault;
#[doc(hidden)]
pub mod fuzz;
mod message;
mod program_end;
mod pump;
mod settings;
#[cfg(test)]
mod simulated_tests;
mod watched;

pub use error::RelayError;
pub use executors_end::ExecutorsEnd;
pub use message::{MESSAGE_BYTES_MAX, RelayMessage};
pub use program_end::ProgramEnd;
pub use settings::{ExecutorsEndSettings, HELLO_TIME_MAX, ProgramEndSettings, Tenant};
