//! Links the program at addresses that no other program uses, and with functions of memory of its own.

/// [`pushdown::PRIVATE`] begins here.
const ADDRESS: &str = "0x100000000000";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The start files stay those of position-independent programs: the others assume addresses below 2 GiB.
    println!("cargo::rustc-link-arg-bins=-Wl,-no-pie");
    println!("cargo::rustc-link-arg-bins=-Wl,--image-base={ADDRESS}");
    for argument in bare::memory::LINKER_ARGUMENTS {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}
