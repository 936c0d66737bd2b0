//! The type of the boxed futures that large public entry points return.

/// The future of a large public entry point. It is boxed because an `async fn`, with everything that it awaits, is
/// compiled in the crate that awaits it: boxing compiles it here, once, and not in the program at every build of the
/// program.
pub(crate) type Boxed<'a, T> = futures_util::future::BoxFuture<'a, T>;
