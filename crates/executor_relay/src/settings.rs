//! What operators decide.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use executors::OwnersAllowed;

/// For how long a connection or a link may be silent before its hello.
pub const HELLO_TIME_MAX: Duration = Duration::from_secs(5);

/// The settings of the program's end.
#[derive(Clone, Debug)]
pub struct ProgramEndSettings {
    /// Where programs connect.
    pub socket: PathBuf,
    /// Where the executors' end listens: `tls:host:port`.
    pub address: String,
    /// The organisation whose certificate the executors' end must present.
    pub organisation: String,
    /// Which users of this host may have executors there, beside root and the user of this process.
    pub owners: OwnersAllowed,
    /// Most programs at the same time.
    pub programs_max: usize,
    /// Most programs of one user.
    pub per_owner_max: usize,
}

/// The user of the executors' host that an organisation's programs stand for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tenant {
    /// The user, who is not root.
    pub user: u32,
    /// Its group, which is not root's.
    pub group: u32,
}

/// The settings of the executors' end.
#[derive(Clone, Debug)]
pub struct ExecutorsEndSettings {
    /// Where it listens: `tls:host:port`.
    pub listen: String,
    /// Where the role does.
    pub role: PathBuf,
    /// By the name of the organisation.
    pub tenants: BTreeMap<String, Tenant>,
    /// Most programs of one organisation at the same time.
    pub per_tenant_max: usize,
}
