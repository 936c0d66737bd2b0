//! Watches two sets of certificates for a process: those that its operator denies, and its own, which may be about to
//! expire.
//!
//! 1. `denied.toml` in the process's folder is the deny list. The certificates on it are refused at once, because a
//!    lost key cannot wait until the channel's configuration has changed. A process below `nodes/` of a network also
//!    applies the network's `denied.toml`. An entry is `[[denied]]` with `sha256`, or with `msp` and `serial`. `reason`
//!    and `until` are optional; `until` is the last day of the denial.
//! 2. The process reads the file at its start and whenever the file changes. If the file has a mistake, a process does
//!    not start. A running process keeps the previous list in force, and reports the mistake in its log and its health.
//! 3. A denial applies to every service that this process gives to others ([`identity::deny`]). It never applies to
//!    validation.
//! 4. The health report names each certificate of the process that expires within [`WARN_SECONDS`]. A gauge shows the
//!    seconds until the earliest of the process's certificates expires.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use base::rt::{self, CancellationToken};
use identity::deny::{DENIALS_MAX, Denial, DeniedCertificate};
use identity::{Certificate, DenyList};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::network::NodeError;

/// The file of the deny list.
pub const DENIED_FILE: &str = "denied.toml";
/// The folder of a network that holds its processes.
const NODES: &str = "nodes";
/// How often the deny list is checked for changes.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Checks of the list between two updates of the gauges.
const POLLS_PER_COUNT: u32 = 120;
/// How long before its expiry a certificate is warned of: 30 days.
pub const WARN_SECONDS: i64 = 30 * DAY_SECONDS;
const DAY_SECONDS: i64 = 24 * 3600;
/// Maximum of certificate files that are read, and of the depth below the folder.
const FILES_MAX: usize = 1024;
const DEPTH_MAX: usize = 6;

base::events! {
    /// Seconds until the first of this process's certificates expires; negative once it has.
    gauge CertificateExpires("heddle_certificate_expires_seconds");
    /// Certificates that this process's operator denies.
    gauge DeniedCertificates("heddle_denied_certificates");
}

/// The deny list as the file holds it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeniedFile {
    /// Its entries, in the order of the file.
    #[serde(default)]
    pub denied: Vec<DeniedEntry>,
}

/// One entry of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeniedEntry {
    /// The SHA-256 of the certificate's DER in hexadecimal, with colons or without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The organisation that issued the serial number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub msp: Option<String>,
    /// Hexadecimal, with colons or without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// A note for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The last day of the denial, in UTC, as `2030-12-31`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

impl DeniedFile {
    /// Reads a file; a missing file is an empty list.
    ///
    /// # Errors
    /// The file cannot be read, or an entry is malformed.
    pub fn load(path: &Path) -> Result<DeniedFile, NodeError> {
        match std::fs::read_to_string(path) {
            Ok(text) => toml::from_str(&text).map_err(|error| malformed(path, error.to_string())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(DeniedFile::default()),
            Err(error) => Err(NodeError::file("reading", path)(error)),
        }
    }

    /// Writes the file.
    ///
    /// # Errors
    /// [`NodeError::File`].
    pub fn store(&self, path: &Path) -> Result<(), NodeError> {
        let text = toml::to_string(self).expect("it has a TOML form");
        crate::network::write(path, text.as_bytes())
    }

    fn denials(&self, path: &Path) -> Result<Vec<Denial>, NodeError> {
        let entries = self.denied.iter().zip(1..);
        entries
            .map(|(entry, number)| entry.denial().map_err(|what| malformed(path, format!("entry {number} {what}"))))
            .collect()
    }
}

impl DeniedEntry {
    /// An entry that denies this certificate.
    pub fn of(certificate: &Certificate, reason: String, until: Option<String>) -> DeniedEntry {
        let sha256 = Some(identity::hex::encode(identity::sha256([&certificate.der()[..]])));
        DeniedEntry { sha256, msp: None, serial: None, reason, until }
    }

    /// Checks that the entry names a certificate and, if it ends, a day.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        self.denial().map(drop)
    }

    fn denial(&self) -> Result<Denial, String> {
        let bytes = |text: &str, key: &str| {
            let digits: String = text.chars().filter(|digit| *digit != ':').collect();
            let digits = if digits.len() % 2 == 1 { format!("0{digits}") } else { digits };
            identity::hex::decode(digits).map_err(|_| format!("has a {key} that is not hexadecimal"))
        };
        let holder = match (&self.sha256, &self.msp, &self.serial) {
            (Some(sha256), None, None) => {
                let hash = bytes(sha256, "sha256")?.try_into();
                DeniedCertificate::Fingerprint(hash.map_err(|_| "has a sha256 that is not 64 digits long".to_owned())?)
            }
            (None, Some(msp), Some(serial)) => DeniedCertificate::Serial(msp.as_str().into(), bytes(serial, "serial")?),
            _ => return Err("names no certificate; write sha256, or msp and serial".to_owned()),
        };
        let until = self.until.as_deref().map(end_of_day).transpose()?;
        Ok(Denial { holder, reason: self.reason.clone(), until })
    }
}

