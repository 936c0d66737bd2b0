//! Builds a chaincode with the tools of its language, and says how its program is started.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::cli::chaincode::ChaincodeRole;
use crate::failure::CommandError;

const NPM: &str = "npm";

/// Where one organisation's chaincode belongs.
pub(super) struct ChaincodePlace {
    pub(super) msp_id: String,
    /// Where it listens, unless it connects to its peer.
    pub(super) address: SocketAddr,
    /// Its peer's address for a chaincode that connects; `None` for one that only listens.
    pub(super) peer: Option<SocketAddr>,
    /// The package id with which it registers.
    pub(super) package_id: String,
}

/// How a chaincode is built and started.
#[derive(Clone)]
pub(super) struct Build {
    language: &'static str,
    /// Programs that run in the chaincode's folder, in order.
    steps: Vec<Vec<String>>,
    start: Vec<String>,
    /// Whether it listens or connects; `None` if it may do either.
    pub(super) role: Option<ChaincodeRole>,
    /// The flags before its own address and before its peer's, if its convention has them.
    flags: ChaincodeFlags,
}

#[derive(Clone, Copy, Default)]
struct ChaincodeFlags {
    address: Option<&'static str>,
    package_id: Option<&'static str>,
    peer: Option<&'static str>,
}

impl Build {
    /// Finds the language of the chaincode in a folder. `role` is the one that the user names.
    pub(super) fn find(folder: &Path, role: Option<ChaincodeRole>) -> Result<Build, CommandError> {
        let has = |file: &str| folder.join(file).exists();
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let program = |path: &str| folder.join(path).display().to_string();
        if has("go.mod") {
            let mut steps = Vec::new();
            if !has("go.sum") {
                steps.push(words("go mod tidy"));
            }
            steps.push(words("go build -o .heddle/chaincode ."));
            let start = vec![program(".heddle/chaincode")];
            let flags = ChaincodeFlags { peer: Some("-peer.address"), ..ChaincodeFlags::default() };
            return Ok(Build { language: "Go", steps, start, role, flags });
        }
        if has("package.json") {
            let install = if has("package-lock.json") { "npm ci" } else { "npm install" };
            let mut steps = Vec::new();
            if !has("node_modules") {
                steps.push(words(&format!("{install} --no-audit --no-fund")));
            }
            steps.push(words("npm run build --if-present"));
            let fabric = program("node_modules/.bin/fabric-chaincode-node");
            return Ok(match starts_itself(folder)? {
                // Fabric's program runs the classes that the package exports, in either role.
                false if role != Some(ChaincodeRole::Client) => {
                    let start = vec![fabric, "server".to_owned()];
                    let flags = ChaincodeFlags {
                        address: Some("--chaincode-address"),
                        package_id: Some("--chaincode-id"),
                        peer: None,
                    };
                    Build { language: "Node.js", steps, start, role: Some(ChaincodeRole::Server), flags }
                }
                is_own => {
                    let start =
                        if is_own { words(&format!("{NPM} start --")) } else { vec![fabric, "start".to_owned()] };
                    let flags = ChaincodeFlags { peer: Some("--peer.address"), ..ChaincodeFlags::default() };
                    Build { language: "Node.js", steps, start, role, flags }
                }
            });
        }
        let java = |step: String, folder: &str| Build {
            language: "Java",
            steps: vec![words(&step)],
            start: vec!["java".to_owned(), "-jar".to_owned(), program(&format!("{folder}/chaincode.jar"))],
            role,
            flags: ChaincodeFlags::default(),
        };
        if has("pom.xml") {
            return Ok(java("mvn -q -DskipTests package".to_owned(), "target"));
        }
        if has("build.gradle") || has("build.gradle.kts") {
            let gradle = if has("gradlew") { "./gradlew" } else { "gradle" };
            return Ok(java(format!("{gradle} -q shadowJar"), "build/libs"));
        }
        Err(CommandError::about(
            folder,
            "has no go.mod, package.json, pom.xml or build.gradle; name the folder of a chaincode's source, or write one with \
             `heddle chaincode new`",
        ))
    }

    /// Builds the chaincode.
    pub(super) fn run(&self, folder: &Path) -> Result<(), CommandError> {
        for step in &self.steps {
            let (program, arguments) = step.split_first().expect("a step has a program");
            let line = step.join(" ");
            let status = Command::new(program).args(arguments).current_dir(folder).stdin(Stdio::null()).status();
            match status {
                Ok(status) if status.success() => {}
                Ok(status) => {
                    return Err(CommandError::new(format!("`{line}` in {} failed: {status}", folder.display())));
                }
                Err(error) => {
                    return Err(CommandError::new(format!(
                        "`{line}` cannot be run: {error}; install the tools for {}",
                        self.language
                    )));
                }
            }
        }
        Ok(())
    }

