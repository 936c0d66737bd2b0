//! `heddle bench`: the benchmarks with their help texts.

use clap::Subcommand;

use super::component::{
    FarMemoryArguments, OrderingArguments, RmaArguments, SignaturesArguments, StateArguments, ValidateArguments,
};
use super::faults::{FailoverArguments, MemoryLostArguments, StorageLostArguments, UnderAttackArguments};
use super::flexchain::{
    ComputePoolArguments, ContentionArguments, ElasticArguments, Fig1Arguments, Fig5aArguments, Fig5bArguments,
    Fig7Arguments, Fig7NetworkArguments, Fig7dArguments, Fig8aArguments, Fig8bArguments, MemoryProcessArguments,
};
use super::kv::{KvBenchArguments, KvEtcdArguments};
use super::sift::{
    CoordinatorLossArguments, MemoryLossArguments, SiftArguments, SiftBackupsArguments, SiftCpuArguments,
};
use super::teleport::{TeleportArguments, TeleportProcessArguments};
use super::workload::{KMeansArguments, SmallBankArguments, YcsbArguments};

const AFTER: &str = "\
Unless --connect names a running network, the measurement starts one of its own in a temporary directory, and removes
it at the end, also after Ctrl-C. Processor times come from the kernel, for all of the network's servers together.
docs/formats/bench.md explains the JSON.";

#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// SmallBank: transfers of money between accounts, with six kinds of transactions
    #[command(after_help = format!("\
Examples:
  heddle bench smallbank
  heddle bench smallbank --policy all --seconds 60 --json smallbank.json --plot smallbank.svg
  heddle bench smallbank --zipf 0.9      contention on few accounts
  heddle bench smallbank --pairs 5       the cost of pooled memory and storage over the monolithic form
  heddle bench smallbank --before ./heddle-1.2      what changed since an older build
  heddle bench smallbank --clients 50 --timer       the gain of cutting blocks early
  heddle bench smallbank --library       the gain of verifying signatures with tables
  heddle bench smallbank --chaincode go  the price of a contract in Go outside of the peers; needs Go
  heddle bench smallbank --clients 1     the latency of one commit beside the fsyncs and round trips that it needs

{AFTER}"))]
    Smallbank(SmallBankArguments),
    /// YCSB: reads and updates of records of a given size
    #[command(after_help = format!("\
Examples:
  heddle bench ycsb                      half reads, half updates, 1 KB
  heddle bench ycsb --value-bytes 10240
  heddle bench ycsb --mix f --zipf 0.99  half reads, half read-modify-writes, skewed
  heddle bench ycsb --mix read=80,update=10,scan=10

{AFTER}"))]
    Ycsb(YcsbArguments),
    /// Food distribution: profiles clustered by k-means, heavy on the processor
    #[command(after_help = format!("\
Example:
  heddle bench kmeans --clients 50

{AFTER}"))]
    Kmeans(KMeansArguments),
    /// The world state alone: reads, blocks, YCSB and memory pressure, beside other stores for it
    #[command(after_help = "\
Examples:
  heddle bench state
  heddle bench state --data-mib 64 --pairs 3 --seconds 1     a quick look
  heddle bench state --only pressure --steady-seconds 600    ten minutes of updates within constant memory
  heddle bench state --json state.json --plot state.svg

Starts no network. Compares each row with an in-process hash map, the storage engine alone,
the monolithic state, and a baseline whose memory node's processor hands out addresses and
buffers, all in the same run. Checks the ratios at the end against their bounds.
docs/formats/bench.md explains the JSON.")]
    State(StateArguments),
    /// Validation of blocks: signatures, the rest, and conflict checks by one thread and by several workers
    #[command(after_help = "\
Examples:
  heddle bench validate
  heddle bench validate --transactions 1000 --blocks 101
  heddle bench validate --json validate.json      the plot is validate.svg

