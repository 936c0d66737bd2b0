use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;

use super::*;
use crate::packages::archive::UNPACKED_BYTES_MAX;

fn entry(name: &str, kind: u8, announced: u64, content: &[u8]) -> Vec<u8> {
    let mut header = [0_u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..107].copy_from_slice(b"0000644");
    header[124..135].copy_from_slice(format!("{announced:011o}").as_bytes());
    header[156] = kind;
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let mut entry = header.to_vec();
    entry.extend_from_slice(content);
    entry.resize(entry.len().next_multiple_of(512), 0);
    entry
}

fn file(name: &str, content: &[u8]) -> Vec<u8> {
    entry(name, b'0', content.len() as u64, content)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
    gzip(&[entries.concat(), vec![0; 1024]].concat())
}

fn package(metadata: &str, connection: &str) -> Vec<u8> {
    let code = archive(&[file("connection.json", connection.as_bytes())]);
    archive(&[file("metadata.json", metadata.as_bytes()), file("code.tar.gz", &code)])
}

const METADATA: &str = r#"{"type":"ccaas","path":"","label":"assets_1.0"}"#;

fn problem(package: &[u8]) -> String {
    ChaincodePackage::parse(package).expect_err("it is refused")
}

#[test]
fn a_package_has_its_label_and_hash_as_its_id() {
    let bytes = package(METADATA, r#"{"address":"host:9999","dial_timeout":"10s","tls_required":false}"#);
    let package = ChaincodePackage::parse(&bytes).expect("a package");
    assert_eq!(package.id, format!("assets_1.0:{}", hex::encode(sha256([&bytes[..]]))));
    let connection = package.connection.expect("an address");
    assert_eq!((connection.address.as_str(), connection.dial_timeout), ("host:9999", Duration::from_secs(10)));
    assert!(connection.root_cert.is_none() && connection.client.is_none());
}

#[test]
fn a_package_that_was_made_here_is_read_back() {
    let bytes = package_of_service("assets_1.0", "127.0.0.1:9999");
    assert_eq!(bytes, package_of_service("assets_1.0", "127.0.0.1:9999"));
    let package = ChaincodePackage::parse(&bytes).expect("a package");
    assert_eq!(package.label, "assets_1.0");
    assert_eq!(package.connection.expect("an address").address, "127.0.0.1:9999");
}

#[test]
fn a_package_without_an_address_waits_for_its_chaincode() {
    let bytes = package(METADATA, "{}");
    assert_eq!(ChaincodePackage::parse(&bytes).expect("a package").connection, None);
}

#[test]
fn templates_are_filled_with_the_values_of_the_peer() {
    let values = template_values(r#"{"peername":"peer0org1","port":9999,"ca":"PEM"}"#).expect("an object");
    let connection = r#"{"address":"{{.peername}}_{{ .peername }}:{{.port}}","dial_timeout":"10s","tls_required":true,
        "root_cert":"{{.ca}}"}"#;
    let bytes = package(METADATA, connection);
    let package = ChaincodePackage::parse_filling(&bytes, &values).expect("a package");
    let connection = package.connection.expect("an address");
    assert_eq!(connection.address, "peer0org1_peer0org1:9999");
    assert_eq!(connection.root_cert.as_deref(), Some("PEM"));
    assert_eq!(package.id, format!("assets_1.0:{}", hex::encode(sha256([&bytes[..]]))), "the id is that of the bytes");
    // A value is not a template.
    let values = template_values(r#"{"a":"{{.a}}:1"}"#).expect("an object");
    let bytes = super::tests::package(METADATA, r#"{"address":"{{.a}}"}"#);
    let package = ChaincodePackage::parse_filling(&bytes, &values).expect("a package");
    assert_eq!(package.connection.expect("an address").address, "{{.a}}:1");
    for text in ["7", "{", r#"{"a":["b"]}"#] {
        assert!(template_values(text).expect_err("no values").starts_with(TEMPLATE_VARIABLE));
    }
}

#[test]
fn what_a_peer_cannot_use_is_refused_with_the_reason() {
    for (metadata, connection, reason) in [
        (r#"{"type":"golang","label":"a"}"#, "{}", "builds no chaincode"),
        (r#"{"type":"ccaas","label":"../../etc"}"#, "{}", "label"),
        (r#"{"type":"ccaas","label":""}"#, "{}", "label"),
        ("7", "{}", "metadata.json"),
        (METADATA, r#"{"address":"nowhere"}"#, "host:port"),
        (METADATA, r#"{"address":"{{.peername}}:1"}"#, "no value"),
        (METADATA, r#"{"address":"{{printf .peername}}:1"}"#, "only names with a dot"),
        (METADATA, r#"{"address":"{{.peername:1"}"#, "without its }}"),
        (METADATA, r#"{"address":"a:1","tls_required":true}"#, "root_cert"),
        (METADATA, r#"{"address":"a:1","dial_timeout":"soon"}"#, "dial_timeout"),
    ] {
        let found = problem(&package(metadata, connection));
        assert!(found.contains(reason), "{found}");
    }
}

#[test]
fn archives_that_lie_or_swell_are_refused() {
    assert!(problem(b"these bytes are not gzip").contains("unpacked"));
    assert!(problem(&gzip(&[7; 512])).contains("no tar archive"));
    let twice = archive(&[file("metadata.json", b"{}"), file("./metadata.json", b"{}")]);
    assert!(problem(&twice).contains("twice"));
    let huge = archive(&[entry("metadata.json", b'0', 1 << 32, b"")]);
    assert!(problem(&huge).contains("at most"));
    let cut = gzip(&entry("other", b'0', UNPACKED_BYTES_MAX * 2, b"")[..512]);
    assert!(problem(&cut).contains("ends within"));
    let many = archive(&vec![entry("a", b'5', 0, b""); 10_001]);
    assert!(problem(&many).contains("entries"));
    // A symbolic link of the wanted name is no file.
    let link = archive(&[entry("metadata.json", b'2', 0, b"")]);
    assert!(problem(&link).contains("no metadata.json"));
}

#[test]
fn an_archive_that_unpacks_to_gigabytes_is_refused_at_the_limit() {
    let zeros = gzip(&vec![0; 8 << 20]);
    let header = gzip(&entry("bomb", b'0', 1 << 32, b""));
    let bomb = [header, zeros.repeat(40)].concat();
    assert!(bomb.len() < 2 << 20);
    assert!(problem(&bomb).contains("unpacks to more than"));
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
        _ = ChaincodePackage::parse(&bytes);
        _ = ChaincodePackage::parse(&gzip(&bytes));
        let code = gzip(&bytes);
        _ = ChaincodePackage::parse(&archive(&[file("metadata.json", METADATA.as_bytes()), file("code.tar.gz", &code)]));
    }
}
