//! Checks, while compiling, which types tasks may share and which may move between them.

use crate::identity::Identity;
use crate::manager::MspManager;
use crate::policy::{PolicyTree, SignatureSet};
use crate::signer::Signer;

// What is shared between tasks may be shared, and a set of signatures may move to another task between evaluations.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    const fn is_sent<T: Send>() {}
    is_shared::<Signer>();
    is_shared::<MspManager>();
    is_shared::<Identity>();
    is_shared::<PolicyTree>();
    is_sent::<SignatureSet<'static>>();
};