Starts no network. Blocks of 200 and 1,000 signed transactions, of which 0, 10 and 50 % are in conflict, on a world
state in pooled memory. checked_over_floor compares whole validation on one thread with its parts timed alone;
parallel_over_sequential compares the throughput of conflict checks and writes.")]
    Validate(ValidateArguments),
    /// The replicated key-value store: puts and gets per second over gRPC with TLS
    #[command(after_help = "\
Examples:
  heddle bench kv
  heddle bench kv --keys 1000000 --seconds 10
  heddle bench kv --connect ./heddle-kv      the store that runs there; the benchmark writes to it
  heddle bench kv --json kv.json             the plot is kv.svg

Unless --connect names one, the store is a separate process on this machine, so clients and store
share its processors. Keys are chosen uniformly.")]
    Kv(KvBenchArguments),
    /// The replicated key-value store beside etcd, both over gRPC
    #[command(
        name = "kv-etcd",
        after_help = "\
Examples:
  heddle bench kv-etcd
  heddle bench kv-etcd --seconds 5 --json etcd.json      the plot is etcd.svg
  heddle bench kv-etcd --etcd /opt/etcd/etcd

Starts three nodes of etcd (Debian's package etcd-server) on loopback, and three stores as separate processes: one
that keeps nothing on disk; one that acknowledges a put once memory nodes have it on disk, as etcd's nodes do; and
one that keeps it in tables. Clients and all stores share this machine's processors. Loads of puts and of gets
alternate. put_over_etcd and get_over_etcd are the throughput of the first store over etcd's,
durable_put_over_etcd is that of the second."
    )]
    KvEtcd(KvEtcdArguments),
    /// Sift, figure 5: throughput of a key-value store on passive memory nodes, beside Raft
    #[command(
        name = "sift-fig5",
        after_help = "\
Examples:
  heddle bench sift-fig5
  heddle bench sift-fig5 --quick
  heddle bench sift-fig5 --rounds 5 --json fig5.json      the plot is fig5.svg

Write-only, mixed (half and half), read-heavy (one put in ten) and read-only loads, Zipf 0.99, F = 1, in this
process over shared memory: Sift with full copies and with erasure coding, and the Raft engine with batches and
pipelining over messages of the same provider. Nothing is durable on either side. The ratios write_over_raft,
read_over_raft and coded_write_over_plain compare throughput."
    )]
    SiftFig5(SiftArguments),
    /// Sift, figure 6: latency of the same stores, for one client and under load
    #[command(
        name = "sift-fig6",
        after_help = "\
Examples:
  heddle bench sift-fig6
  heddle bench sift-fig6 --quick

Like sift-fig5, for puts alone and gets alone: with one client, and with all at nine tenths of the throughput."
    )]
    SiftFig6(SiftArguments),
    /// Ordering of blocks on passive memory nodes, on Raft, and alone
    #[command(after_help = "\
Examples:
  heddle bench ordering
  heddle bench ordering --quick
  heddle bench ordering --folder /mnt/disk --json ordering.json      the plot is ordering.svg

Blocks of 200 transactions of 1 KB, F = 1, shown once a majority of the orderers has them on disk: three
orderers on three memory nodes, three on Raft with batches and pipelining, and a single one, all in this
process. Cutting and signing of blocks is not measured. sift_cpu_over_raft compares processor time.")]
    Ordering(OrderingArguments),
    /// Sift, figure 7: throughput with a limited processor, beside Raft
    #[command(
        name = "sift-fig7",
        after_help = "\
Examples:
  heddle bench sift-fig7
  heddle bench sift-fig7 --quick
  heddle bench sift-fig7 --processor-percent 10,50,100 --json fig7.json      the plot is fig7.svg

A read-heavy load (one put in ten), Zipf 0.99, for F = 1 and 2. Every node of Raft is a separate process with
a limited processor, and so is Sift's only CPU node; its memory nodes are passive. Clients run within the
leader's limit. The ratios …_over_raft compare throughput at the largest share."
    )]
    SiftFig7(SiftCpuArguments),
    /// Sift, figure 8: how long groups wait for a backup from a shared pool, simulated
    #[command(
        name = "sift-fig8",
        after_help = "\
Examples:
  heddle bench sift-fig8
  heddle bench sift-fig8 --quick
  heddle bench sift-fig8 --groups 1000,3000 --json fig8.json      the plot is fig8.svg