    /// The program in that folder, with the arguments and variables that the conventions of Fabric's shims name.
    pub(super) fn command(&self, folder: &Path, place: &ChaincodePlace) -> Command {
        let (program, arguments) = self.start.split_first().expect("it has a program");
        let ChaincodePlace { msp_id, address, peer, package_id } = place;
        let address = (self.role != Some(ChaincodeRole::Client)).then(|| address.to_string());
        let peer = peer.map(|peer| peer.to_string());
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder).stdin(Stdio::null());
        if self.has_process_group() {
            command.process_group(0);
        }
        command.env("CORE_PEER_LOCALMSPID", msp_id);
        command.env("CORE_CHAINCODE_ID_NAME", package_id).env("CHAINCODE_ID", package_id);
        command.env("CORE_PEER_TLS_ENABLED", "false").env("CHAINCODE_TLS_DISABLED", "true");
        for (variable, value) in [("CHAINCODE_SERVER_ADDRESS", &address), ("CORE_PEER_ADDRESS", &peer)] {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
        let flags = [
            (self.flags.address, &address),
            (self.flags.package_id, &Some(package_id.clone())),
            (self.flags.peer, &peer),
        ];
        for (flag, value) in flags {
            if let (Some(flag), Some(value)) = (flag, value) {
                command.args([flag, value]);
            }
        }
        command
    }

    /// Whether the program only starts another one, so that both have a process group, which gets the signals for them.
    pub(super) fn has_process_group(&self) -> bool {
        self.start.first().is_some_and(|program| program == NPM)
    }
}

/// Whether a package in JavaScript has a program of its own, rather than classes for Fabric's `fabric-chaincode-node`.
fn starts_itself(folder: &Path) -> Result<bool, CommandError> {
    let path = folder.join("package.json");
    let text = std::fs::read(&path).map_err(|error| CommandError::about(&path, error))?;
    let package: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| CommandError::about(&path, error))?;
    let start = package["scripts"]["start"].as_str();
    Ok(start.is_some_and(|start| !start.contains("fabric-chaincode-node")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = r#"{"scripts": {"start": "node index.js"}}"#;
    const FABRIC: &str = r#"{"scripts": {"start": "set -x && fabric-chaincode-node start"}}"#;

    /// The command without its program, and the addresses in its environment.
    fn shown(file: &str, text: &str, role: Option<ChaincodeRole>) -> String {
        let folder = tempfile::tempdir().expect("a temporary folder");
        base::durable::write(&folder.path().join(file), text.as_bytes(), base::durable::FileAccess::Everybody)
            .expect("it can be written");
        let build = Build::find(folder.path(), role).expect("a chaincode");
        let place = ChaincodePlace {
            msp_id: "Org1MSP".to_owned(),
            address: ([127, 0, 0, 1], 7052).into(),
            peer: (build.role != Some(ChaincodeRole::Server)).then(|| ([127, 0, 0, 1], 7051).into()),
            package_id: "assets:ab".to_owned(),
        };
        let command = build.command(folder.path(), &place);
        let name = Path::new(command.get_program()).file_name().expect("a program has a name");
        let mut words = vec![name.to_string_lossy().into_owned()];
        words.extend(command.get_args().map(|argument| argument.to_string_lossy().into_owned()));
        let variables = ["CHAINCODE_SERVER_ADDRESS", "CORE_PEER_ADDRESS"].map(|variable| {
            let set = command.get_envs().find(|(name, _)| *name == variable).and_then(|(_, value)| value);
            set.map_or("-".to_owned(), |value| value.to_string_lossy().into_owned())
        });
        format!("{} | {}", words.join(" "), variables.join(" "))
    }

    #[test]
    fn a_chaincode_gets_the_settings_for_the_roles_that_it_may_have() {
        let (server, client) = (Some(ChaincodeRole::Server), Some(ChaincodeRole::Client));
        let served = "fabric-chaincode-node server --chaincode-address 127.0.0.1:7052 --chaincode-id assets:ab \
                      | 127.0.0.1:7052 -";
        for (file, text, role, expected) in [
            ("go.mod", "", None, "chaincode -peer.address 127.0.0.1:7051 | 127.0.0.1:7052 127.0.0.1:7051"),
            ("go.mod", "", server, "chaincode | 127.0.0.1:7052 -"),
            ("go.mod", "", client, "chaincode -peer.address 127.0.0.1:7051 | - 127.0.0.1:7051"),
            ("package.json", "{}", None, served),
            ("package.json", FABRIC, None, served),
            ("package.json", FABRIC, server, served),
            (
                "package.json",
                FABRIC,
                client,
                "fabric-chaincode-node start --peer.address 127.0.0.1:7051 | - 127.0.0.1:7051",
            ),
            ("package.json", OWN, None, "npm start -- --peer.address 127.0.0.1:7051 | 127.0.0.1:7052 127.0.0.1:7051"),
            ("package.json", OWN, server, "npm start -- | 127.0.0.1:7052 -"),
        ] {
            assert_eq!(shown(file, text, role), expected, "{file} {text} {role:?}");
        }
        assert!(shown("pom.xml", "", None).ends_with("chaincode.jar | 127.0.0.1:7052 127.0.0.1:7051"));
    }
}
