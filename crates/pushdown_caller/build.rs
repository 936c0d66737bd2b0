//! Links the library with functions of memory of its own.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in bare::memory::LINKER_ARGUMENTS {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