Machines fail at random times: either each alone, or half of them in racks that fail as a whole. Numbers of
machines, days and failures are those of the cluster trace in the paper; the trace's own times are not
available. extra_recovery_s_… is the mean wait per failure with the pool that the paper found sufficient,
backups_for_… the smallest pool with a mean wait of at most 0.1 s; …_racks are the same with racks."
    )]
    SiftFig8(SiftBackupsArguments),
    /// Sift, figure 9: cost of a group relative to a Raft group, F = 1
    #[command(
        name = "sift-fig9",
        after_help = "\
Examples:
  heddle bench sift-fig9
  heddle bench sift-fig9 --quick

Runs sift-fig7, and prices machines of equal throughput as sift-table2 does. saving_aws_f1 and
saving_gcp_f1 are the savings of erasure coding with shared backups."
    )]
    SiftFig9(SiftCpuArguments),
    /// Sift, figure 10: cost of a group relative to a Raft group, F = 2
    #[command(
        name = "sift-fig10",
        after_help = "\
Examples:
  heddle bench sift-fig10
  heddle bench sift-fig10 --quick

Runs sift-fig7, and prices machines of equal throughput as sift-table2 does. saving_aws_f2 and
saving_gcp_f2 are the savings of erasure coding with shared backups."
    )]
    SiftFig10(SiftCpuArguments),
    /// Sift, figure 11: a memory node is killed under load, and comes back
    #[command(
        name = "sift-fig11",
        after_help = "\
Examples:
  heddle bench sift-fig11
  heddle bench sift-fig11 --quick
  heddle bench sift-fig11 --copy-mib 512 --json fig11.json      copies faster, at a price; the plot is fig11.svg

Three memory nodes and a CPU node with its clients, each a separate process. One memory node is killed
(SIGKILL), and an empty one is started in its place. lowest_over_before is the throughput in the worst 100 ms
until the new node is re-admitted, over that before the kill; readmitted_s is the time from the kill to then."
    )]
    SiftFig11(MemoryLossArguments),
    /// Sift, figure 12: the coordinator is killed with its logs full
    #[command(
        name = "sift-fig12",
        after_help = "\
Examples:
  heddle bench sift-fig12
  heddle bench sift-fig12 --quick
  heddle bench sift-fig12 --kills 20 --json fig12.json      the plot is fig12.svg

Three memory nodes and two CPU nodes, each a separate process. Throughput is measured under a read-heavy load.
Then the group's log and the store's are filled, by no longer trimming the group's log, and the coordinator is
killed (SIGKILL). CPU nodes look for heartbeats every 7 ms and stand for election after three misses.
half_recovered_ms is the end of the first 20 ms with half of the throughput, recovered_ms that of the first
100 ms with all of it; log_full_min and group_log_full_min are how full the logs were."
    )]
    SiftFig12(CoordinatorLossArguments),
    /// Sift, table 2: machines of equal throughput, and the cost of groups of them
    #[command(
        name = "sift-table2",
        after_help = "\
Examples:
  heddle bench sift-table2
  heddle bench sift-table2 --quick

Runs sift-fig7. The processor share that Sift needs for the throughput of Raft with half a processor, over that
half, gives the cores of Sift's CPU node where Raft's nodes have eight. Memory and prices are the paper's.
saving_… is the saving of erasure coding with shared backups over a Raft group, for each provider and each F."
    )]
    SiftTable2(SiftCpuArguments),
    /// Remote memory alone: the cost of each verb, for each provider beside its floor
    #[command(after_help = "\
Examples:
  heddle bench rma
  heddle bench rma --rounds 5 --batch-ms 1                   a quick look
  heddle bench rma --provider tcp --unshaped
  heddle bench rma --json rma.json --plot rma.svg

