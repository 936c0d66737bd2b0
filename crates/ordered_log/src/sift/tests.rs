//! Faults of other CPU nodes that must not harm a CPU node, and failures of its own tasks that it must report.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::net::rpc::RpcHandler;
use base::rt::net::{GatherList, rpc};
use base::rt::{CancellationToken, net, production};
use base::{Bytes, FenceToken, rt};
use rma::{Credential, Endpoint, Host, HostConfig, Provider};
use sift::{GroupId, GroupLayout, MemoryNodeAddress, SiftGroup, SiftTimeouts};

use super::client::AcceptorClient;
use super::message::AcceptorResponse;
use super::*;
use crate::Term;
use crate::error::Error;
use crate::ordered_log::{CpuNodeId, LogStore, OrderedLog as _};
use crate::sift::acceptor::AcceptorQueue;
use crate::sift::message::AcceptorRequest;

/// A network without memory nodes.
struct Nowhere;

#[async_trait]
impl Provider for Nowhere {
    async fn connect(&self, _: &str, _: &Credential) -> Result<Endpoint, rma::Error> {
        Err(rma::Error::Busy)
    }

    async fn host(&self, _: &str, _: HostConfig) -> Result<Arc<dyn Host>, rma::Error> {
        Err(rma::Error::Busy)
    }

    fn name(&self) -> &'static str {
        "nowhere"
    }
}

/// A log store of one entry, which panics when it is synced.
struct Panics;

#[async_trait]
impl LogStore for Panics {
    fn height(&self) -> u64 {
        1
    }

    fn durable(&self) -> u64 {
        1
    }

    fn read(&self, _: u64) -> Result<Option<Bytes>, Error> {
        Ok(Some(Bytes::from_static(b"genesis")))
    }

    async fn append(&self, _: u64, _: Bytes) -> Result<(), Error> {
        Ok(())
    }

    async fn sync(&self) -> Result<u64, Error> {
        panic!("it was impossible")
    }

