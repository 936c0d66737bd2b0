//! The role *executors* as a process of its own, so that it can be killed: this test program once more, with one test, [`serve`].

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use executors::{ExecutorsRole, ExecutorsSettings, OwnersAllowed, RoleView, StorageSettings};

use super::compiled::executor;

/// The role's settings, as words.
const SETTINGS: &str = "HEDDLE_TEST_ROLE";
/// What it says before it answers, and after a page.
const READY: &str = "the role is ready";
const END_OF_PAGE: &str = "end of page";

/// A role in a process of its own.
pub struct RoleProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    pub socket: PathBuf,
}

impl RoleProcess {
    /// Starts a role at a socket. `settings` are words such as `per_owner=2`.
    pub fn start(socket: &Path, settings: &str) -> RoleProcess {
        let test = std::env::current_exe().expect("the test has a file");
        let mut command = Command::new(test);
        command.args(["--exact", "running::role_process::serve", "--nocapture"]);
        command.env(SETTINGS, format!("socket={} {settings}", socket.display()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("this test can be started");
        let output = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let input = child.stdin.take();
        let mut role = RoleProcess { child, input, output, socket: socket.to_path_buf() };
        role.lines_until(READY);
        role
    }

    fn lines_until(&mut self, end: &str) -> String {
        let mut page = String::new();
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).expect("it writes text");
            assert!(read > 0, "the role has ended: {page}");
            if line.trim_end() == end {
                return page;
            }
            page += &line;
        }
    }

    fn command(&mut self, command: &str) {
        let input = self.input.as_mut().expect("it was not closed");
        writeln!(input, "{command}").and_then(|()| input.flush()).expect("the role reads");
    }

    /// Its page of metrics, and those who are sick.
    pub fn page(&mut self) -> String {
        self.command("page");
        self.lines_until(END_OF_PAGE)
    }

    /// What it shows.
    pub fn view(&self) -> RoleView {
        executors::show(&self.socket).expect("the role answers")
    }

    /// Has it stop, and does not wait.
    pub fn begin_stop(&mut self) {
        self.command("stop");
    }

    /// Waits until it has ended by itself.
    pub fn wait(&mut self) {
        let mut rest = String::new();
        let _ = self.output.read_to_string(&mut rest);
        let status = self.child.wait().expect("it is a child");
        assert!(status.success(), "{status}: {rest}");
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.child.kill().expect("it is a child");
        self.child.wait().expect("it is a child");
    }
}

impl Drop for RoleProcess {
    fn drop(&mut self) {
        // It ends with its input.
        self.input = None;
        let _ = self.child.wait();
    }
}

fn settings(words: &str) -> ExecutorsSettings {
    let mut settings = ExecutorsSettings::new("".into(), executor());
    // Whatever a test needs that says nothing else.
    settings.executors_max = 64;
    settings.per_owner_max = 64;
    settings.contexts_max = 16;
    settings.memory_bytes = Some(4 << 30);
    settings.processor_percent = Some(400);
    for word in words.split_ascii_whitespace() {
        let (name, value) = word.split_once('=').expect("a name and a value");
        let number = || value.parse::<u64>().expect("a number");
        match name {
            "socket" => settings.socket = value.into(),
            "any_owner" => settings.owners = OwnersAllowed::Any,
            "executors_max" => settings.executors_max = number() as usize,
            "per_owner" => settings.per_owner_max = number() as usize,
            "contexts" => settings.contexts_max = number() as u32,
            "memory_mib" => settings.memory_bytes = Some(number() << 20),
            "processor" => settings.processor_percent = Some(number() as u32),
            "owner_memory_mib" => settings.owner_memory_bytes = Some(number() << 20),
            "owner_processor" => settings.owner_processor_percent = Some(number() as u32),
            "storage_mib" => {
                let folder = env!("CARGO_TARGET_TMPDIR").into();
                settings.storage = Some(StorageSettings { folder, bytes: number() << 20 });
            }
            "silence_ms" => settings.silence = Duration::from_millis(number()),
            "grace_ms" => settings.grace = Duration::from_millis(number()),
            "namespaces" => settings.has_namespaces = number() == 1,
            "limits" if number() == 0 => (settings.memory_bytes, settings.processor_percent) = (None, None),
            other => panic!("there is no setting {other}"),
        }
    }
    settings
}

/// With settings in the environment this is the role of another test. Without them it checks how they are read.
#[test]
fn serve() {
    let Ok(words) = std::env::var(SETTINGS) else {
        let read = settings("socket=/tmp/role per_owner=2 memory_mib=64 silence_ms=500 namespaces=0");
        assert_eq!((read.socket.to_str(), read.per_owner_max), (Some("/tmp/role"), 2));
        assert_eq!((read.memory_bytes, read.silence), (Some(64 << 20), Duration::from_millis(500)));
        assert!(!read.has_namespaces && settings("limits=0").memory_bytes.is_none());
        return;
    };
    let role = ExecutorsRole::start(settings(&words)).unwrap_or_else(|error| panic!("no role: {error}"));
    println!("\n{READY}");
    for line in std::io::stdin().lines() {
        match line.expect("text").as_str() {
            "page" => {
                let sick = role.sick().join("\n");
                println!("{}{}{sick}\n{END_OF_PAGE}", base::event::render_prometheus(), role.owner_metrics());
            }
            // In its own time, while with its input closed it ends at once.
            "stop" => {
                role.begin_stop();
                assert!(role.wait(), "it stops in order");
                break;
            }
            other => panic!("there is no command {other}"),
        }
    }
}