Starts no network. Compares verbs over shm with a copy of the same size or the atomic instruction,
and verbs over tcp with a request and a reply of the same sizes over a bare socket whose ends wait
in the same way; batches of both alternate. Checks the ratios at the end against their bounds.
docs/formats/bench.md explains the JSON.")]
    Rma(RmaArguments),
    /// Far memory alone: page faults and streams of a region over the memory pool, beside their floors
    #[command(after_help = "\
Examples:
  heddle bench farmem
  heddle bench farmem --quick
  heddle bench farmem --provider tcp --json farmem.json      the plot is farmem.svg

Starts no network. Memory nodes of this process hold the pages of two regions, of which a quarter may be resident.
Each verb takes at least as long as over a link of 1.2 us and 56 Gbit/s. The rows `handler` are of a region with a
thread that serves its page faults. In the other region the thread that faults fetches the page itself; the ratios
are of this one. Faults at random pages are compared with the least that a fault and a read of one page cost, a pass
in order with reads of 64 KiB over the provider. Needs access to /dev/userfaultfd. Checks the ratios at the end
against their bounds. docs/formats/bench.md explains the JSON.")]
    Farmem(FarMemoryArguments),
    /// TELEPORT, figure 6: two threads, of which one is pushed down, in five ways
    #[command(
        name = "teleport-fig6",
        after_help = "\
Examples:
  heddle bench teleport-fig6
  heddle bench teleport-fig6 --data-mib 8192 --json fig6.json      the plot is fig6.svg

One thread computes, the other reads at random in far memory of which 2 % is cached. It stays here (none), is
pushed down after the whole process or its own part of the cache was sent (process, thread), or as it is
(coherent); local is the same in the process's own memory. Starts no network. Needs access to
/dev/userfaultfd, and memory for twice the data. docs/formats/bench.md explains the JSON."
    )]
    TeleportFig6(TeleportArguments),
    /// TELEPORT, figure 7: false sharing, coherent and with a manual synchronisation
    #[command(
        name = "teleport-fig7",
        after_help = "\
Examples:
  heddle bench teleport-fig7
  heddle bench teleport-fig7 --quick

Two sides write different halves of the same 16 pages: coherent, and with coherence off and syncmem of the caller's
half at the end. Starts no network. Needs access to /dev/userfaultfd. docs/formats/bench.md explains the JSON."
    )]
    TeleportFig7(TeleportArguments),
    /// TELEPORT, figures 19 and 20: what a call costs, by its six parts
    #[command(
        name = "teleport-fig20",
        after_help = "\
Examples:
  heddle bench teleport-fig20
  heddle bench teleport-fig20 --quick

Empty functions with nothing, a sixteenth and all of the data resident, dirty and clean, with an executor that looks
for calls and one that sleeps; a typical function; and one that writes every 64th page, synchronised on demand
and eagerly. Starts no network. Needs access to /dev/userfaultfd, and memory for three times the data.
docs/formats/bench.md explains the JSON."
    )]
    TeleportFig20(TeleportArguments),
    /// TELEPORT, figure 21: time of two sides that write the same words, over their contention
    #[command(
        name = "teleport-fig21",
        after_help = "\
Examples:
  heddle bench teleport-fig21
  heddle bench teleport-fig21 --json fig21.json      the plot is fig21.svg

Two threads, of which one is pushed down, access memory at random and write a shared word at 0.0001 to 1 % of their
operations: local, coherent, with weak ordering. Starts no network. Needs access to /dev/userfaultfd, and
memory for three times the data. docs/formats/bench.md explains the JSON."
    )]
    TeleportFig21(TeleportArguments),
    /// TELEPORT, figure 22: messages of two sides that write the same words, over their contention
    #[command(
        name = "teleport-fig22",
        after_help = "\
Examples:
  heddle bench teleport-fig22
  heddle bench teleport-fig22 --quick