    async fn truncate(&self, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn hard_state(&self) -> Result<Bytes, Error> {
        Ok(Bytes::new())
    }

    async fn set_hard_state(&self, _: Bytes) -> Result<(), Error> {
        Ok(())
    }
}

fn options(journal: Arc<dyn LogStore>) -> SiftConfig {
    let layout = GroupLayout { log_bytes: 8192, unlogged_bytes: 0, memory_bytes: 0, block_bytes: 64, data_shards: 1 };
    let place =
        MemoryNodeAddress { address: "nowhere".to_owned(), name: "orderer".into(), token: rma::Token::new([0; 32]) };
    let timing = SiftTimeouts::default();
    let mine = CpuNode { id: CpuNodeId(1), address: "127.0.0.1:0".to_owned() };
    SiftConfig {
        group: SiftGroup { id: GroupId(7), layout, nodes: vec![place], provider: Arc::new(Nowhere), timing },
        me: CpuNodeId(1),
        cpu_nodes: vec![mine],
        log_store: journal,
        volatile: false,
        disk_timeout: Duration::from_millis(500),
    }
}

/// The acceptor's task was gone, and the engine was reported as healthy: the leader queried it in vain for ever.
#[test]
fn a_panic_of_the_keeper_ends_the_engine() {
    production::run(async {
        let sift = SiftLog::open(options(Arc::new(Panics))).await.expect("it opens");
        let token = FenceToken { term: Term(3), nonce: 7 };
        let asked =
            sift.shared.queue.send(token, AcceptorRequest::Fence { leader: 1 }).await.expect("it takes commands");
        assert!(asked.await.is_err(), "nobody answers");
        let ended = rt::timeout(Duration::from_secs(20), sift.ended()).await;
        assert_eq!(ended.expect("it has ended"), Error::Panicked("the acceptor"));
        sift.stop().await;
    });
}

/// An acceptor that gives the prepared answers, whatever the requests are.
struct Says(Mutex<Vec<base::rt::net::GatherList>>);

impl RpcHandler for Says {
    fn request(&self, _: GatherList) -> rpc::ResponseFuture {
        let answer = self.0.lock().expect("no holder panics").pop().expect("it has something to say");
        Box::pin(async move { Ok(answer) })
    }
}

/// Bytes that were no answer, or the answer to another request, were taken for damage to this node's own log store, and ended
/// the engine.
#[test]
fn what_another_keeper_says_wrongly_is_no_answer() {
    let run = base::rt::simulation::Simulation::new(1).run(|_| async {
        let mut listener = net::listen("other").await.expect("the address is free");
        let strange = vec![Bytes::from_static(b"nonsense").into(), AcceptorResponse::Entries(Vec::new()).encode()];
        let handler = Arc::new(Says(Mutex::new(strange)));
        let _serving = rt::spawn(async move {
            let link = listener.accept().await.expect("it listens");
            rpc::serve(link, handler, REQUESTS_MAX, CancellationToken::new()).await;
        });
        let other = CpuNode { id: CpuNodeId(2), address: "other".to_owned() };
        let path = AcceptorClient::connect(&other, Duration::from_secs(1)).await.expect("it listens");
        let mut sift = options(Arc::new(Panics));
        sift.cpu_nodes[0].address = "here".to_owned();
        let sift = SiftLog::open(sift).await.expect("it opens");
        for _ in 0..2 {
            let common = recovery::common_height(&sift.shared, FenceToken::default(), &path, 1)
                .await
                .expect("the own journal is well");
            assert!(matches!(common, Err(Error::NoAnswer { .. })), "{common:?}");
        }
        sift.stop().await;
    });
    run.expect("the run succeeds");
}

#[test]
fn a_queue_is_bounded_by_the_bytes_of_entries() {
    production::run(async {
        let (queue, mut commands) = AcceptorQueue::new(100, 1000);
        let append = |bytes: usize| AcceptorRequest::Append {
            position: 1,
            deliverable: 1,
            entries: vec![Bytes::from(vec![7; bytes])],
        };
        let put = |command| queue.try_send(FenceToken::default(), command).map(drop);
        assert_eq!(put(append(600)), Ok(()));
        assert_eq!(put(append(600)), Err(Error::Busy), "there is no room for both");
        assert_eq!(put(AcceptorRequest::Fence { leader: 2 }), Ok(()), "what brings no entries needs none");
        drop(commands.recv().await);
        assert_eq!(put(append(5000)), Ok(()), "whatever is longer than all of it fits alone");
        assert_eq!(put(append(1)), Err(Error::Busy));
        drop((commands.recv().await, commands.recv().await));
        assert_eq!(put(append(1)), Ok(()));
        drop(commands);
        assert_eq!(put(append(1)), Err(Error::Closed));
    });
}

/// An acceptor that claimed to have promised the last of all terms ended every engine that wanted to start the generation
/// behind it.
#[test]
fn a_term_that_none_can_follow_is_no_answer_and_is_not_promised() {
    let run = base::rt::simulation::Simulation::new(1).run(|_| async {
        let mut listener = net::listen("other").await.expect("the address is free");
        let last = AcceptorResponse::Status { promised: Term(u64::MAX), adopted: Term(0), height: 1 };
        let handler = Arc::new(Says(Mutex::new(vec![last.encode()])));
        let _serving = rt::spawn(async move {
            let link = listener.accept().await.expect("it listens");
            rpc::serve(link, handler, REQUESTS_MAX, CancellationToken::new()).await;
        });
        let place = |processor, address: &str| CpuNode { id: CpuNodeId(processor), address: address.into() };
        let mut sift = options(Arc::new(Panics));
        sift.cpu_nodes = vec![place(1, "here"), place(2, "other"), place(3, "nowhere")];
        let sift = SiftLog::open(sift).await.expect("it opens");
        let looked = recovery::query_acceptors(&sift.shared, FenceToken::default(), AcceptorRequest::GetStatus)
            .await
            .map(|heard| heard.len());
        assert_eq!(looked, Err(Error::NoMajority { answering: 1, needed: 2, nodes: 3 }));
        let token = FenceToken { term: Term(u64::MAX), nonce: 7 };
        let asked =
            sift.shared.queue.send(token, AcceptorRequest::Fence { leader: 2 }).await.expect("it takes commands");
        assert!(matches!(asked.await, Ok(Err(Error::Invalid(_)))), "it would never promise anything again");
        sift.stop().await;
    });
    run.expect("the run succeeds");
}
