//! What other compute nodes read of the copies: the second half of step 4.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use base::rt::channel::{WatchReceiver, WatchSender, watch};
use base::rt::{self, AbortOnDrop, sync::Mutex as AsyncMutex};
use base::{BlockNumber, Bytes, Epoch, ErrorKind, Map, TxId, Version};
use futures_util::future::{join, join_all};
use storage::blocks::{StoredBlocks, TransactionLocation};
use storage::node::{RemotePrivateRows, RemoteReads, RemoteStateStore, View};
use storage::tables::{RangePage, RangeQuery, Row, Savepoint};
use storage::{Error, History, HistoryQuery, PrivateRow, PrivateRows, PrivateTable, StateStore};

use crate::election::{copy_states, newest_view};
use crate::limits::{READ_TIMEOUT, REPEAT_MAX, REPEAT_PAUSE, SAVEPOINT_PERIOD};
use crate::set::{CopyNode, CopySet, error, passes};

/// Reads the durable blocks of a channel, whichever primary writes it. Contacts no node until it is asked.
#[derive(Clone)]
pub struct CopiedReads {
    reader: Arc<CopiesReader>,
}

/// Reads the rows of a channel, whichever primary writes it.
#[derive(Clone)]
pub struct CopiedRowReads {
    reader: Arc<CopiesReader>,
    savepoint: Arc<WatchSender<u64>>,
    _following: Arc<AbortOnDrop<()>>,
}

/// One table of private rows as a follower uses it: it reads both tables, and writes transient rows.
#[derive(Clone)]
pub struct CopiedPrivateReads {
    reader: Arc<CopiesReader>,
    table: PrivateTable,
}

/// The copies of a channel as a reader reaches them.
pub(crate) struct CopiesReader {
    set: CopySet,
    channel: String,
    /// The newest view that is known.
    view: Mutex<Option<View>>,
    nodes: AsyncMutex<Map<String, Arc<NodeReader>>>,
}

/// One node as a reader reaches it.
struct NodeReader {
    node: CopyNode,
    reads: RemoteReads,
    rows: AsyncMutex<Option<Arc<RemoteStateStore>>>,
    private: [RemotePrivateRows; 2],
    remote: storage::node::RemoteStoreConfig,
}

impl NodeReader {
    async fn rows(&self) -> Result<Arc<RemoteStateStore>, Error> {
        let mut opened = self.rows.lock().await;
        if let Some(rows) = &*opened {
            return Ok(Arc::clone(rows));
        }
        let rows = Arc::new(RemoteStateStore::open_read_only(self.remote.clone()).await?);
        *opened = Some(Arc::clone(&rows));
        Ok(rows)
    }
}

impl CopiesReader {
    async fn node(&self, name: &str) -> Result<Arc<NodeReader>, Error> {
        let mut nodes = self.nodes.lock().await;
        if let Some(known) = nodes.get(name) {
            return Ok(Arc::clone(known));
        }
        let node = self.set.node(name).ok_or_else(|| {
            error(self.set.first(), ErrorKind::Retry, format!("{name} has a copy, and is not configured"))
        })?;
        let remote = self.set.remote(node, &self.channel, Epoch(0));
        let opened = Arc::new(NodeReader {
            node: node.clone(),
            reads: RemoteReads::new(remote.clone()),
            rows: AsyncMutex::new(None),
            private: RemotePrivateRows::of_follower(remote.clone()),
            remote,
        });
        nodes.insert(name.to_owned(), Arc::clone(&opened));
        Ok(opened)
    }