The runs of teleport-fig21, and the messages that both sides sent. docs/formats/bench.md explains the JSON."
    )]
    TeleportFig22(TeleportArguments),
    /// Verification of P-256 signatures with tables of keys, beside the library
    #[command(after_help = "\
Examples:
  heddle bench signatures
  heddle bench signatures --keys 3000          tables that exceed every cache
  heddle bench signatures --json signatures.json --plot signatures.svg

Starts no network. All ways take turns on one thread; times are processor time, in microseconds
per signature. Checks the ratios at the end against their bounds. On a processor without AVX-512
IFMA it measures the ways that run there. docs/formats/bench.md explains the JSON.")]
    Signatures(SignaturesArguments),
    /// FlexChain, figure 1: the processor time and the memory that two contracts need
    #[command(
        name = "flexchain-fig1",
        after_help = "\
Examples:
  heddle bench flexchain-fig1
  heddle bench flexchain-fig1 --scale 5 --json fig1.json      the plot is fig1.svg

Networks of processes with two organisations are offered two loads at a fixed rate: predictions, which compare a
vector of 10,000 numbers with 20 centroids on the ledger, and a key-value store of 80 KB records with 80 % reads,
10 % inserts and 10 % updates. Shown is what each role takes, with disaggregated and with monolithic peers: the first
load needs compute nodes, the second memory and storage. Takes about five minutes.
docs/formats/bench.md explains the JSON."
    )]
    FlexchainFig1(Fig1Arguments),
    /// FlexChain, figure 5 (a): throughput of K-means over the processors of a peer
    #[command(
        name = "flexchain-fig5a",
        after_help = "\
Examples:
  heddle bench flexchain-fig5a
  heddle bench flexchain-fig5a --cpu-percent 400 --compute-nodes 3 --json fig5a.json      the plot is fig5a.svg

Networks of processes with three organisations and three orderers on Raft run K-means. Each compute node has a quota of
processor time; first one node gets more of it, then the peer gets more nodes. The largest size runs with parallel
validation, too. scaling_over_linear_min is the least growth of throughput over that of processors. This needs
cgroups: run it as root, or in a cgroup that is delegated to you. Takes about six minutes.
docs/formats/bench.md explains the JSON."
    )]
    FlexchainFig5a(Fig5aArguments),
    /// FlexChain, figure 5 (b): throughput over remote memory, with storage reads as slow as a disk's
    #[command(
        name = "flexchain-fig5b",
        after_help = "\
Examples:
  heddle bench flexchain-fig5b
  heddle bench flexchain-fig5b --quick
  heddle bench flexchain-fig5b --delay-us 500 --json fig5b.json      a slower disk; the plot is fig5b.svg

Uniform YCSB-A at 10 KB on one peer in this process: clients read, sign and verify as a network of one
organisation would; a committer checks versions and makes blocks, which are synced and applied. Remote
memory is sized relative to the data; reads that it cannot answer go to storage. The same is measured
without signatures. half_over_full is the throughput with half of the data in memory over that with all
of it. Takes about two minutes. docs/formats/bench.md explains the JSON."
    )]
    FlexchainFig5b(Fig5bArguments),
    /// FlexChain, figure 7: disaggregated beside monolithic peers, under YCSB, SmallBank and K-means
    #[command(
        name = "flexchain-fig7",
        after_help = "\
Examples:
  heddle bench flexchain-fig7
  heddle bench flexchain-fig7 --quick
  heddle bench flexchain-fig7 --only c --json fig7.json      the plot is fig7.svg
  heddle bench flexchain-fig7 --only state                   the state alone

