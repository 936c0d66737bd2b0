//! From the addresses of a profile to functions.

use std::collections::BTreeMap;
use std::path::Path;

use farmem::{AccessProfile, CodeAddress, CodeObject, CodeSite};

use crate::demangling::readable;
use crate::elf::{self, ElfFunction};

/// Addresses without a function are told apart by blocks of this many bytes.
const BLOCK_BYTES: u64 = 4096;

/// The index of a function in [`FunctionTable::functions`].
pub(crate) type FunctionIndex = usize;

/// A function, or code that has no name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Function {
    /// The name, or the bounds in the file.
    pub(crate) name: String,
    /// The path of the file, or what else has the code.
    pub(crate) object: String,
    pub(crate) is_runtime: bool,
}

/// An address in a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FunctionAddress {
    pub(crate) function: FunctionIndex,
    /// Whether it is the first of a function, which other functions call.
    pub(crate) is_start: bool,
}

/// The functions of a profile.
pub(crate) struct FunctionTable {
    pub(crate) functions: Vec<Function>,
    addresses: BTreeMap<CodeAddress, FunctionAddress>,
    /// Why some functions have no names.
    pub(crate) notes: Vec<String>,
}

impl FunctionTable {
    /// Reads the symbol tables of all files that a profile names.
    pub(crate) fn new(profile: &AccessProfile) -> FunctionTable {
        let mut table = FunctionTable { functions: Vec::new(), addresses: BTreeMap::new(), notes: Vec::new() };
        let mut addresses: Vec<CodeAddress> =
            profile.sites.iter().flat_map(|accesses| addresses_of(&accesses.site)).collect();
        addresses.sort_unstable();
        addresses.dedup();
        for of_object in addresses.chunk_by(|one, other| one.object == other.object) {
            if let Some(object) = profile.objects.get(of_object[0].object as usize) {
                table.add_object(object, of_object);
            }
        }
        table
    }

    /// The function of an address of the profile.
    pub(crate) fn at(&self, address: CodeAddress) -> Option<FunctionAddress> {
        self.addresses.get(&address).copied()
    }

    fn add_object(&mut self, object: &CodeObject, addresses: &[CodeAddress]) {
        let (name, shown) = match object {
            CodeObject::File { path, inode } => return self.add_file(path, *inode, object.is_runtime(), addresses),
            CodeObject::Unknown => ("(unknown code)", "-"),
            CodeObject::Anonymous => ("(code made at run time)", "(anonymous memory)"),
            CodeObject::Kernel(name) => ("(code of the kernel)", name.as_str()),
        };
        let (name, shown) = (name.to_owned(), shown.to_owned());
        self.functions.push(Function { name, object: shown, is_runtime: object.is_runtime() });
        let function = self.functions.len() - 1;
        let all = addresses.iter().map(|address| (*address, FunctionAddress { function, is_start: false }));
        self.addresses.extend(all);
    }

    fn add_file(&mut self, path: &str, inode: u64, is_runtime: bool, addresses: &[CodeAddress]) {
        let offsets: Vec<u64> = addresses.iter().map(|address| address.offset).collect();
        let mut known = elf::functions(Path::new(path), inode, &offsets).unwrap_or_else(|reason| {
            self.notes.push(format!("the functions of {path} have no names: {reason}"));
            BTreeMap::new()
        });
        let mut of_file: BTreeMap<(Option<Vec<u8>>, u64), FunctionIndex> = BTreeMap::new();
        for address in addresses {
            let block = address.offset / BLOCK_BYTES * BLOCK_BYTES;
            let found = known.remove(&address.offset);
            let unknown =
                || ElfFunction { name: None, range: block..block.saturating_add(BLOCK_BYTES), is_start: false };
            let is_function = found.is_some();
            let ElfFunction { name, range, is_start } = found.unwrap_or_else(unknown);
            let function = *of_file.entry((name.clone(), range.start)).or_insert_with(|| {
                let name = match (name, is_function) {
                    (Some(name), _) => readable(&name),
                    (None, true) => format!("(no name) {:#x}..{:#x}", range.start, range.end),
                    (None, false) => format!("(no name) file offsets {:#x}..{:#x}", range.start, range.end),
                };
                self.functions.push(Function { name, object: path.to_owned(), is_runtime });
                self.functions.len() - 1
            });
            self.addresses.insert(*address, FunctionAddress { function, is_start });
        }
    }
}

fn addresses_of(site: &CodeSite) -> impl Iterator<Item = CodeAddress> {
    let callers = site.callers.iter().flat_map(|caller| [Some(caller.address), caller.target]);
    std::iter::once(site.leaf).chain(callers.flatten())
}
