//! Regions over the pool: the `shm` and the `tcp` provider, several donors, one of which stops.

use std::sync::Arc;

use base::rt::{CancellationToken, production};
use base::{Epoch, rt};
use farmem::{FaultPath, FileStorage, PAGE_BYTES, PoolStore, Region, StorageTier};
use pool::{AddressSpace, AddressSpaceConfig, Donor, MemoryNode, MemoryNodeConfig};
use rma::shm::ShmProvider;
use rma::tcp::TcpProvider;
use rma::{HostConfig, NodeId, Provider, Token};

use crate::regions::{PATHS, compare_with_model, region};
use crate::time_limit::time_limit;

const TOKEN: Token = Token::new([3; 32]);
const SECTION: u64 = 256 << 10;
const REGION_BYTES: usize = 4 << 20;

struct Pool {
    space: AddressSpace,
    nodes: Vec<Arc<MemoryNode>>,
}

async fn open(provider: Arc<dyn Provider>, sections_each: u64) -> Pool {
    let mut nodes = Vec::new();
    for node in 0..2 {
        let address = if provider.name() == "tcp" { "127.0.0.1:0" } else { "local:" };
        let options = HostConfig { node: NodeId(node), tokens: Arc::new(|_| Some(TOKEN)) };
        let host = provider.host(address, options).await.expect("the address is free");
        let stop = CancellationToken::new();
        let options = MemoryNodeConfig { host, budget_bytes: sections_each * SECTION, section_bytes: SECTION, stop };
        nodes.push(MemoryNode::start(options).await.expect("the options are good"));
    }
    let donors = nodes.iter().map(|node| Donor { address: node.address(), token: TOKEN }).collect();
    let config = AddressSpaceConfig {
        owner: "owner".to_owned(),
        epoch: Epoch(1),
        provider,
        donors,
        section_bytes: SECTION,
        budget_bytes: 64 * SECTION,
    };
    Pool { space: AddressSpace::open(config).await.expect("the donors are there"), nodes }
}

/// Each provider, with each way to serve faults.
fn ways() -> impl Iterator<Item = (Arc<dyn Provider>, FaultPath)> {
    PATHS.into_iter().flat_map(|path| {
        let providers: [Arc<dyn Provider>; 2] = [Arc::new(ShmProvider::default()), Arc::new(TcpProvider::default())];
        providers.map(|provider| (provider, path))
    })
}

const PAGES: u32 = (REGION_BYTES / PAGE_BYTES) as u32;

fn far_region(
    runtime: &production::Runtime,
    pool: &Pool,
    storage: Option<Arc<dyn StorageTier>>,
    path: FaultPath,
) -> Region {
    let store = runtime.block_on(async { PoolStore::new(pool.space.clone(), PAGES, storage) });
    region(REGION_BYTES, REGION_BYTES / 8, Arc::new(store.expect("the options are good")), path)
}

#[test]
fn a_region_over_two_donors_reads_what_was_written() {
    let _limit = time_limit();
    for (provider, path) in ways() {
        let name = provider.name();
        let runtime = production::Runtime::new(2).expect("threads");
        let pool = runtime.block_on(open(provider, 16));
        let mut region = far_region(&runtime, &pool, None, path);
        compare_with_model(&mut region, 4000, 11);
        assert!(region.stats().fills > 500, "{name}: {:?}", region.stats());
        assert!(pool.nodes.iter().all(|node| node.usage().sections > 0), "{name}: both donors have pages");
        drop(region);
        runtime.block_on(pool.space.close());
    }
}

#[test]
fn a_region_larger_than_the_pool_has_its_coldest_pages_in_storage() {
    let _limit = time_limit();
    for (provider, path) in ways() {
        let name = provider.name();
        let runtime = production::Runtime::new(2).expect("threads");
        let pool = runtime.block_on(open(provider, 3));
        let folder = tempfile::tempdir().expect("a folder");
        let storage = runtime.block_on(async {
            let directory = rt::disk::Directory::open(folder.path()).await.expect("it is there");
            FileStorage::create(&directory, "pages").expect("room on the disk")
        });
        let mut region = far_region(&runtime, &pool, Some(Arc::new(storage)), path);
        compare_with_model(&mut region, 1500, 12);
        let file = folder.path().join("pages");
        assert!(file.metadata().expect("it is there").len() > SECTION, "{name}: pages went on to storage");
        drop(region);
        runtime.block_on(pool.space.close());
    }
}

#[test]
fn a_donor_that_stops_loses_its_pages_and_no_byte_is_wrong() {
    let _limit = time_limit();
    for (provider, path) in ways() {
        let name = provider.name();
        let runtime = production::Runtime::new(2).expect("threads");
        let pool = runtime.block_on(open(provider, 16));
        let mut region = far_region(&runtime, &pool, None, path);
        for page in 0..PAGES as usize {
            let number = [page as u8; 64];
            region.write(page * PAGE_BYTES, &number).expect("both donors are there");
        }
        let gone = pool.nodes[0].address();
        runtime.block_on(pool.nodes[0].stop());
        let (mut lost, mut kept) = (0, 0);
        for page in 0..PAGES as usize {
            let mut read = [0; 64];
            match region.read(page * PAGE_BYTES, &mut read) {
                Ok(()) => {
                    assert_eq!(read, [page as u8; 64], "{name}: page {page}");
                    kept += 1;
                }
                Err(loss) => {
                    assert!(loss.node.ends_with(&gone), "{name}: {loss}");
                    lost += 1;
                }
            }
        }
        println!("{name}: {lost} pages lost, {kept} kept");
        assert!(lost > 100 && kept > 300, "{name}: {lost} pages lost, {kept} kept");
        // The region goes on with the other donor.
        let page = (0..PAGES as usize).find(|page| region.read(page * PAGE_BYTES, &mut [0]).is_ok());
        region.write(page.expect("some are kept") * PAGE_BYTES, &[1]).expect("it is not lost");
        drop(region);
    }
}