Runs flexchain-fig7a, -fig7b, -fig7c and -fig7d. Each ratio is the throughput of disaggregated peers over that of
monolithic ones: a_min, b_min and c_min under the load with the lowest ratio, d_sequential and d_parallel for K-means
with each form of validation. Takes about twenty minutes.
--only runs one of these parts, or one of three others, which run both forms in turn under YCSB-A, -B and SmallBank:
  network: two networks, each in one process; cpu_over_monolithic_max compares the servers' processor time per
    transaction
  state: one task syncs and applies blocks, through shm and with an added latency; state_over_monolithic_... compare
    throughput
  memtable: the state under write-heavy loads; the monolithic memtable is as large as the data, and blocks wait while it
    is full; disaggregated caches are an eighth of the data (large_memtable_over_monolithic_min), then as large as the
    monolithic ones (large_memtable_equal_caches_min)
docs/formats/bench.md explains the JSON."
    )]
    FlexchainFig7(Fig7Arguments),
    /// FlexChain, figure 7 (a): YCSB on disaggregated peers, and on monolithic ones with two sizes of memory
    #[command(
        name = "flexchain-fig7a",
        after_help = "\
Examples:
  heddle bench flexchain-fig7a
  heddle bench flexchain-fig7a --scale 20 --json fig7a.json      the plot is fig7a.svg

Networks of processes with three organisations, three orderers on Raft, blocks of 200 and parallel validation. Compute
nodes of both forms have the same quota of processor time. Memory limits of compute and storage nodes include page
cache. Remote memory is behind a link of 2 µs. Peers are disaggregated, with local caches for an eighth of the data and
remote memory for all of it; monolithic, with memory for all data; or monolithic, with memory for a thousandth of it.
a_min is the throughput of the first over that of the second, under the load with the lowest ratio. This needs cgroups:
run it as root, or in a cgroup that is delegated to you. docs/formats/bench.md explains the JSON."
    )]
    FlexchainFig7a(Fig7NetworkArguments),
    /// FlexChain, figure 7 (b): SmallBank on disaggregated and monolithic peers
    #[command(
        name = "flexchain-fig7b",
        after_help = "\
Examples:
  heddle bench flexchain-fig7b
  heddle bench flexchain-fig7b --rounds 5 --json fig7b.json      the plot is fig7b.svg

As flexchain-fig7a, with 5, 50 and 95 % of writes, on disaggregated peers and on monolithic peers with memory for all
data. docs/formats/bench.md explains the JSON."
    )]
    FlexchainFig7b(Fig7NetworkArguments),
    /// FlexChain, figure 7 (c): YCSB with data twice the local memory
    #[command(
        name = "flexchain-fig7c",
        after_help = "\
Examples:
  heddle bench flexchain-fig7c
  heddle bench flexchain-fig7c --scale 20 --json fig7c.json      the plot is fig7c.svg

As flexchain-fig7a, with twice the data. Monolithic peers have memory for half of it. Disaggregated peers have unchanged
local caches, and remote memory of 1.25 times the data.
docs/formats/bench.md explains the JSON."
    )]
    FlexchainFig7c(Fig7NetworkArguments),
    /// FlexChain, figure 7 (d): K-means on disaggregated and monolithic peers, with both forms of validation
    #[command(
        name = "flexchain-fig7d",
        after_help = "\
Examples:
  heddle bench flexchain-fig7d
  heddle bench flexchain-fig7d --cpu-percent 400 --rounds 5 --json fig7d.json      the plot is fig7d.svg

Networks of processes with three organisations and three orderers on Raft run K-means. The compute process of a peer
has the same quota of processor time in both forms. d_sequential and d_parallel are the throughput of disaggregated
peers over that of monolithic ones, with each form of validation. This needs cgroups: run it as root, or in a cgroup
that is delegated to you. Takes about six minutes. docs/formats/bench.md explains the JSON."
    )]
    FlexchainFig7d(Fig7dArguments),
    /// FlexChain, figure 8 (a): throughput, hits and aborts over the local caches
    #[command(
        name = "flexchain-fig8a",
        after_help = "\
Examples:
  heddle bench flexchain-fig8a
  heddle bench flexchain-fig8a --quick
  heddle bench flexchain-fig8a --only smallbank --json fig8a.json      the plot is fig8a.svg
  heddle bench flexchain-fig8a --only state --skew 0,0.99              the sources of answers, on the state alone