    /// The newest view, from the nodes that answer. A channel without one lies on the first node.
    async fn view(&self) -> View {
        if let Some(view) = self.view.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            return view;
        }
        let view = newest_view(&copy_states(&self.set, &self.channel).await);
        if view.id.number > 0 {
            *self.view.lock().unwrap_or_else(PoisonError::into_inner) = Some(view.clone());
        }
        view
    }

    fn forget_view(&self) {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Asks one member, and has all of them confirm the view meanwhile. If no later view was in force when the question was asked, the
    /// member has everything that was reported durable before.
    async fn ask<T, F>(&self, ask: impl Fn(Arc<NodeReader>) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        if self.set.is_single() {
            return ask(self.node(&self.set.first().name).await?).await;
        }
        let started = rt::now();
        let mut turn = 0;
        loop {
            let failed = match self.attempt(&ask, turn).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => return Err(error),
                Err(error) => error,
            };
            self.forget_view();
            turn += 1;
            if started.elapsed() > REPEAT_MAX {
                return Err(failed);
            }
            rt::sleep(REPEAT_PAUSE).await;
        }
    }

    /// The height below which every member has the rows.
    async fn lowest_savepoint(&self) -> Result<u64, Error> {
        let view = self.view().await;
        let mut lowest = None;
        for name in self.readable(&view) {
            let node = self.node(&name).await?;
            let asked = rt::timeout(READ_TIMEOUT, async {
                node.reads.check_view(view.id).await?;
                Ok::<_, Error>(node.rows().await?.savepoint().height)
            });
            let late = |_| error(&node.node, ErrorKind::Retry, "it does not answer a reader in time");
            let height = asked.await.map_err(late)??;
            lowest = Some(lowest.map_or(height, |lowest: u64| lowest.min(height)));
        }
        lowest.ok_or_else(|| error(self.set.first(), ErrorKind::Retry, "there is no complete copy"))
    }

    /// The names of the complete copies. A channel without a view lies on the first node.
    fn readable(&self, view: &View) -> Vec<String> {
        match view.id.number {
            0 => vec![self.set.first().name.clone()],
            _ => view.members().map(str::to_owned).collect(),
        }
    }

    /// The outer error says that another attempt is due.
    async fn attempt<T, F>(&self, ask: &impl Fn(Arc<NodeReader>) -> F, turn: usize) -> Result<Result<T, Error>, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let view = self.view().await;
        let names = self.readable(&view);
        let mut members = Vec::with_capacity(names.len());
        for name in &names {
            members.push(self.node(name).await?);
        }
        let asked = &members[turn % members.len().max(1)];
        let confirming = join_all(members.iter().map(|member| member.reads.check_view(view.id)));
        let both = join(ask(Arc::clone(asked)), confirming);
        let late = |_| error(&asked.node, ErrorKind::Retry, "it does not answer a reader in time");
        let (answer, confirmed) = rt::timeout(READ_TIMEOUT, both).await.map_err(late)?;
        // The mutant of the simulation: a reader does not ask whether its view is the newest.
        if !rt::fault_point("storage.copies.mutant.reader_trusts_view") {
            confirmed.into_iter().collect::<Result<(), Error>>()?;
        }
        match answer {
            Err(error) if passes(&error) => Err(error),
            answer => Ok(answer),
        }
    }
}

impl CopiedReads {
    /// Contacts no node yet.
    pub fn new(set: CopySet, channel: &str) -> CopiedReads {
        let (channel, view) = (channel.to_owned(), Mutex::default());
        CopiedReads { reader: Arc::new(CopiesReader { set, channel, view, nodes: AsyncMutex::default() }) }
    }

    /// The rows.
    pub fn rows(&self) -> CopiedRowReads {
        let savepoint = Arc::new(watch(0).0);
        let following = rt::spawn(follow_savepoint(Arc::clone(&self.reader), Arc::clone(&savepoint)));
        CopiedRowReads { reader: Arc::clone(&self.reader), savepoint, _following: Arc::new(following.abort_on_drop()) }
    }

    /// The private rows of committed and of transient data.
    pub fn private(&self) -> [CopiedPrivateReads; 2] {
        [PrivateTable::Committed, PrivateTable::Transient]
            .map(|table| CopiedPrivateReads { reader: Arc::clone(&self.reader), table })
    }
}

#[async_trait::async_trait]
impl StoredBlocks for CopiedReads {
    async fn read(&self, number: BlockNumber) -> Result<Option<Bytes>, Error> {
        self.reader.ask(|node| async move { node.reads.read(number).await }).await
    }

    async fn number_by_hash(&self, header_hash: &[u8; 32]) -> Result<Option<BlockNumber>, Error> {
        let hash = *header_hash;
        self.reader.ask(|node| async move { node.reads.number_by_hash(&hash).await }).await
    }

    async fn find_transaction(&self, id: &TxId) -> Result<Option<TransactionLocation>, Error> {
        self.reader.ask(|node| async move { node.reads.find_transaction(id).await }).await
    }
}

#[async_trait::async_trait]
impl History for CopiedReads {
    async fn blocks_of(&self, query: HistoryQuery<'_>) -> Result<Vec<BlockNumber>, Error> {
        self.reader.ask(|node| async move { node.reads.blocks_of(query).await }).await
    }
}

/// Learns below which height every member has the rows. Never ends.
async fn follow_savepoint(reader: Arc<CopiesReader>, known: Arc<WatchSender<u64>>) {
    loop {
        match reader.lowest_savepoint().await {
            Ok(height) => drop(known.send_if_modified(|known| {
                let is_newer = height > *known;
                *known = height.max(*known);
                is_newer
            })),
            Err(_) => reader.forget_view(),
        }
        rt::sleep(SAVEPOINT_PERIOD).await;
    }
}

