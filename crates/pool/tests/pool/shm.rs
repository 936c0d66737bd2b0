//! The pool over shared memory within one process, which is how a network in one process runs it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::rt::{self, CancellationToken};
use base::{Bytes, BytesMut, Epoch};
use pool::{AddressSpace, AddressSpaceConfig, Donor, LossReason, MemoryNode, MemoryNodeConfig};
use rma::shm::ShmProvider;
use rma::{HostConfig, NodeId, Provider, TOKEN_BYTES, Token};

const SECTION: u64 = 1 << 20;
const TOKEN: Token = Token::new([3; TOKEN_BYTES]);

async fn donor(provider: &Arc<dyn Provider>, node: u32, address: &str) -> Arc<MemoryNode> {
    let options = HostConfig { node: NodeId(node), tokens: Arc::new(|_| Some(TOKEN)) };
    let host = provider.host(address, options).await.expect("the address is free");
    let options =
        MemoryNodeConfig { host, budget_bytes: 4 * SECTION, section_bytes: SECTION, stop: CancellationToken::new() };
    MemoryNode::start(options).await.expect("the options are good")
}

async fn open(provider: &Arc<dyn Provider>, epoch: u64, donors: &[&str]) -> AddressSpace {
    let donor = |address: &&str| Donor { address: (*address).to_owned(), token: TOKEN };
    let options = AddressSpaceConfig {
        owner: "owner".to_owned(),
        epoch: Epoch(epoch),
        provider: Arc::clone(provider),
        donors: donors.iter().map(donor).collect(),
        section_bytes: SECTION,
        budget_bytes: 8 * SECTION,
    };
    AddressSpace::open(options).await.expect("the donors are there")
}

#[test]
fn sections_are_shared_memory_and_verbs_complete_at_once() {
    let runtime = rt::production::Runtime::new(2).expect("threads");
    runtime.block_on(async {
        let provider: Arc<dyn Provider> = Arc::new(ShmProvider::default());
        let _nodes = [donor(&provider, 1, "local:pool-a").await, donor(&provider, 2, "local:pool-b").await];
        let space = open(&provider, 1, &["local:pool-a", "local:pool-b"]).await;
        for round in 0..4_u8 {
            let section = space.grow().await.expect("room");
            let zeros = space.read(section.address, SECTION as usize, BytesMut::new()).now();
            let zeros = zeros.map_err(|_| "pending").expect("synchronous").expect("live");
            assert!(zeros.iter().all(|byte| *byte == 0));
            let bytes = Bytes::from(vec![round + 1; SECTION as usize]);
            let written = space.write(section.address, std::slice::from_ref(&bytes)).now();
            assert_eq!(written.map_err(|_| "pending").expect("synchronous"), Ok(()));
            let read = space.read(section.address, SECTION as usize, BytesMut::new()).await.expect("live");
            assert_eq!(read, bytes);
        }
        assert!(space.synchronous());
        let (verbs, sections) = (space.verbs(), space.sections());
        assert_eq!((verbs.reads, verbs.writes, sections.len()), (8, 4, 4));
        for section in sections {
            space.release(section.id).await.expect("ours");
        }
        space.close().await;
    });
}

#[test]
fn a_takeover_and_a_lost_donor_end_the_verbs_of_a_busy_holder() {
    let runtime = rt::production::Runtime::new(2).expect("threads");
    runtime.block_on(async {
        let provider: Arc<dyn Provider> = Arc::new(ShmProvider::default());
        let nodes = [donor(&provider, 3, "local:pool-c").await, donor(&provider, 4, "local:pool-d").await];
        let donors = ["local:pool-c", "local:pool-d"];
        let old = open(&provider, 1, &donors).await;
        let section = old.grow().await.expect("room");
        let (busy, fenced) = (old.clone(), Arc::new(AtomicBool::new(false)));
        let after = Arc::clone(&fenced);
        let writing = rt::spawn(async move {
            let bytes = Bytes::from(vec![1; 64 << 10]);
            loop {
                let was_fenced = after.load(Ordering::SeqCst);
                let written = busy.write(section.address, std::slice::from_ref(&bytes)).await;
                assert!(!(was_fenced && written.is_ok()), "a verb took effect after its fence");
                if was_fenced {
                    return;
                }
                rt::yield_now().await;
            }
        });
        let new = open(&provider, 2, &donors).await;
        fenced.store(true, Ordering::SeqCst);
        writing.await.expect("nobody aborts it");
        assert!(nodes.iter().all(|node| node.usage().granted_bytes == 0));
        let section = new.grow().await.expect("the new owner continues");
        let given_by = new.donor_of(section.id).expect("it was given").to_owned();
        for node in &nodes {
            if node.address() == given_by {
                node.stop().await;
            }
        }
        let loss = rt::timeout(Duration::from_secs(30), new.lost()).await.expect("the loss is noticed");
        assert_eq!((loss.sections, loss.reason), (vec![section.id], LossReason::Disconnected));
        assert_eq!(new.read(section.address, 8, BytesMut::new()).await, Err(rma::Error::Closed));
        new.grow().await.expect("the other donor is there");
    });
}