Networks as those of flexchain-fig7a run YCSB-A, SmallBank and K-means with local caches of several sizes, at three
settings: remote memory for all data, keys chosen uniformly; remote memory for half of what the data takes there,
uniformly; remote memory for all, keys by Zipf's law with exponent 2. half_memory_over_full is the throughput of the
second setting over that of the first, under YCSB-A. Takes about eight minutes.
docs/formats/bench.md explains the JSON."
    )]
    FlexchainFig8a(Fig8aArguments),
    /// FlexChain, figure 8 (b): a limited processor of the memory node, one-sided beside two-sided
    #[command(
        name = "flexchain-fig8b",
        after_help = "\
Examples:
  heddle bench flexchain-fig8b
  heddle bench flexchain-fig8b --quick
  heddle bench flexchain-fig8b --limit pauses --json fig8b.json      without a cgroup; the plot is fig8b.svg

YCSB-A and -B at 10 KB on the state alone, with its memory node in a separate process whose processor is
limited; beside it a memory node that hands out addresses and buffers on request, as in the paper.
throttled_over_unlimited is the throughput at the smallest share over that without a limit. If no cgroup
can be made, signals stop and continue the process instead; the output says which was used. Takes about
two minutes. docs/formats/bench.md explains the JSON."
    )]
    FlexchainFig8b(Fig8bArguments),
    /// Failover: from the kill of a peer's primary to the next block that another compute node applies
    #[command(after_help = "\
Examples:
  heddle bench failover
  heddle bench failover --kills 50 --compute-nodes 3 --json failover.json      the plot is failover.svg

Starts a network of processes in a temporary directory, with clients that read and update random records.
Whenever the first organisation's peer has a primary and followers, the primary's process is killed (SIGKILL).
next_block_ms is the time until another compute node has applied a block as the primary; next_commit_ms is the
time until a transaction has committed that a client of that organisation began after the kill. Both include the
detection of the process's end and the wait for the leases that it held. warm_tps_over_before and
warm_hits_over_before compare the two seconds that start one second after the kill with the two seconds before
it: commits of that organisation's clients, and the share of reads that its compute nodes answered without
storage. docs/formats/bench.md explains the JSON.")]
    Failover(FailoverArguments),
    /// Elastic: what clients notice while a manager follows a load that rises to ten times as much
    #[command(after_help = "\
Examples:
  heddle bench elastic
  heddle bench elastic --rounds 1 --json elastic.json      the plot is elastic.svg

Starts a network of processes in a temporary directory, whose peer has one compute node under a quota, and finds
how many transactions a second (K-means) it carries: one node's load. A manager may give the peer up to four
nodes, each half of the quota to all of it. In each round 20 % of one node's load are offered, then 200 %, then
20 %, at fixed rates; latencies count from the time at which a transaction was due.

second_node_seconds       from the rise of the load until a launched node follows its primary and has endorsed a
                          proposal, by its own report
p99_back_seconds          from the rise to the first two seconds of which the 99th percentile of latency is at most
                          twice that of the low load before
pause_ms                  the longest gap between commits from the rise (and from the fall) to one second after the
                          manager's last change, less that in as long a time at the same load when nothing changed;
                          the larger of both
failed_requests           transactions that did not become valid, in all rounds and while memory nodes were lost
memory_node_lost_seconds  as heddle bench memory-lost, on another network

The first three are medians over the rounds. It needs cgroups: run it as root, or in a cgroup that is delegated to
you. docs/formats/bench.md explains the JSON.")]
    Elastic(ElasticArguments),
    /// Memory lost: throughput after one of a peer's two memory nodes has frozen, and after one has died
    #[command(
        name = "memory-lost",
        after_help = "\
Examples:
  heddle bench memory-lost
  heddle bench memory-lost --clients 32 --json memory-lost.json      the plot is memory-lost.svg

