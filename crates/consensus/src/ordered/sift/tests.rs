//! What another processor cannot do to this one, and what its own tasks cannot hide.

use std::sync::Mutex;

use base::rt::net::Parts;
use base::rt::production;
use rma::{Credential, Endpoint, Fabric, Host, HostOptions};

use super::message::Answer;
use super::path::Path;
use super::*;
use crate::{GroupId, Layout, Place, Timing};

/// A network without memory nodes.
struct Nowhere;

#[async_trait]
impl Fabric for Nowhere {
    async fn connect(&self, _: &str, _: &Credential) -> Result<Endpoint, rma::Error> {
        Err(rma::Error::Busy)
    }

    async fn host(&self, _: &str, _: HostOptions) -> Result<Arc<dyn Host>, rma::Error> {
        Err(rma::Error::Busy)
    }

    fn provider(&self) -> &'static str {
        "nowhere"
    }
}

/// A journal of one entry, which panics when it is to be synced.
struct Panics;

#[async_trait]
impl Journal for Panics {
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

    async fn cut(&self, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn note(&self) -> Result<Bytes, Error> {
        Ok(Bytes::new())
    }

    async fn set_note(&self, _: Bytes) -> Result<(), Error> {
        Ok(())
    }
}

fn options(journal: Arc<dyn Journal>) -> SiftOptions {
    let layout = Layout { log_bytes: 8192, direct_bytes: 0, memory_bytes: 0, block_bytes: 64, data_shares: 1 };
    let place = Place { address: "nowhere".to_owned(), name: "orderer".into(), token: rma::Token::new([0; 32]) };
    let timing = Timing::default();
    let mine = Neighbour { processor: Processor(1), address: "127.0.0.1:0".to_owned() };
    SiftOptions {
        group: Group { id: GroupId(7), layout, nodes: vec![place], fabric: Arc::new(Nowhere), timing },
        me: Processor(1),
        processors: vec![mine],
        journal,
        volatile: false,
        disk_max: Duration::from_millis(500),
    }
}

/// The keeper's task was gone, and the engine called healthy: whoever led asked it in vain for ever.
#[test]
fn a_panic_of_the_keeper_ends_the_engine() {
    production::run(async {
        let sift = Sift::open(options(Arc::new(Panics))).await.expect("it opens");
        let reign = Reign { term: Term(3), holder: 7 };
        let asked = sift.shared.queue.put(reign, Command::Fence { leader: 1 }).await.expect("it takes commands");
        assert!(asked.await.is_err(), "nobody answers");
        let ended = rt::timeout(Duration::from_secs(20), sift.ended()).await;
        assert_eq!(ended.expect("it has ended"), Error::Panicked("its keeper"));
        sift.stop().await;
    });
}

/// A keeper that answers, each connection after the other, whatever it is told to.
struct Says(Mutex<Vec<base::rt::net::Parts>>);

impl Handler for Says {
    fn request(&self, _: Parts) -> call::Answer {
        let answer = self.0.lock().expect("no holder panics").pop().expect("it has something to say");
        Box::pin(async move { Ok(answer) })
    }
}

/// Bytes that were no answer, or the answer to another question, were held for damage to this processor's own journal, and ended it.
#[test]
fn what_another_keeper_says_wrongly_is_no_answer() {
    let run = base::rt::simulation::Simulation::new(1).run(|_| async {
        let mut listener = net::listen("other").await.expect("the address is free");
        let strange = vec![Bytes::from_static(b"nonsense").into(), Answer::Entries(Vec::new()).encode()];
        let handler = Arc::new(Says(Mutex::new(strange)));
        let _serving = rt::spawn(async move {
            let link = listener.accept().await.expect("it listens");
            call::serve(link, handler, REQUESTS_MAX, Stop::new()).await;
        });
        let other = Neighbour { processor: Processor(2), address: "other".to_owned() };
        let path = Path::connect(&other, Duration::from_secs(1)).await.expect("it listens");
        let mut sift = options(Arc::new(Panics));
        sift.processors[0].address = "here".to_owned();
        let sift = Sift::open(sift).await.expect("it opens");
        for _ in 0..2 {
            let common = lead::common(&sift.shared, Reign::default(), &path, 1).await.expect("the own journal is well");
            assert!(matches!(common, Err(Error::NoAnswer { .. })), "{common:?}");
        }
        sift.stop().await;
    });
    run.expect("the run succeeds");
}

#[test]
fn a_queue_is_bounded_by_the_bytes_of_entries() {
    production::run(async {
        let (queue, mut commands) = Queue::new(100, 1000);
        let append =
            |bytes: usize| Command::Append { position: 1, safe: 1, entries: vec![Bytes::from(vec![7; bytes])] };
        let put = |command| queue.try_put(Reign::default(), command).map(drop);
        assert_eq!(put(append(600)), Ok(()));
        assert_eq!(put(append(600)), Err(Error::Busy), "there is no room for both");
        assert_eq!(put(Command::Fence { leader: 2 }), Ok(()), "what brings no entries needs none");
        drop(commands.recv().await);
        assert_eq!(put(append(5000)), Ok(()), "whatever is longer than all of it fits alone");
        assert_eq!(put(append(1)), Err(Error::Busy));
        drop((commands.recv().await, commands.recv().await));
        assert_eq!(put(append(1)), Ok(()));
        drop(commands);
        assert_eq!(put(append(1)), Err(Error::Closed));
    });
}

/// A keeper that had promised the last of all terms, as it said, ended every engine that was to begin the era behind it.
#[test]
fn a_term_that_none_can_follow_is_no_answer_and_is_not_promised() {
    let run = base::rt::simulation::Simulation::new(1).run(|_| async {
        let mut listener = net::listen("other").await.expect("the address is free");
        let last = Answer::Is { promised: Term(u64::MAX), adopted: Term(0), height: 1 };
        let handler = Arc::new(Says(Mutex::new(vec![last.encode()])));
        let _serving = rt::spawn(async move {
            let link = listener.accept().await.expect("it listens");
            call::serve(link, handler, REQUESTS_MAX, Stop::new()).await;
        });
        let place = |processor, address: &str| Neighbour { processor: Processor(processor), address: address.into() };
        let mut sift = options(Arc::new(Panics));
        sift.processors = vec![place(1, "here"), place(2, "other"), place(3, "nowhere")];
        let sift = Sift::open(sift).await.expect("it opens");
        let looked = lead::ask_all(&sift.shared, Reign::default(), Command::Look).await.map(|heard| heard.len());
        assert_eq!(looked, Err(Error::NoMajority { answering: 1, needed: 2, nodes: 3 }));
        let reign = Reign { term: Term(u64::MAX), holder: 7 };
        let asked = sift.shared.queue.put(reign, Command::Fence { leader: 2 }).await.expect("it takes commands");
        assert!(matches!(asked.await, Ok(Err(Error::Invalid(_)))), "it would never promise anything again");
        sift.stop().await;
    });
    run.expect("the run succeeds");
}
