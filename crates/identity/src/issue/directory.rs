//! MSP directories, as Fabric's tools lay them out.
//!
//! ```text
//! <organisation>/ca/ca.<domain>-cert.pem, priv_sk        the authority and its key (tlsca/ likewise)
//! <organisation>/msp/cacerts, tlscacerts, config.yaml    the organisation's definition
//! <node or user>/msp/cacerts, tlscacerts, config.yaml, signcerts/<name>-cert.pem, keystore/priv_sk
//! <node or user>/tls/ca.crt, server.crt, server.key      (client.crt and client.key for users)
//! ```
//! `config.yaml` defines the NodeOUs. A small parser here reads nested `key: value` lines and refuses any other YAML.
//!
//! Keys and directories are accessible to their owner only (modes 0600 and 0700). An existing file is replaced
//! atomically, so that a reader never sees half of a file, and the new file is durable when the call returns
//! ([`base::durable`]). This module uses the operating system's files directly: it runs when a network is set up or a
//! node starts, never in simulation.

use std::fs;
use std::path::{Path, PathBuf};

use base::MspId;
use base::durable::{self, FileAccess};
use bytes::Bytes;
use proto::msp::{FabricMspConfig, FabricNodeOUs, FabricOuIdentifier};

use super::authority::{CertificateAuthority, CertificateTerms};
use super::{IssuingOrganization, TlsIdentity, crypto_config};
use crate::certificate::pem_contents;
use crate::error::Error;
use crate::key::PrivateKey;
use crate::principal::MemberRole;
use crate::signer::Signer;

/// How many files one folder of an MSP directory may hold.
const FILES_MAX: usize = 1024;
/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;

const KEY_FILE: &str = "priv_sk";
const CONFIG_FILE: &str = "config.yaml";

impl IssuingOrganization {
    /// Writes the authorities, their keys and the organisation's definition into a directory.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::PrivateKey`].
    pub fn write(&self, directory: &Path) -> Result<(), Error> {
        for (folder, authority) in [("ca", self.authority()), ("tlsca", self.tls_authority())] {
            let folder = directory.join(folder);
            write_file(&folder.join(file_name(authority)), authority.certificate_pem(), FileAccess::Everybody)?;
            write_file(&folder.join(KEY_FILE), authority.key_pem()?.as_bytes(), FileAccess::Owner)?;
        }
        self.write_definition(&directory.join("msp"))
    }

    /// Writes a node's or user's identity, with its key, into `<directory>/msp`.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::PrivateKey`].
    pub fn write_identity(&self, directory: &Path, signer: &Signer) -> Result<(), Error> {
        let msp = directory.join("msp");
        self.write_definition(&msp)?;
        let name = format!("{}-cert.pem", signer.certificate().common_name());
        write_file(&msp.join("signcerts").join(name), signer.certificate_pem(), FileAccess::Everybody)?;
        write_file(&msp.join("keystore").join(KEY_FILE), signer.key_pem()?.as_bytes(), FileAccess::Owner)
    }

    fn write_definition(&self, msp: &Path) -> Result<(), Error> {
        let authority = file_name(self.authority());
        let tls_authority = file_name(self.tls_authority());
        write_file(&msp.join("cacerts").join(&authority), self.authority().certificate_pem(), FileAccess::Everybody)?;
        write_file(
            &msp.join("tlscacerts").join(tls_authority),
            self.tls_authority().certificate_pem(),
            FileAccess::Everybody,
        )?;
        write_file(
            &msp.join(CONFIG_FILE),
            node_units_yaml(&format!("cacerts/{authority}")).as_bytes(),
            FileAccess::Everybody,
        )
    }

    /// Reads an organisation that [`IssuingOrganization::write`] wrote, to issue more certificates with these terms. The kind of
    /// new keys is that of the terms; the authorities keep theirs.
    ///
    /// # Errors
    /// [`Error::File`], and whatever the certificates and keys fail with.
    pub fn read(
        msp: impl Into<MspId>,
        domain: &str,
        directory: &Path,
        terms: &CertificateTerms,
    ) -> Result<IssuingOrganization, Error> {
        let authority = |name: &str, terms: CertificateTerms| {
            let folder = directory.join(name);
            let certificate = read_file(&folder.join(format!("{name}.{domain}-cert.pem")))?;
            CertificateAuthority::new(terms, certificate, read_key(&folder.join(KEY_FILE))?)
        };
        Ok(IssuingOrganization {
            msp: msp.into(),
            domain: domain.to_owned(),
            authority: authority("ca", terms.clone())?,
            tls_authority: authority("tlsca", terms.for_tls())?,
        })
    }
}

