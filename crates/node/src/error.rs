//! Why a network could not be made, opened or run.

use std::path::PathBuf;

use base::ErrorKind;

use crate::config::ConfigError;

/// Each names what is wrong and, where there is something to do, what to do.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("{0} holds no network; make one with `heddle up --dir {0}`", path.display())]
    NoNetwork { path: PathBuf },
    #[error("{} is not empty and holds no network; choose an empty directory or remove it", path.display())]
    NotEmpty { path: PathBuf },
    #[error(
        "the network in {} was made with {key} = {made}, and {asked} was asked for; what a network is cannot change: \
         choose another directory or leave {key} as it was", path.display()
    )]
    Contradiction { path: PathBuf, key: &'static str, made: String, asked: String },
    #[error("cannot listen on {address} for the {role}: {source}; choose other ports under [ports], or 0 for any free ones")]
    Listen { address: std::net::SocketAddr, role: String, source: std::io::Error },
    #[error("contract {0:?} is not known; `heddle config` lists those that are")]
    UnknownContract(String),
    #[error("{} is damaged: {what}", path.display())]
    Damaged { path: PathBuf, what: String },
    #[error(transparent)]
    Storage(#[from] storage::Error),
    #[error(transparent)]
    Identity(#[from] identity::Error),
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
    #[error(transparent)]
    Chain(#[from] chain::Error),
    #[error("gateway: {0}")]
    Gateway(String),
}

impl NodeError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            NodeError::File { source, .. } | NodeError::Listen { source, .. } => ErrorKind::of_io(source),
            NodeError::Storage(error) => error.kind(),
            NodeError::Identity(error) => error.kind(),
            NodeError::Ledger(error) => error.kind(),
            NodeError::Chain(error) => error.kind(),
            NodeError::Damaged { .. } => ErrorKind::Corrupt,
            _ => ErrorKind::Rejected,
        }
    }
}
