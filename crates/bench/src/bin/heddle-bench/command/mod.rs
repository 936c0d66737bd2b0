//! One module for each family of benchmarks.

mod compute_pool;
mod contention;
mod elastic;
mod etcd;
mod failover;
mod fig1;
mod fig5a;
mod fig7;
mod fig7d;
mod fig8a;
mod figure;
mod flexchain;
mod kmeans_network;
mod kv_bench;
mod losses;
pub mod measure;
mod memory_lost;
mod paper_sizes;
mod peer_network;
mod sift;
mod storage_lost;
mod teleport;
mod under_attack;

use std::path::PathBuf;

use heddle_cli::beside;

use crate::failure::CommandError;

/// The program that runs what is measured.
fn heddle() -> Result<PathBuf, CommandError> {
    beside::program("heddle", "heddle")
}