fn malformed(path: &Path, reason: String) -> NodeError {
    NodeError::file("reading", path)(std::io::Error::new(std::io::ErrorKind::InvalidData, reason))
}

/// The last second of a day, since the Unix epoch.
fn end_of_day(date: &str) -> Result<i64, String> {
    let wrong = || format!("has the date {date:?}; write it as 2030-12-31");
    let parsed: toml::value::Datetime = date.parse().map_err(|_| wrong())?;
    let date = parsed.date.filter(|_| parsed.time.is_none()).ok_or_else(wrong)?;
    // Howard Hinnant's days from civil: the year begins in March.
    let (month, day) = (i64::from(date.month), i64::from(date.day));
    let year = i64::from(date.year) - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let (of_era, of_year) = (year.rem_euclid(400), (153 * ((month + 9) % 12) + 2) / 5 + day - 1);
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Ok((days + 1) * DAY_SECONDS - 1)
}

/// Health's lines on a process's certificates.
pub(crate) type CertificateNotes = Box<dyn Fn() -> Vec<String> + Send + Sync>;

/// Puts the deny list of `folder` in force, then watches it and the certificates below another folder until `stop`. The
/// notes are for health.
///
/// # Errors
/// The list cannot be read, or is malformed.
pub(crate) fn watch(
    folder: &Path,
    certificates: &Path,
    stop: CancellationToken,
) -> Result<(JoinHandle<()>, CertificateNotes), NodeError> {
    let list = DenyList::of_process();
    let files = files(folder);
    let mut seen = modified_times(&files);
    list.replace(read(&files)?);
    let own: Arc<[OwnCertificate]> = own_certificates(certificates).into();
    count(&own, &list);
    let problem = Arc::new(Mutex::new(None));
    let notes = {
        let (own, problem) = (own.clone(), problem.clone());
        let notes = move || {
            let problem: Option<String> = problem.lock().unwrap_or_else(PoisonError::into_inner).clone();
            problem.into_iter().chain(own.iter().filter_map(|one| one.note(now()))).collect()
        };
        Box::new(notes) as CertificateNotes
    };
    for note in notes() {
        tracing::warn!("{note}");
    }
    let task = tokio::spawn(async move {
        let mut looks = 0u32;
        while stop.run_until_cancelled(tokio::time::sleep(POLL_INTERVAL)).await.is_some() {
            looks = looks.wrapping_add(1);
            let now = modified_times(&files);
            if now != seen {
                seen = now;
                let outcome = read(&files).map(|denials| list.replace(denials));
                if let Err(error) = &outcome {
                    tracing::error!(%error, "the deny list is unchanged");
                }
                let said = outcome.err().map(|error| format!("the deny list is unchanged: {error}"));
                *problem.lock().unwrap_or_else(PoisonError::into_inner) = said;
                count(&own, &list);
            } else if looks.is_multiple_of(POLLS_PER_COUNT) {
                count(&own, &list);
            }
        }
    });
    Ok((task, notes))
}

/// The deny lists of a process: its own, and that of its network.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = vec![folder.join(DENIED_FILE)];
    let nodes = folder.parent().filter(|nodes| nodes.file_name().is_some_and(|name| name == NODES));
    files.extend(nodes.and_then(Path::parent).map(|network| network.join(DENIED_FILE)));
    files
}

fn modified_times(files: &[PathBuf]) -> Vec<Option<(SystemTime, u64)>> {
    let of = |path: &PathBuf| {
        let file = std::fs::metadata(path).ok()?;
        Some((file.modified().ok()?, file.len()))
    };
    files.iter().map(of).collect()
}

fn read(files: &[PathBuf]) -> Result<Vec<Denial>, NodeError> {
    let mut denials = Vec::new();
    for path in files {
        denials.extend(DeniedFile::load(path)?.denials(path)?);
        if denials.len() > DENIALS_MAX {
            return Err(malformed(path, format!("more than {DENIALS_MAX} certificates are denied")));
        }
    }
    Ok(denials)
}

fn count(own: &[OwnCertificate], list: &DenyList) {
    DeniedCertificates.set(i64::try_from(list.entries().len()).unwrap_or(i64::MAX));
    if let Some(first) = own.iter().map(|one| one.not_after).min() {
        CertificateExpires.set(first.saturating_sub(now()));
    }
}

fn now() -> i64 {
    i64::try_from(rt::wall_now().seconds()).unwrap_or(i64::MAX)
}

/// A certificate below the process's folder.
struct OwnCertificate {
    /// Relative to the folder.
    path: String,
    not_after: i64,
}

impl OwnCertificate {
    fn note(&self, now: i64) -> Option<String> {
        let OwnCertificate { path, not_after } = self;
        match not_after.saturating_sub(now) {
            left if left < 0 => {
                Some(format!("the certificate {path} ended {} days ago; renew it", -left / DAY_SECONDS))
            }
            left if left < WARN_SECONDS => {
                Some(format!("the certificate {path} ends in {} days; renew it", left / DAY_SECONDS))
            }
            _ => None,
        }
    }
}