Starts a network of processes in a temporary directory, whose peer has two memory nodes at TCP addresses, and
clients that read and update random records. One memory node is frozen for 12 s (SIGSTOP), later the other one is
killed (SIGKILL). lost_seconds is the time until the first second whose commits reach 0.9 of the throughput of the
five seconds before. docs/formats/bench.md explains the JSON."
    )]
    MemoryLost(MemoryLostArguments),
    /// Storage lost: throughput after one of a peer's two copies has died, and after one has frozen
    #[command(
        name = "storage-lost",
        after_help = "\
Examples:
  heddle bench storage-lost
  heddle bench storage-lost --clients 32 --json storage-lost.json      the plot is storage-lost.svg

Starts a network of processes in a temporary directory, whose peer has copies of its blocks and tables at two of
three storage nodes, and clients that read and update random records. One node with a copy is killed (SIGKILL)
and restarted, later one is frozen for 12 s (SIGSTOP), and at last a copy moves to the third node. pause_ms is the
longest time without a commit, complete_seconds the time until two copies are complete again.
docs/formats/bench.md explains the JSON."
    )]
    StorageLost(StorageLostArguments),
    /// Contention: transactions that want the same keys, with reordering and early abort and without
    #[command(after_help = "\
Examples:
  heddle bench contention
  heddle bench contention --rate 2000 --json contention.json      the plot is contention.svg

Two networks, with ordering.reorder and ordering.early_abort and without them, are offered the same transactions
at the same rate, in blocks of 200: transactions that read five records and write one, YCSB A and YCSB F, with
keys chosen evenly and by Zipf's law. A transaction that Submit aborts counts as offered. cost_uniform is what
SmallBank's throughput loses by the options when keys are chosen evenly.
docs/formats/bench.md explains the JSON.")]
    Contention(ContentionArguments),
    /// Compute pool: throughput with one and three compute nodes, and the price of invalidations
    #[command(
        name = "compute-pool",
        after_help = "\
Examples:
  heddle bench compute-pool
  heddle bench compute-pool --cpu-percent 50 --json pool.json      the plot is pool.svg

1. Networks of processes, whose peer has one or three compute nodes with a quota of processor time each, run
   K-means and SmallBank in turns. This needs cgroups: run it as root, or in a cgroup that is delegated to you.
2. A primary with 0, 8 and 63 followers, all in one process, applies blocks. Each follower has cached the keys
   that the blocks write, so it must forget them before the block shows. invalidation_us is the processor time of
   the primary's thread for a block, less that without followers.
docs/formats/bench.md explains the JSON."
    )]
    ComputePool(ComputePoolArguments),
    /// Under attack: the throughput that a legitimate organisation keeps while all attacks run at once
    #[command(
        name = "under-attack",
        after_help = "\
Examples:
  heddle bench under-attack
  heddle bench under-attack --quick
  heddle bench under-attack --pairs 9 --json attacked.json      the plot is attacked.svg

Starts a network of three organisations in a temporary directory, with a process for each role. Clients of the
first two organisations run SmallBank in calm and attacked windows in turn; the attackers are outsiders, and
members of the third organisation. Each attack is a process of the program `attack`, which shares no code with
this one; a cgroup limits all of them together to a quarter of a processor. Each attack runs at its own pace
times --factor, so that all fit. A run in which an attack falls below half of that pace is invalid: the output
says so, and the exit code is 1. memory_over_budget_mib is the memory of the largest process beyond its settings
and 64 MiB. docs/formats/bench.md explains the JSON."
    )]
    UnderAttack(UnderAttackArguments),
    /// A memory node for flexchain-fig8b, as a process of this program
    #[command(name = "memory-process", hide = true)]
    MemoryProcess(MemoryProcessArguments),
    /// A process that pushes functions down, for the figures of TELEPORT
    #[command(name = "teleport-process", hide = true)]
    TeleportProcess(TeleportProcessArguments),
    /// A part of a store for sift-fig7, -fig11 and -fig12, as a process of this program
    #[command(name = "sift-process", hide = true)]
    SiftProcess,
}