impl TlsIdentity {
    /// Writes certificate, key and authority into `<directory>/tls`, as a server's or as a client's.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(&self, directory: &Path, role: MemberRole) -> Result<(), Error> {
        let tls = directory.join("tls");
        let side = side(role);
        write_file(&tls.join("ca.crt"), &self.authority_pem, FileAccess::Everybody)?;
        write_file(&tls.join(format!("{side}.crt")), &self.certificate_pem, FileAccess::Everybody)?;
        write_file(&tls.join(format!("{side}.key")), &self.key_pem, FileAccess::Owner)
    }

    /// Reads what [`TlsIdentity::write`] wrote.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn read(directory: &Path, role: MemberRole) -> Result<TlsIdentity, Error> {
        let tls = directory.join("tls");
        let side = side(role);
        Ok(TlsIdentity {
            authority_pem: read_file(&tls.join("ca.crt"))?,
            certificate_pem: read_file(&tls.join(format!("{side}.crt")))?,
            key_pem: read_file(&tls.join(format!("{side}.key")))?,
        })
    }
}

fn side(role: MemberRole) -> &'static str {
    if matches!(role, MemberRole::Peer | MemberRole::Orderer) { "server" } else { "client" }
}

/// The contents of an MSP directory. The private key stays on disk until it is asked for.
#[derive(Debug)]
pub struct MspDirectory {
    path: PathBuf,
    roots: Vec<Bytes>,
    intermediates: Vec<Bytes>,
    admins: Vec<Bytes>,
    revocation_lists: Vec<Bytes>,
    tls_roots: Vec<Bytes>,
    tls_intermediates: Vec<Bytes>,
    node_units: Option<FabricNodeOUs>,
}

impl MspDirectory {
    /// Reads a directory (the one called `msp`).
    ///
    /// # Errors
    /// [`Error::File`] when something is missing or unreadable, or `config.yaml` is not understood.
    pub fn read(path: &Path) -> Result<MspDirectory, Error> {
        let folder = |name: &str| -> Result<Vec<Bytes>, Error> {
            Ok(read_folder(&path.join(name))?.into_iter().map(|(_, contents)| contents).collect())
        };
        let config = path.join(CONFIG_FILE);
        let node_units = match config.exists() {
            true => read_node_units(path, &config)?,
            false => None,
        };
        Ok(MspDirectory {
            path: path.to_owned(),
            roots: folder("cacerts")?,
            intermediates: folder("intermediatecerts")?,
            admins: folder("admincerts")?,
            revocation_lists: folder("crls")?,
            tls_roots: folder("tlscacerts")?,
            tls_intermediates: folder("tlsintermediatecerts")?,
            node_units,
        })
    }

    /// The organisation's definition under this name, as a channel's configuration holds it.
    pub fn definition(&self, msp: &str) -> FabricMspConfig {
        FabricMspConfig {
            name: msp.to_owned(),
            root_certs: self.roots.clone(),
            intermediate_certs: self.intermediates.clone(),
            admins: self.admins.clone(),
            revocation_list: self.revocation_lists.clone(),
            crypto_config: Some(crypto_config()),
            tls_root_certs: self.tls_roots.clone(),
            tls_intermediate_certs: self.tls_intermediates.clone(),
            fabric_node_ous: self.node_units.clone(),
            ..FabricMspConfig::default()
        }
    }

    /// The identity in `signcerts`, with the key in `keystore` that belongs to it.
    ///
    /// # Errors
    /// [`Error::File`] when there is no certificate, [`Error::PrivateKey`] when no key belongs to it.
    pub fn signer(&self, msp: impl Into<MspId>) -> Result<Signer, Error> {
        let folder = self.path.join("signcerts");
        let missing = || Error::file(&folder, &std::io::ErrorKind::NotFound.into());
        let (_, certificate) = read_folder(&folder)?.into_iter().next().ok_or_else(missing)?;
        let msp = msp.into();
        let mut failure = Error::PrivateKey("the key store is empty");
        for (path, _) in read_folder(&self.path.join("keystore"))? {
            match read_key(&path).and_then(|key| Signer::new(msp.clone(), &certificate, key)) {
                Ok(signer) => return Ok(signer),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

fn file_name(authority: &CertificateAuthority) -> String {
    format!("{}-cert.pem", authority.certificate().common_name())
}

fn read_key(path: &Path) -> Result<PrivateKey, Error> {
    let text = read_file(path)?;
    let der = pem_contents(&text, "PRIVATE KEY", text.len())
        .or_else(|_| pem_contents(&text, "EC PRIVATE KEY", text.len()))
        .map_err(|_| Error::PrivateKey("not a PEM block with a private key"))?;
    PrivateKey::from_der(&der)
}

fn read_file(path: &Path) -> Result<Bytes, Error> {
    let read = || -> std::io::Result<Vec<u8>> {
        if fs::metadata(path)?.len() > FILE_BYTES_MAX {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "file is too large"));
        }
        fs::read(path)
    };
    read().map(Bytes::from).map_err(|e| Error::file(path, &e))
}

/// The files of a folder with their contents, sorted by name; nothing when there is no such folder.
fn read_folder(folder: &Path) -> Result<Vec<(PathBuf, Bytes)>, Error> {
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|e| Error::file(folder, &e))?,
    };
    let mut paths = Vec::new();
    for entry in entries.take(FILES_MAX) {
        let entry = entry.map_err(|e| Error::file(folder, &e))?;
        let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
        if !is_hidden && entry.path().is_file() {
            paths.push(entry.path());
        }
    }
    paths.sort();
    paths.into_iter().map(|path| read_file(&path).map(|contents| (path, contents))).collect()
}

