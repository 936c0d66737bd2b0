//! The content of a package, checked.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::time::Duration;

use identity::{hex, sha256};
use serde::Deserialize;

use super::archive::{read_files, write_files};

/// The variable with the values for templates, by the name that Fabric's builder for services gives it.
pub const TEMPLATE_VARIABLE: &str = "CHAINCODE_AS_A_SERVICE_BUILDER_CONFIG";
/// Bytes of a package.
pub const PACKAGE_BYTES_MAX: usize = 64 << 20;
/// Bytes of `metadata.json` and of `connection.json`, which holds certificates.
const JSON_BYTES_MAX: usize = 256 << 10;
/// Bytes of a label and of an address.
const TEXT_BYTES_MAX: usize = 256;
/// How long a peer tries to connect, unless the package says otherwise. Fabric's default.
const DIAL_TIMEOUT: Duration = Duration::from_secs(3);
/// The most that a package may ask for.
const DIAL_TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// A package that this peer can run.
#[derive(Clone, Debug)]
pub struct ChaincodePackage {
    /// The label, a colon and the hash in hexadecimal.
    pub id: String,
    /// What its author calls it.
    pub label: String,
    /// How to reach the chaincode; `None` if the chaincode connects to the peer.
    pub connection: Option<ChaincodeConnection>,
}

/// How to reach a chaincode: the content of `connection.json`.
#[derive(Clone, PartialEq, Eq)]
pub struct ChaincodeConnection {
    /// Host and port.
    pub address: String,
    /// How long an attempt to connect may take.
    pub dial_timeout: Duration,
    /// The authorities of the chaincode's certificate, in PEM; `None` without TLS.
    pub root_cert: Option<String>,
    /// The peer's certificate and key, in PEM, if the chaincode asks for them.
    pub client: Option<(String, String)>,
}

impl std::fmt::Debug for ChaincodeConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the key.
        f.debug_struct("ChaincodeConnection").field("address", &self.address).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    r#type: String,
    #[serde(default)]
    label: String,
}

#[derive(Deserialize)]
struct ConnectionFile {
    #[serde(default)]
    address: String,
    #[serde(default)]
    dial_timeout: String,
    #[serde(default)]
    tls_required: bool,
    #[serde(default)]
    client_auth_required: bool,
    #[serde(default)]
    client_key: String,
    #[serde(default)]
    client_cert: String,
    #[serde(default)]
    root_cert: String,
}

/// What fills the templates `{{.name}}` in a package's `connection.json`: names and values.
pub type TemplateValues = BTreeMap<String, String>;

impl ChaincodePackage {
    /// Reads a package without templates.
    ///
    /// # Errors
    /// What is wrong with it, and what to do.
    pub fn parse(package: &[u8]) -> Result<ChaincodePackage, String> {
        ChaincodePackage::parse_filling(package, &TemplateValues::new())
    }

    /// Reads a package, and fills its templates.
    ///
    /// # Errors
    /// As [`ChaincodePackage::parse`]; a template without a value.
    pub fn parse_filling(package: &[u8], values: &TemplateValues) -> Result<ChaincodePackage, String> {
        if package.len() > PACKAGE_BYTES_MAX {
            return Err(format!("it has {} bytes; at most {PACKAGE_BYTES_MAX} are taken", package.len()));
        }
        let wanted = [("metadata.json", JSON_BYTES_MAX), ("code.tar.gz", PACKAGE_BYTES_MAX)];
        let [metadata, code] = read_files(package, wanted)?;
        let metadata = metadata.ok_or("it has no metadata.json")?;
        let code = code.ok_or("it has no code.tar.gz")?;
        let Metadata { r#type, label } =
            serde_json::from_slice(&metadata).map_err(|error| format!("metadata.json: {error}"))?;
        check_label(&label)?;
        if !r#type.eq_ignore_ascii_case("ccaas") && !r#type.eq_ignore_ascii_case("external") {
            let shown: String = r#type.chars().take(32).collect();
            return Err(format!(
                "it is of type {shown:?}, and this peer builds no chaincode; run the chaincode as a service and package it with \
                 type ccaas, or use `heddle chaincode run`"
            ));
        }
        let [connection] = read_files(&code, [("connection.json", JSON_BYTES_MAX)])
            .map_err(|problem| format!("code.tar.gz: {problem}"))?;
        let connection = match connection {
            None => None,
            Some(text) => {
                let file: ConnectionFile =
                    serde_json::from_slice(&text).map_err(|error| format!("connection.json: {error}"))?;
                file.filled(values)
                    .and_then(ConnectionFile::check)
                    .map_err(|problem| format!("connection.json: {problem}"))?
            }
        };
        Ok(ChaincodePackage { id: format!("{label}:{}", hex::encode(sha256([package]))), label, connection })
    }
}

