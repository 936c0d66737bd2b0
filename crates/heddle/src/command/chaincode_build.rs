//! Builds a chaincode with the tools of its language, and says how its program is started.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::failure::CommandError;

/// Where one organisation's chaincode belongs.
pub(super) struct ChaincodePlace {
    pub(super) msp_id: String,
    /// Where it listens.
    pub(super) address: SocketAddr,
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
}

impl Build {
    /// Finds the language of the chaincode in a folder.
    pub(super) fn find(folder: &Path) -> Result<Build, CommandError> {
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
            return Ok(Build { language: "Go", steps, start });
        }
        if has("package.json") {
            let install = if has("package-lock.json") { "npm ci" } else { "npm install" };
            let mut steps = Vec::new();
            if !has("node_modules") {
                steps.push(words(&format!("{install} --no-audit --no-fund")));
            }
            steps.push(words("npm run build --if-present"));
            let start = vec![program("node_modules/.bin/fabric-chaincode-node"), "server".to_owned()];
            return Ok(Build { language: "Node.js", steps, start });
        }
        let java = |step: String, folder: &str| Build {
            language: "Java",
            steps: vec![words(&step)],
            start: vec!["java".to_owned(), "-jar".to_owned(), program(&format!("{folder}/chaincode.jar"))],
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
        let ChaincodePlace { msp_id, address, package_id } = place;
        let address = address.to_string();
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder).stdin(Stdio::null());
        command.env("CORE_PEER_LOCALMSPID", msp_id).env("CHAINCODE_SERVER_ADDRESS", &address);
        command.env("CORE_CHAINCODE_ID_NAME", package_id).env("CHAINCODE_ID", package_id);
        command.env("CORE_PEER_TLS_ENABLED", "false").env("CHAINCODE_TLS_DISABLED", "true");
        if self.language == "Node.js" {
            command.args(["--chaincode-address", &address, "--chaincode-id", package_id]);
        }
        command
    }

    pub(super) fn language(&self) -> &'static str {
        self.language
    }
}
