//! Fuzz harness of the role's view; see [`base::fuzz`].

use base::Bytes;
use base::fuzz::{FuzzTarget, InputShape, authenticated};

use crate::view::{RoleView, samples};

/// The target of this module.
pub const TARGETS: &[FuzzTarget] =
    &[FuzzTarget { name: "executors-views", shape: InputShape::Bytes, run: views, seeds }];

fn seeds() -> Vec<Vec<u8>> {
    samples().iter().map(|view| view.encode().to_vec()).collect()
}

/// Decodes a view: what decodes is its only encoding.
pub fn views(input: &[u8]) {
    let message = Bytes::copy_from_slice(input);
    if let Ok(view) = authenticated(input, || RoleView::decode(message)) {
        assert_eq!(view.encode(), input, "{view:?}");
    }
}