fn read_only() -> Error {
    Error::Invalid("a follower does not write rows")
}

#[async_trait::async_trait]
impl StateStore for CopiedRowReads {
    async fn get(&self, namespace: &str, key: &[u8], through: BlockNumber) -> Result<Option<Row>, Error> {
        self.reader.ask(|node| async move { node.rows().await?.get(namespace, key, through).await }).await
    }

    async fn get_many(&self, keys: &[(&str, &[u8])], through: BlockNumber) -> Result<Vec<Option<Row>>, Error> {
        self.reader.ask(|node| async move { node.rows().await?.get_many(keys, through).await }).await
    }

    async fn versions(
        &self,
        keys: &[(&str, &[u8])],
        through: BlockNumber,
    ) -> Result<Vec<Option<(Version, bool)>>, Error> {
        self.reader.ask(|node| async move { node.rows().await?.versions(keys, through).await }).await
    }

    async fn range(&self, query: RangeQuery<'_>) -> Result<RangePage, Error> {
        self.reader.ask(|node| async move { node.rows().await?.range(query).await }).await
    }

    async fn namespaces(&self) -> Result<Vec<String>, Error> {
        self.reader.ask(|node| async move { node.rows().await?.namespaces().await }).await
    }

    /// Its height only: which block it names, the primary knows.
    fn savepoint(&self) -> Savepoint {
        Savepoint { height: *self.savepoint.borrow(), ..Savepoint::default() }
    }

    fn subscribe_savepoint(&self) -> WatchReceiver<u64> {
        self.savepoint.subscribe()
    }

    async fn materialize(&self, _height: u64) -> Result<Savepoint, Error> {
        Err(read_only())
    }

    async fn prune(&self, _oldest: BlockNumber) -> Result<(), Error> {
        Err(read_only())
    }
}

#[async_trait::async_trait]
impl PrivateRows for CopiedPrivateReads {
    async fn write(&self, rows: Vec<PrivateRow>) -> Result<(), Error> {
        if self.reader.set.is_single() {
            let node = self.reader.node(&self.reader.set.first().name).await?;
            return node.private[at(self.table)].write(rows).await;
        }
        let started = rt::now();
        loop {
            let failed = match self.write_everywhere(&rows).await {
                Err(error) if passes(&error) => error,
                outcome => return outcome,
            };
            self.reader.forget_view();
            if started.elapsed() > REPEAT_MAX {
                return Err(failed);
            }
            rt::sleep(REPEAT_PAUSE).await;
        }
    }

    async fn get_many(&self, keys: &[(&str, &[u8])], through: BlockNumber) -> Result<Vec<Option<Row>>, Error> {
        let table = at(self.table);
        self.reader.ask(|node| async move { node.private[table].get_many(keys, through).await }).await
    }

    async fn range(&self, query: RangeQuery<'_>) -> Result<RangePage, Error> {
        let table = at(self.table);
        self.reader.ask(|node| async move { node.private[table].range(query).await }).await
    }

    async fn prune(&self, _oldest: BlockNumber) -> Result<bool, Error> {
        Err(read_only())
    }
}

impl CopiedPrivateReads {
    /// Writes to every copy of one view, learners included.
    async fn write_everywhere(&self, rows: &[PrivateRow]) -> Result<(), Error> {
        let view = self.reader.view().await;
        if view.id.number == 0 {
            let node = self.reader.node(&self.reader.set.first().name).await?;
            return node.private[at(self.table)].write(rows.to_vec()).await;
        }
        let writing = view.copies.iter().map(|copy| async {
            let node = self.reader.node(&copy.name).await?;
            let writing = node.private[at(self.table)].write_copied(rows.to_vec(), view.id, 0);
            crate::election::within(&node.node, READ_TIMEOUT, writing).await
        });
        join_all(writing).await.into_iter().collect()
    }
}

fn at(table: PrivateTable) -> usize {
    match table {
        PrivateTable::Committed => 0,
        PrivateTable::Transient => 1,
    }
}

impl fmt::Debug for CopiedReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopiedReads").field("set", &self.reader.set).finish_non_exhaustive()
    }
}

impl fmt::Debug for CopiedRowReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopiedRowReads").field("set", &self.reader.set).finish_non_exhaustive()
    }
}

impl fmt::Debug for CopiedPrivateReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopiedPrivateReads").field("table", &self.table).finish_non_exhaustive()
    }
}
