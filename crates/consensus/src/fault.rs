//! Named places where a simulation may end the processor that runs a coordinator.

use base::rt;
use base::rt::simulation::Node;

/// In a simulation that injects this fault, the node crashes here. In production nothing happens.
pub(crate) async fn crash_point(name: &'static str) {
    if rt::fault_point(name)
        && let Some(node) = Node::current()
    {
        node.crash();
        std::future::pending::<()>().await;
    }
}
