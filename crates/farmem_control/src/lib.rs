//! What a program with a far heap and the process that serves its page faults say to each other.
//!
//! ```text
//!   program, with libheddle_farmem.so                  server (`heddle farmem run`)
//!     any thread ──── page faults, doorbell ─────────▶ handler        userfaultfd, RequestPage
//!     agent      ◀─── commands, answers ─────────────▶ evictor        socket, CommandPage, bounce buffer
//! ```
//!
//! The server has the pool's connections, the page table and the content of pages in flight. The library in the program asks
//! the kernel for what only the process itself may ask.
//!
//! 1. **Attach.** The library connects to the server's abstract socket (`SOCK_SEQPACKET`), whose name and secret are in its
//!    environment, and sends a [`Hello`]. The server answers with a [`Welcome`], the shared memory ([`SHARED_BYTES`]) and an
//!    open `/dev/userfaultfd`. The library reserves the region, the doorbell and the eviction buffer, opens a userfaultfd, and
//!    sends it with a [`Memory`]. The server enables the features, registers the memory, and answers with a [`Verdict`].
//! 2. **Faults** are served by the server, through the userfaultfd. Any thread of the program sleeps until its page is there.
//! 3. **Commands.** What the kernel allows only to the process itself is done by the *agent*, a thread of the library: it moves
//!    dirty pages into the eviction buffer and copies them to the bounce buffer, and drops clean pages. The server writes
//!    a command to the [`CommandPage`], sends [`COMMAND`], and gets one byte back when it is done. The agent touches no far
//!    memory and nothing of the program.
//! 4. **Requests.** A thread of the program that needs the server writes a request to the [`RequestPage`], under a lock of the
//!    library, and touches the doorbell, a page that is absent. The fault tells the server; mapping the page lets the thread go
//!    on, which reads the reply and drops the page again.
//! 5. **Fork.** The thread that forks requests [`request::FORK_BEGIN`] until the reply is not [`reply::BUSY`]. From then on no page moves
//!    until the kernel reports the fork. The server then has a copy of the page table for the child, whose faults it serves
//!    through the userfaultfd that the kernel has made. The child connects with the number of the fork ([`Hello::fork`]), and
//!    gets shared memory of its own and its userfaultfd. The parent requests [`request::FORK_END`], whether there is a child
//!    or not.
//! 6. **End.** When the program ends, the socket does. When the server ends, the agent ends the program with a message, since
//!    nobody would serve its faults.
//!
//! A far heap whose home is an executor of pushed functions ([`EXECUTOR_HEAP_VARIABLE`]) has no server, and none of this: the library opens
//! that of pushed functions, and has the heap there.
//!
//! The server checks all that it reads here: a program may write anything to the memory that both share.

#![deny(missing_docs)]

mod messages;
mod shared_memory;

pub use messages::{
    COMMAND, EXECUTOR_HEAP_VARIABLE, EXECUTOR_STORAGE_VARIABLE, Hello, Memory, Message, SECRET_VARIABLE,
    SOCKET_VARIABLE, VERSION, Verdict, Welcome,
};
pub use shared_memory::{
    BOUNCE_OFFSET, BUFFER_PAGES, COMMAND_OFFSET, CommandPage, CommandRange, PAGE_BYTES, RANGES_MAX, RequestPage,
    SHARED_BYTES, command, reply, request,
};
