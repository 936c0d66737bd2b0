//! Files of a compiler, whole, stripped and damaged.

use std::process::Command;

use super::*;

const SOURCE: &str = "
    int counter;
    __attribute__((noinline)) int scan(int of) { for (int i = 0; i < of; i++) counter += i * counter; return counter; }
    __attribute__((noinline)) static int probe(int of) { return scan(of) + scan(of + 1) * counter; }
    int main(int count, char **arguments) { return probe(count) + scan(3); }
";

/// Compiles the program, and strips it if that is asked for.
fn program(folder: &Path, strip: bool) -> PathBuf {
    let (source, program) = (folder.join("program.c"), folder.join("program"));
    std::fs::File::create_new(&source)
        .and_then(|mut file| std::io::Write::write_all(&mut file, SOURCE.as_bytes()))
        .expect("the folder is new");
    let mut command = Command::new("cc");
    command.args(["-O1", "-o"]).arg(&program).arg(&source).args(strip.then_some("-s"));
    let compiled = command.output().expect("a C compiler is installed, as for a dependency");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    program
}

fn inode(path: &Path) -> u64 {
    path.metadata().expect("it exists").ino()
}

/// All offsets with functions.
fn all_functions(path: &Path) -> BTreeMap<u64, ElfFunction> {
    let bytes = path.metadata().expect("it exists").len();
    let offsets: Vec<u64> = (0..bytes).collect();
    functions(path, inode(path), &offsets).expect("the compiler has made it")
}

fn names(functions: &BTreeMap<u64, ElfFunction>) -> Vec<String> {
    let mut names: Vec<String> =
        functions.values().filter_map(|function| String::from_utf8(function.name.clone()?).ok()).collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn functions_have_the_names_of_the_symbol_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let found = all_functions(&program(folder.path(), false));
    let names = names(&found);
    for name in ["main", "scan", "probe"] {
        assert!(names.contains(&name.to_owned()), "{name} is missing: {names:?}");
    }
    let scan: Vec<&ElfFunction> =
        found.values().filter(|function| function.name.as_deref() == Some(b"scan".as_slice())).collect();
    assert_eq!(scan.iter().filter(|function| function.is_start).count(), 1);
    assert!(scan.len() > 2 && scan.iter().all(|function| function.range == scan[0].range));
}

#[test]
fn functions_of_a_stripped_program_have_bounds() {
    let (whole, stripped) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let named = all_functions(&program(whole.path(), false));
    let found = all_functions(&program(stripped.path(), true));
    let (at, scan) = named
        .iter()
        .find(|(_, function)| function.name.as_deref() == Some(b"scan".as_slice()) && function.is_start)
        .expect("the program has this function");
    let function = found.get(at).expect("its bounds are known");
    assert_eq!((function.name.as_ref(), function.range.start, function.is_start), (None, scan.range.start, true));
}

#[test]
fn a_file_that_is_not_the_one_that_ran_gives_no_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = program(folder.path(), false);
    let error = functions(&program, inode(&program) + 1, &[0]).expect_err("the inode is another one");
    assert!(error.contains("replaced"), "{error}");
    for path in ["/nonexistent", "/dev/null", "/proc/self/maps"] {
        assert!(functions(Path::new(path), 0, &[0]).is_err(), "{path}");
    }
}

/// Every byte of a file may be anybody's. Neither a panic nor a long wait may come of it.
#[test]
fn damaged_files_give_errors_or_other_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = std::fs::read(program(folder.path(), false)).expect("it can be read");
    let damaged = folder.path().join("damaged");
    let mut random = 7_u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let offsets: Vec<u64> = (0..whole.len() as u64).step_by(64).collect();
    let headers = 64 + 14 * 56;
    let mut read = 0;
    for round in 0..600 {
        let mut bytes = whole.clone();
        // The headers of the file and of its segments, those of its sections at the end, or anything.
        let (start, count) = match round % 3 {
            0 => (0, headers),
            1 => (bytes.len() - 31 * 64, 31 * 64),
            _ => (0, bytes.len()),
        };
        for _ in 0..=next(6) {
            bytes[start + next(count)] = [0, 0xff, 0x7f, 0x80, next(256) as u8][next(5)];
        }
        if round % 10 == 9 {
            bytes.truncate(next(whole.len()));
        }
        std::fs::OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .open(&damaged)
            .and_then(|mut file| std::io::Write::write_all(&mut file, &bytes))
            .expect("the folder is writable");
        read += usize::from(functions(&damaged, inode(&damaged), &offsets).is_ok());
    }
    assert!(read > 20, "most damages are not noticed: {read}");
}
