//! Whose an access is: which function's, and which functions had called that.

use farmem::{CodeSite, ReturnAddress};

use crate::symbols::{FunctionIndex, FunctionTable};

/// The functions of one site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Attribution {
    /// The function whose accesses they are.
    pub(crate) function: FunctionIndex,
    /// The function of a runtime that it had called, if it did not make the accesses itself.
    pub(crate) runtime: Option<FunctionIndex>,
    /// The functions that had called it, the nearest first; some may be missing.
    pub(crate) callers: Vec<FunctionIndex>,
}

impl Attribution {
    /// The functions of a site; `None` if the profile does not have what it names.
    pub(crate) fn of(site: &CodeSite, table: &FunctionTable) -> Option<Attribution> {
        let leaf = table.at(site.leaf)?.function;
        let mut rest = &site.callers[..];
        let (mut function, mut runtime) = (leaf, None);
        if table.functions[leaf].is_runtime
            && let Some((nearest, behind)) = rest.split_first()
        {
            // The nearest caller outside of runtimes. What it calls is a stub that leads to the runtime.
            (function, runtime, rest) = (table.at(nearest.address)?.function, Some(leaf), behind);
        }
        let mut callers = Vec::new();
        let mut callee = function;
        while let Some(at) = caller_of(callee, rest, table) {
            callee = table.at(rest[at].address)?.function;
            callers.push(callee);
            rest = &rest[at + 1..];
        }
        Some(Attribution { function, runtime, callers })
    }
}

/// Which of these return addresses belongs to the call of a function: the first whose call leads to that function; if there is
/// none, the first that may. A call of another function is left over from a call that has returned, or its function has
/// jumped to this one.
fn caller_of(callee: FunctionIndex, found: &[ReturnAddress], table: &FunctionTable) -> Option<usize> {
    let target = |caller: &ReturnAddress| caller.target.and_then(|target| table.at(target));
    let calls_it = |caller: &ReturnAddress| target(caller).is_some_and(|called| called.function == callee);
    // A call through a register, or of a stub in between, which is no function's start.
    let may_call_it = |caller: &ReturnAddress| target(caller).is_none_or(|called| !called.is_start);
    found.iter().position(calls_it).or_else(|| found.iter().position(may_call_it))
}
