//! A file as storage, on a disk that is full or fails.

use base::rt::disk::Directory;
use base::rt::simulation::{Sim, Simulation};
use base::{Bytes, BytesMut};
use farmem::{FileStorage, PAGE_BYTES, PageNumber, PageRange, StorageTier as _, StoreError};

fn simulate<F: Future<Output = ()> + Send + 'static>(test: impl FnOnce(Sim) -> F + Send + 'static) {
    let ran = Simulation::new(1).run(test);
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

async fn create() -> FileStorage {
    let directory = Directory::open("far").await.expect("the disk works");
    FileStorage::create(&directory, "pages").expect("the disk works")
}

const GROUP: PageRange = PageRange { first: PageNumber(16), pages: 4 };

fn content() -> Bytes {
    Bytes::from(vec![7; GROUP.bytes()])
}

#[test]
fn a_full_disk_is_a_full_store() {
    simulate(|sim| async move {
        let node = sim.node("peer");
        let disk = node.disk();
        let task = node.spawn(async move {
            let storage = create().await;
            disk.fill();
            let written = storage.write(GROUP, content()).await;
            assert!(matches!(written, Err(StoreError::Full(_))), "{written:?}");
            disk.set_capacity(None);
            storage.write(GROUP, content()).await.expect("there is room");
        });
        task.await.expect("nobody aborts it");
    });
}

/// A thread that needed a page of a broken disk waited for ever, and a message came each millisecond.
#[test]
fn a_page_that_never_can_be_read_is_lost_and_one_that_fails_once_is_not() {
    simulate(|sim| async move {
        let node = sim.node("peer");
        let disk = node.disk();
        let task = node.spawn(async move {
            let storage = create().await;
            storage.write(GROUP, content()).await.expect("the disk works");
            disk.set_failing(true);
            let failed = storage.read(GROUP, BytesMut::new()).await;
            assert!(matches!(failed, Err(StoreError::Unavailable(_))), "{failed:?}");
            disk.set_failing(false);
            assert_eq!(storage.read(GROUP, BytesMut::new()).await.expect("the disk works"), content());
            disk.set_failing(true);
            let mut attempts = 0;
            let lost = loop {
                match storage.read(GROUP, BytesMut::new()).await {
                    Err(StoreError::Lost { range, .. }) => break range,
                    outcome => assert!(outcome.is_err()),
                }
                attempts += 1;
                assert!(attempts < 1000, "it is tried for ever");
            };
            assert!(attempts > 10 && lost == PageRange::of(GROUP.first), "{lost:?} after {attempts} attempts");
            disk.set_failing(false);
            let bytes = storage.read(GROUP, BytesMut::new()).await.expect("the disk works");
            assert_eq!(bytes.len(), 4 * PAGE_BYTES);
        });
        task.await.expect("nobody aborts it");
    });
}