/// A package for a chaincode that listens at this address without TLS.
pub fn package_of_service(label: &str, address: &str) -> Vec<u8> {
    let connection = serde_json::json!({ "address": address, "dial_timeout": "10s", "tls_required": false });
    package_of(label, &connection)
}

/// A package for a chaincode that connects to its peer.
pub fn package_of_dialer(label: &str) -> Vec<u8> {
    package_of(label, &serde_json::json!({}))
}

fn package_of(label: &str, connection: &serde_json::Value) -> Vec<u8> {
    let code = write_files(&[("connection.json", connection.to_string().as_bytes())]);
    let metadata = serde_json::json!({ "type": "ccaas", "path": "", "label": label });
    write_files(&[("metadata.json", metadata.to_string().as_bytes()), ("code.tar.gz", &code)])
}

impl ConnectionFile {
    /// The same with its templates filled, in the fields in which Fabric's builder fills them.
    fn filled(mut self, values: &TemplateValues) -> Result<ConnectionFile, String> {
        for field in [&mut self.address, &mut self.dial_timeout] {
            *field = fill(field, values)?;
        }
        if self.tls_required {
            for field in [&mut self.root_cert, &mut self.client_key, &mut self.client_cert] {
                *field = fill(field, values)?;
            }
        }
        Ok(self)
    }

    /// `None` without an address.
    fn check(self) -> Result<Option<ChaincodeConnection>, String> {
        if self.address.is_empty() {
            return Ok(None);
        }
        let has_port =
            self.address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if !has_port || self.address.len() > TEXT_BYTES_MAX {
            return Err("its address is not host:port".to_owned());
        }
        let dial_timeout = match self.dial_timeout.as_str() {
            "" => DIAL_TIMEOUT,
            text => duration(text).ok_or("its dial_timeout is no duration such as 10s or 500ms")?,
        };
        if self.tls_required && self.root_cert.is_empty() {
            return Err("it asks for TLS and has no root_cert".to_owned());
        }
        let needs_client = self.tls_required && self.client_auth_required;
        if needs_client && (self.client_cert.is_empty() || self.client_key.is_empty()) {
            return Err("it asks for a client certificate and has no client_cert or no client_key".to_owned());
        }
        Ok(Some(ChaincodeConnection {
            address: self.address,
            dial_timeout: dial_timeout.min(DIAL_TIMEOUT_MAX),
            root_cert: self.tls_required.then_some(self.root_cert),
            client: needs_client.then_some((self.client_cert, self.client_key)),
        }))
    }
}

/// Replaces each `{{.name}}`. Fabric's builder takes all that Go's templates can do; this is what its documentation shows.
fn fill(text: &str, values: &TemplateValues) -> Result<String, String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").ok_or("it has a {{ without its }}")?;
        let shown: String = name.chars().take(64).collect();
        let name = name.trim().strip_prefix('.').filter(|name| name.bytes().all(is_name_byte)).ok_or_else(|| {
            format!("it has the template {{{{{shown}}}}}; this peer fills in only names with a dot, such as {{{{.peername}}}}")
        })?;
        let value = values.get(name).ok_or_else(|| {
            format!(
                "it has the template {{{{{shown}}}}}, for which this peer has no value; set {TEMPLATE_VARIABLE} to a JSON object \
                 that has {name:?}"
            )
        })?;
        filled.push_str(before);
        filled.push_str(value);
        if filled.len() > JSON_BYTES_MAX {
            return Err(format!("its templates fill more than {JSON_BYTES_MAX} bytes"));
        }
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The values for templates that a text in [`TEMPLATE_VARIABLE`] gives.
///
/// # Errors
/// It is no JSON object of texts, numbers and truth values.
pub fn template_values(text: &str) -> Result<TemplateValues, String> {
    let object: BTreeMap<String, serde_json::Value> =
        serde_json::from_str(text).map_err(|error| format!("{TEMPLATE_VARIABLE}: {error}"))?;
    let value = |(name, value): (String, serde_json::Value)| match value {
        serde_json::Value::String(text) => Ok((name, text)),
        serde_json::Value::Number(number) => Ok((name, number.to_string())),
        serde_json::Value::Bool(truth) => Ok((name, truth.to_string())),
        _ => Err(format!("{TEMPLATE_VARIABLE}: the value of {name:?} is neither a text nor a number")),
    };
    object.into_iter().map(value).collect()
}

/// Go's durations of one number and one unit.
fn duration(text: &str) -> Option<Duration> {
    let unit = text.find(|letter: char| letter.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit);
    let number: u32 = number.parse().ok()?;
    let unit = match unit {
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        _ => return None,
    };
    unit.checked_mul(number)
}

fn check_label(label: &str) -> Result<(), String> {
    let is_label = label.len() <= TEXT_BYTES_MAX
        && label.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'+' | b'-'));
    match is_label {
        true => Ok(()),
        false => {
            Err("its label must begin with a letter or digit, and have only letters, digits and _.+- after it"
                .to_owned())
        }
    }
}

#[cfg(test)]
mod tests;
