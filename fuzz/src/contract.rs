//! Decoders of `contract`: packages that administrators install, and messages of chaincodes.

use std::io::{Read as _, Write as _};

use base::fuzz::{FuzzTarget, InputShape, within};
use contract::packages::{ChaincodePackage, PACKAGE_BYTES_MAX, package_of_dialer, package_of_service};
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "contract-package", shape: InputShape::Bytes, run: package, seeds: packages },
    FuzzTarget { name: "contract-package-entries", shape: InputShape::Bytes, run: entries, seeds: tars },
];

/// Deflated bytes unpack to at most this many times their number; memory that grows by doubling takes three times the content.
/// The package's own bound holds beside it.
const UNPACKED_TIMES: usize = 3 * 1032;

/// An accepted package has an id of its label and its hash, and an address with a port if it has one. None of its names
/// leads out of the folder of packages.
fn package(input: &[u8]) {
    let Ok(package) = within(UNPACKED_TIMES, input.len(), || ChaincodePackage::parse(input)) else { return };
    let (label, hash) = package.id.rsplit_once(':').expect("an id has a label and a hash");
    assert_eq!(label, package.label);
    assert!(hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert!(!label.is_empty() && !label.starts_with('.') && !label.contains(['/', '\\', '\0']), "{label:?}");
    if let Some(connection) = package.connection {
        let (host, port) = connection.address.rsplit_once(':').expect("host:port");
        assert!(!host.is_empty() && port.parse::<u16>().is_ok(), "{:?}", connection.address);
    }
}

/// As [`package`], for the bytes of the two archives before they are compressed: a change of compressed bytes rarely
/// unpacks. The input is either of them.
fn entries(input: &[u8]) {
    assert!(input.len() < PACKAGE_BYTES_MAX);
    package(&gzip(input));
    let code = gzip(input);
    let metadata = br#"{"type":"ccaas","label":"assets_1.0"}"#;
    let outer = [entry("metadata.json", metadata), entry("code.tar.gz", &code), vec![0; 1024]].concat();
    package(&gzip(&outer));
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory takes every byte");
    encoder.finish().expect("memory takes every byte")
}

/// An entry of a tar.
fn entry(name: &str, content: &[u8]) -> Vec<u8> {
    let mut header = [0_u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
    header[156] = b'0';
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let mut entry = [&header[..], content].concat();
    entry.resize(entry.len().next_multiple_of(512), 0);
    entry
}

fn packages() -> Vec<Vec<u8>> {
    let zeros = gzip(&vec![0; 1 << 20]);
    let bomb = [gzip(&entry("code.tar.gz", &[])), zeros].concat();
    vec![package_of_service("assets_1.0", "127.0.0.1:9999"), package_of_dialer("assets_1.0"), bomb]
}

/// The archives of packages, unpacked.
fn tars() -> Vec<Vec<u8>> {
    let unpacked = |bytes: Vec<u8>| {
        let mut tar = Vec::new();
        MultiGzDecoder::new(&bytes[..]).read_to_end(&mut tar).expect("it was made here");
        tar
    };
    let connection = br#"{"address":"host:9999","dial_timeout":"10s","tls_required":true,"root_cert":"a","client_auth_required":true,"client_key":"b","client_cert":"c"}"#;
    vec![
        unpacked(package_of_service("assets_1.0", "127.0.0.1:9999")),
        [entry("./connection.json", connection), vec![0; 1024]].concat(),
        [entry("../../etc/passwd", b"x"), entry("connection.json", b"{}"), vec![0; 1024]].concat(),
    ]
}