/// Replaces a file, creating its folders. Durable on return.
fn write_file(path: &Path, contents: &[u8], access: FileAccess) -> Result<(), Error> {
    durable::write(path, contents, access).map_err(|e| Error::file(path, &e))
}

const UNITS: [(&str, MemberRole); 4] = [
    ("ClientOUIdentifier", MemberRole::Client),
    ("PeerOUIdentifier", MemberRole::Peer),
    ("AdminOUIdentifier", MemberRole::Admin),
    ("OrdererOUIdentifier", MemberRole::Orderer),
];

fn node_units_yaml(certificate: &str) -> String {
    let mut text = String::from("NodeOUs:\n  Enable: true\n");
    for (key, role) in UNITS {
        text += &format!("  {key}:\n    Certificate: {certificate}\n");
        text += &format!("    OrganizationalUnitIdentifier: {}\n", role.as_str());
    }
    text
}

/// Reads the NodeOUs of a `config.yaml`: nested `key: value` lines. Anything beside them is refused, not ignored, because
/// it would change who is a member.
fn read_node_units(msp: &Path, config: &Path) -> Result<Option<FabricNodeOUs>, Error> {
    let contents = read_file(config)?;
    let text = String::from_utf8_lossy(&contents);
    let mut units = FabricNodeOUs::default();
    let mut seen = false;
    for (keys, value) in
        yaml_scalars(&text).map_err(|line| rejected(config, &format!("line {line} is not understood")))?
    {
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        match keys[..] {
            ["NodeOUs", "Enable"] => {
                seen = true;
                units.enable = value == "true";
            }
            ["NodeOUs", unit, field] => {
                let Some(unit) = unit_of(&mut units, unit) else {
                    return Err(rejected(config, &format!("{unit} is unknown")));
                };
                let unit = unit.get_or_insert_default();
                match field {
                    "Certificate" => unit.certificate = read_file(&msp.join(&value))?,
                    "OrganizationalUnitIdentifier" => unit.organizational_unit_identifier = value,
                    _ => return Err(rejected(config, &format!("{field} is unknown"))),
                }
            }
            _ => return Err(rejected(config, &format!("{} is not supported", keys.join(".")))),
        }
    }
    Ok(seen.then_some(units))
}

fn unit_of<'a>(units: &'a mut FabricNodeOUs, key: &str) -> Option<&'a mut Option<FabricOuIdentifier>> {
    match UNITS.iter().find(|(name, _)| *name == key)?.1 {
        MemberRole::Client => Some(&mut units.client_ou_identifier),
        MemberRole::Peer => Some(&mut units.peer_ou_identifier),
        MemberRole::Admin => Some(&mut units.admin_ou_identifier),
        MemberRole::Orderer => Some(&mut units.orderer_ou_identifier),
        MemberRole::Member => None,
    }
}

fn rejected(config: &Path, reason: &str) -> Error {
    Error::File { path: config.display().to_string(), reason: reason.to_owned(), kind: base::ErrorKind::Rejected }
}

/// A path of keys and the scalar at its end.
type YamlScalar = (Vec<String>, String);

/// All scalars of nested mappings with their paths, or the number of the first line that is something else.
fn yaml_scalars(text: &str) -> Result<Vec<YamlScalar>, usize> {
    const DEPTH_MAX: usize = 8;
    let mut open: Vec<(usize, String)> = Vec::new();
    let mut scalars = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split(" #").next().unwrap_or_default().trim_end();
        let content = line.trim_start_matches(' ');
        if content.is_empty() || content.starts_with('#') || content == "---" {
            continue;
        }
        let indentation = line.len() - content.len();
        let (key, value) = content.split_once(':').ok_or(number + 1)?;
        while open.last().is_some_and(|(deeper, _)| *deeper >= indentation) {
            open.pop();
        }
        if key.starts_with(['-', '\t', '{', '[']) || open.len() >= DEPTH_MAX {
            return Err(number + 1);
        }
        match value.trim().trim_matches(['"', '\'']) {
            "" => open.push((indentation, key.trim().to_owned())),
            value => {
                let keys = open.iter().map(|(_, key)| key.clone()).chain([key.trim().to_owned()]).collect();
                scalars.push((keys, value.to_owned()));
            }
        }
    }
    Ok(scalars)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_of_other_writers_reads_the_same() {
        let text = "# made by hand\nNodeOUs:\n    Enable: true # yes\n    PeerOUIdentifier:\n        Certificate: \"a/b.pem\"\n";
        let scalars = yaml_scalars(text).expect("understood");
        let path = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            scalars,
            vec![
                (path(&["NodeOUs", "Enable"]), "true".to_owned()),
                (path(&["NodeOUs", "PeerOUIdentifier", "Certificate"]), "a/b.pem".to_owned()),
            ]
        );
        assert_eq!(yaml_scalars("NodeOUs:\n  - a: b\n"), Err(2));
        assert_eq!(yaml_scalars("no colon"), Err(1));
    }
}
