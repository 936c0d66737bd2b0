//! Whose process holds the other end of a connection on this machine.
//!
//! Linux lists its TCP sockets with their users in `/proc/net/tcp`, and those of IPv6, to which a mapped IPv4 address
//! belongs, in `/proc/net/tcp6`. A line has the columns number, local address, remote address, state, queues, timer,
//! retransmissions, user. The last four bytes of an address are IPv4's, as a number of the machine's byte order.

use std::net::{SocketAddr, SocketAddrV4};
use std::os::unix::fs::MetadataExt as _;

const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
const ESTABLISHED: &str = "01";
/// What stands before an IPv4 address that is mapped into IPv6: 80 bits of zeros and 16 of ones, in numbers of 32 bits.
const MAPPED: &str =
    if cfg!(target_endian = "little") { "0000000000000000FFFF0000" } else { "00000000000000000000FFFF" };
const USER_COLUMN: usize = 7;

/// Checks that a process of this process's user has connected from `client` to `server`.
///
/// # Errors
/// Why it may not go on.
pub(super) fn belongs_to_this_user(client: SocketAddr, server: SocketAddrV4) -> Result<(), String> {
    let SocketAddr::V4(client) = client else { return Err("the client has not come by IPv4".to_owned()) };
    let unknown = |error: std::io::Error| format!("the client's user cannot be found: {error}");
    let own = std::fs::metadata("/proc/self").map_err(unknown)?.uid();
    for table in TABLES {
        // A machine without IPv6 lacks its table.
        let lines = std::fs::read_to_string(table).unwrap_or_default();
        match owner(&lines, client, server) {
            Some(user) if user == own => return Ok(()),
            Some(_) => return Err("only a process of the user who runs the chaincode may register".to_owned()),
            None => {}
        }
    }
    Err("the client's connection is not in /proc/net".to_owned())
}

/// The user of the socket that has connected from `client` to `server`.
fn owner(table: &str, client: SocketAddrV4, server: SocketAddrV4) -> Option<u32> {
    let [client, server] = [client, server].map(|address| {
        let ip = u32::from_ne_bytes(address.ip().octets());
        format!("{ip:08X}:{:04X}", address.port())
    });
    let is = |shown: &str, address: &str| shown.strip_prefix(MAPPED).unwrap_or(shown) == address;
    table.lines().find_map(|line| {
        let columns: Vec<&str> = line.split_ascii_whitespace().take(USER_COLUMN + 1).collect();
        let &[_, local, remote, ESTABLISHED, _, _, _, user] = columns.as_slice() else { return None };
        (is(local, &client) && is(remote, &server)).then(|| user.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_of_this_process_belongs_to_its_user() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let SocketAddr::V4(server) = listener.local_addr().expect("an address") else { panic!("it is IPv4") };
        let client = TcpStream::connect(server).expect("a listener");
        let from = client.local_addr().expect("an address");
        assert_eq!(belongs_to_this_user(from, server), Ok(()));
        let other = SocketAddrV4::new(*server.ip(), server.port() ^ 1);
        assert!(belongs_to_this_user(from, other).is_err(), "it is not connected to that port");
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn a_table_names_the_user_of_an_established_connection() {
        let [client, server] = [40000, 7051].map(|port| SocketAddrV4::new([127, 0, 0, 1].into(), port));
        let line = |local: &str, remote: &str, state: &str| {
            format!(
                "   1: {local}:9C40 {remote}:1B8B {state} 00000000:00000000 00:00000000 00000000  1000        0 1 1\n"
            )
        };
        let (plain, mapped) = ("0100007F", "0000000000000000FFFF00000100007F");
        for (table, expected) in [
            (line(plain, plain, "01"), Some(1000)),
            (line(mapped, mapped, "01"), Some(1000)),
            // A socket that has closed belongs to nobody, or to root.
            (line(plain, plain, "06"), None),
            (line("0200007F", plain, "01"), None),
            (line("0000000000000000FFFF00010100007F", plain, "01"), None),
            (line(plain, "0200007F", "01"), None),
            ("   1: 0100007F:9C40 0100007F:1B8B 01 0\n".to_owned(), None),
            ("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n".to_owned(), None),
        ] {
            assert_eq!(owner(&table, client, server), expected, "{table}");
        }
    }
}
