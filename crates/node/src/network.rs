//! A whole network in one process: an orderer, and a peer with its gateway for each organisation.
//!
//! Start: 1. lock the directory; 2. open the orderer's log and serve it to peers; 3. open each peer, which replays what
//! its state lacks, and follow the orderer; 4. listen on every port; 5. write `endpoints.json`.
//!
//! Stop, in the other order: 1. refuse new requests and let those in flight end; 2. stop the peers, which make their
//! state durable; 3. stop the orderer; 4. release the lock.
//!
//! Invariant: organisations share the process and the blocks' immutable bytes, and nothing else: each peer has its own
//! directory, keys, state and caches, and verifies for itself.
