//! `heddle farmem relay`, and what both ends of the relay need.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

/// Run functions on another host, beside its memory
///
/// Programs take this command for the role executors: they have its socket in HEDDLE_EXECUTORS, or in their options. It
/// carries what they and their executors say to each other to `heddle farmem executors --listen` on the other host, over
/// mutual TLS. Which user the programs have there is said there, by the organisation of --certificate. Run one such
/// command for each user of this host whose programs are to be kept apart.
///
/// When an executor ends or the link to it breaks, its program learns why. Pages that only that executor had are lost.
/// SIGTERM and Ctrl-C end it, and with it the executors of its programs.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle farmem relay --socket /run/heddle/far --to tls:memory1.example.com:7080 --organisation Pool \\
      --certificate node.pem --key node.key --trust Pool=pool-ca.pem
  HEDDLE_EXECUTORS=/run/heddle/far ./analyse"
)]
pub struct FarMemoryRelayArguments {
    /// Where programs connect: a path, whose folder exists
    #[arg(long, value_name = "PATH", default_value = "/run/heddle/relay")]
    pub socket: PathBuf,
    /// Where the role of the other host listens, as tls:HOST:PORT; its certificate must contain HOST
    #[arg(long, value_name = "ADDRESS")]
    pub to: String,
    /// The organisation of the other host, one of --trust
    #[arg(long, value_name = "NAME")]
    pub organisation: String,
    #[command(flatten)]
    pub tls: RelayTlsArguments,
    /// A user, by number, that may have executors beside root and the user of this command; may be repeated
    #[arg(long, value_name = "UID", conflicts_with = "any_owner")]
    pub owner: Vec<u32>,
    /// Every user of this host may have executors
    #[arg(long)]
    pub any_owner: bool,
    /// The most programs at the same time
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub programs_max: usize,
    /// The most programs of one user
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub per_owner: usize,
    /// Serve metrics and health over HTTP
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<SocketAddr>,
}

// What links to other hosts need. A documentation comment would replace that of the commands.
#[derive(Args, Debug, Clone, Default)]
pub struct RelayTlsArguments {
    /// The certificate of this host for links to others, and intermediate ones, in PEM
    #[arg(long, value_name = "FILE")]
    pub certificate: Option<PathBuf>,
    /// Its key, in PEM (PKCS#8); nobody but this user may read it
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// An organisation, and a file with its authorities' certificates and revocation lists in PEM; may be repeated
    #[arg(long, value_name = "NAME=FILE", value_parser = named_file)]
    pub trust: Vec<(String, PathBuf)>,
}

// What the executors' end has beside. As above.
#[derive(Args, Debug, Clone, Default)]
pub struct RelayListenArguments {
    /// Serve programs of other hosts too, at tls:HOST:PORT, to which `heddle farmem relay` leads
    #[arg(long, value_name = "ADDRESS", requires_all = ["certificate", "key", "trust", "tenant"])]
    pub listen: Option<String>,
    #[command(flatten)]
    pub tls: RelayTlsArguments,
    /// An organisation of --trust, and which user and group of this host own its executors; may be repeated
    #[arg(long, value_name = "NAME=UID[:GID]", value_parser = tenant, requires = "listen")]
    pub tenant: Vec<(String, u32, u32)>,
    /// The most programs of one organisation at the same time
    #[arg(long, value_name = "N", default_value_t = 32, requires = "listen")]
    pub per_tenant: usize,
}

fn named_file(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, file)) if !name.is_empty() && !file.is_empty() => Ok((name.to_owned(), file.into())),
        _ => Err("write NAME=FILE".to_owned()),
    }
}

fn tenant(text: &str) -> Result<(String, u32, u32), String> {
    let parsed = text.split_once('=').filter(|(name, _)| !name.is_empty()).and_then(|(name, numbers)| {
        let (user, group) = numbers.split_once(':').unwrap_or((numbers, numbers));
        Some((name.to_owned(), user.parse().ok()?, group.parse().ok()?))
    });
    parsed.ok_or_else(|| "write NAME=UID or NAME=UID:GID, with numbers".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_have_a_user_and_a_group() {
        assert_eq!(tenant("Org1=1000"), Ok(("Org1".to_owned(), 1000, 1000)));
        assert_eq!(tenant("Org1=1000:100"), Ok(("Org1".to_owned(), 1000, 100)));
        for wrong in ["Org1", "=1000", "Org1=alice", "Org1=1:x"] {
            assert!(tenant(wrong).is_err(), "{wrong}");
        }
        assert_eq!(named_file("Pool=ca.pem"), Ok(("Pool".to_owned(), "ca.pem".into())));
        assert!(named_file("ca.pem").is_err() && named_file("Pool=").is_err());
    }
}
