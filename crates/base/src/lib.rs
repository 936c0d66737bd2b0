//! The foundation of Heddle's crates: a runtime with a production and a simulated form, and the types that the crates
//! share.
//!
//! A program written against [`rt`] runs unchanged on tokio and in a seeded simulation, where a test crashes its nodes:
//!
//! ```
//! use base::Bytes;
//! use base::rt::{self, disk::Directory, net, simulation::Simulation};
//! use std::time::Duration;
//!
//! async fn keep_newest() {
//!     let directory = Directory::open("/data").await.expect("the disk works");
//!     let file = directory.open_file("newest", true).expect("the disk works");
//!     directory.sync().await.expect("the disk works"); // The file's name is durable.
//!     let mut listener = net::listen("store").await.expect("the address is free");
//!     let mut link = listener.accept().await.expect("the node is up");
//!     while let Ok(entry) = link.receive().await {
//!         file.write_at(0, &entry).expect("there is room");
//!         file.sync().await.expect("the disk works"); // The entry is durable.
//!         link.send(Bytes::from_static(b"done")).await.expect("the client waits");
//!     }
//! }
//!
//! let report = Simulation::new(7).run(|sim| async move {
//!     let server = sim.node("server");
//!     server.start(keep_newest);
//!     rt::sleep(Duration::from_secs(1)).await; // Until the server listens; takes no real time.
//!     let mut link = net::connect("store").await.expect("the server listens");
//!     link.send(Bytes::from_static(b"paid")).await.expect("the link holds");
//!     link.receive().await.expect("the server acknowledges");
//!     server.crash(); // Keeps, loses or tears each write that was not synced.
//!     let read = server.spawn(async {
//!         let directory = Directory::open("/data").await.expect("the disk works");
//!         directory.open_file("newest", false).expect("its name was durable").read_at(0, 64)
//!     });
//!     read.await.expect("the server does not crash again").expect("the disk works")
//! });
//! assert_eq!(report.expect("the run succeeds").value, "paid");
//! ```
//!
//! # Modules
//! * [`admission`]: limits on the resources that a listener gives to unauthenticated connections and to each
//!   organisation.
//! * [`id`]: names and numbers of the ledger (channels, members, transactions, blocks, versions, epochs, terms).
//! * [`error`]: the kinds of error, each of which tells the caller what to do.
//! * [`collections`]: hash maps whose hashing is keyed in production and fixed in simulation.
//! * [`durable`]: files that are replaced atomically, even if the power fails meanwhile.
//! * [`lease`]: the bound on the drift of clocks, and how long a lease's holder may act and its grantor must wait.
//! * [`event`]: counters, gauges and histograms, each declared once.
//! * [`untrusted`]: numbers that a peer, a client or a disk supplied, in a type without arithmetic.
//! * [`rt`]: the ambient runtime: tasks, time, randomness, channels, disk files and links, backed by tokio in production and by
//!   a seeded single-threaded executor in simulation.
//!
//! # Guarantees
//! * No type of tokio appears in this crate's public interface, and no module depends on wire formats, remote memory or
//!   the contents of blocks.
//! * In a simulation the seed and the code decide everything: time, randomness, the order of tasks, the faults of disks and
//!   links. A failed run names the seed that repeats it.
//! * Every channel, queue and link is bounded.
//! * Written bytes are durable once [`rt::disk::File::sync`] has returned, in production as in simulation. Messages on a link
//!   arrive whole, in order, and at most once.
//! * An [`ErrorKind`] means the same in every crate: it tells the caller whether to retry, to stop, or to find out first.
//!
//! # What it needs around it
//! * Every crate that runs in a node calls this crate, except `proto`, `wire` and `p256_verify`. This crate calls no
//!   other crate of Heddle.
//! * In production the caller starts tokio ([`rt::production`]), and registers a transport ([`rt::net::register`]) for
//!   each address scheme that leads to other processes. Links of a scheme without a transport stay within the process.
//! * [`admission`] only keeps accounts. The listener that uses it accepts connections, runs handshakes and closes
//!   connections.
//! * The layers above decide what bytes mean, whom to trust, and when to retry.

#![deny(missing_docs)]

pub mod admission;
pub mod collections;
pub mod durable;
pub mod error;
pub mod event;
mod fence;
#[doc(hidden)]
pub mod fuzz;
pub mod id;
pub mod lease;
pub mod rt;
pub mod untrusted;

pub use bytes::{self, Bytes, BytesMut};
pub use collections::{Map, Set};
pub use error::ErrorKind;
pub use fence::{FenceConflict, FenceToken};
pub use id::{BlockNumber, ChannelId, Epoch, MspId, Term, TxId, TxIndex, Version};