/// The certificates in files below a folder. Other files are skipped.
fn own_certificates(folder: &Path) -> Vec<OwnCertificate> {
    let mut found = Vec::new();
    let mut folders = vec![(folder.to_path_buf(), 0)];
    while let Some((current, depth)) = folders.pop() {
        for entry in std::fs::read_dir(&current).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && depth < DEPTH_MAX {
                folders.push((path, depth + 1));
                continue;
            }
            let is_certificate = path.extension().is_some_and(|extension| extension == "pem" || extension == "crt");
            let text = std::fs::read(&path).ok().filter(|_| kind.is_file() && is_certificate);
            if let Some(certificate) = text.and_then(|text| Certificate::from_pem(&text).ok())
                && found.len() < FILES_MAX
            {
                let path = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
                found.push(OwnCertificate { path, not_after: certificate.not_after() });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_end_where_calendars_say() {
        assert_eq!(end_of_day("1970-01-01"), Ok(86_399));
        assert_eq!(end_of_day("2000-02-29"), Ok(951_868_799));
        assert_eq!(end_of_day("2030-12-31"), Ok(1_924_991_999));
        for wrong in ["tomorrow", "2030-13-01", "2030-01-01T00:00:00Z", ""] {
            assert!(end_of_day(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn entries_name_certificates_in_both_ways_and_mistakes_are_told() {
        let path = Path::new("denied.toml");
        let parse = |text: &str| toml::from_str::<DeniedFile>(text).expect("TOML").denials(path);
        let fingerprint = "ab".repeat(32);
        let text = format!(
            "[[denied]]\nsha256 = \"{fingerprint}\"\nreason = \"lost\"\n[[denied]]\nmsp = \"A\"\nserial = \"1:02\"\nuntil = \"1970-01-01\"\n"
        );
        let denials = parse(&text).expect("in order");
        assert_eq!(denials[0].holder, DeniedCertificate::Fingerprint([0xab; 32]));
        assert_eq!((denials[0].reason.as_str(), denials[0].until), ("lost", None));
        assert_eq!(
            (&denials[1].holder, denials[1].until),
            (&DeniedCertificate::Serial("A".into(), vec![1, 2]), Some(86_399))
        );
        let mistakes = [
            ("[[denied]]\nsha256 = \"abc\"", "entry 1 has a sha256 that is not 64 digits"),
            ("[[denied]]\nserial = \"1\"", "write sha256, or msp and serial"),
            ("[[denied]]\nmsp = \"A\"\nserial = \"xyz\"", "not hexadecimal"),
        ];
        for (text, expected) in mistakes {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(expected) && error.contains("denied.toml"), "{error}");
        }
        assert!(toml::from_str::<DeniedFile>("[[denied]]\nserail = \"1\"").is_err(), "a misspelt key denies nobody");
    }

    #[test]
    fn certificates_are_warned_of_a_month_before_their_end() {
        let own = OwnCertificate { path: "tls/server.crt".to_owned(), not_after: 100 * DAY_SECONDS };
        assert_eq!(own.note(69 * DAY_SECONDS), None);
        let note = own.note(71 * DAY_SECONDS).expect("it ends soon");
        assert!(note.contains("tls/server.crt ends in 29 days"), "{note}");
        assert!(own.note(103 * DAY_SECONDS).expect("it has ended").contains("ended 3 days ago"));
    }

    #[test]
    fn a_process_heeds_the_list_of_its_network_too() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let folder = scratch.path().join(NODES).join("compute-org1");
        std::fs::create_dir_all(&folder).expect("a folder");
        let entry = |serial: &str| DeniedEntry {
            sha256: None,
            msp: Some("A".to_owned()),
            serial: Some(serial.to_owned()),
            reason: String::new(),
            until: None,
        };
        for (place, serial) in [(scratch.path(), "01"), (&folder, "02")] {
            DeniedFile { denied: vec![entry(serial)] }.store(&place.join(DENIED_FILE)).expect("room");
        }
        assert_eq!(read(&files(&folder)).expect("both").len(), 2);
        assert_eq!(read(&files(scratch.path())).expect("the network's").len(), 1);
    }

    #[test]
    fn certificates_below_a_folder_are_found() {
        use identity::issue::{CertificateTerms, IssuingOrganization};
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let terms = CertificateTerms::valid(identity::KeyKind::P256, 1_000_000_000, 2_000_000_000);
        let organization = IssuingOrganization::create("A", "a.example.com", &terms).expect("founded");
        organization.write(scratch.path()).expect("room");
        let found = own_certificates(scratch.path());
        assert!(found.iter().any(|one| one.path.starts_with("ca/")), "its authority");
        assert!(found.iter().all(|one| one.not_after == 2_000_000_000));
    }
}
