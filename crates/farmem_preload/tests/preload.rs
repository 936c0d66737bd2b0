//! The library in programs that have no far heap. Those that have one are tested with the program `heddle`, which serves them.

use std::path::PathBuf;
use std::process::{Command, Output};

/// What a program returns that cannot have the far heap which it should have.
const NO_FAR_HEAP: i32 = 70;

/// The library, which cargo builds with this test, and beside it.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a file");
    let library = test.with_file_name("libheddle_farmem.so");
    assert!(library.exists(), "{} is missing", library.display());
    library
}

fn shell(script: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("LD_PRELOAD", library()).envs(variables.iter().copied());
    command.output().expect("there is a shell")
}

#[test]
fn programs_without_a_server_run_as_ever() {
    let output = shell("for i in 1 2 3; do echo $i; done | sort -r | tr '\\n' ' '; sh -c 'exit 5'", &[]);
    assert_eq!((output.status.code(), &output.stdout[..], &output.stderr[..]), (Some(5), &b"3 2 1 "[..], &b""[..]));
}

/// Such a program was started to have more memory than the machine, so it must not use the machine's.
#[test]
fn a_program_ends_that_cannot_reach_its_server() {
    let secret = "00112233445566778899aabbccddeeff";
    for (socket, secret, reason) in
        [("heddle-farmem-nobody", secret, "cannot connect to the server"), ("x", "no digits", "names no server")]
    {
        let output = shell("echo reached", &[("HEDDLE_FARMEM_SOCKET", socket), ("HEDDLE_FARMEM_SECRET", secret)]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(NO_FAR_HEAP), &b""[..]), "{errors}");
        assert!(errors.starts_with("heddle: the far heap: ") && errors.contains(reason), "{errors}");
    }
}

#[test]
fn a_program_ends_that_cannot_have_its_heap_in_an_executor() {
    for (heap, reason) in
        [("512M", "no executor as it should"), ("1048576,65536,1,0", "libheddle_pushdown.so has to be preloaded")]
    {
        let output = shell("echo reached", &[("HEDDLE_FARMEM_EXECUTOR_HEAP", heap)]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(NO_FAR_HEAP), &b""[..]), "{errors}");
        assert!(errors.starts_with("heddle: the far heap: ") && errors.contains(reason), "{errors}");
    }
}
