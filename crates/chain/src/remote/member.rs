//! The peer of another organisation, with which private data are exchanged over links.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::{Bytes, ChannelId, ErrorKind, MspId, TxId, rt};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use ledger::rwset::PrivateSet;

use super::RemotePeer;
use super::messages::{Ask, decode};
use super::private_messages::{PrivatePull, PrivatePullResponse, PrivatePush};
use private_data::{Error, MemberPeer, SetDigest};

/// How long the compute nodes that were asked may take until another one is asked beside them.
const PATIENCE: Duration = Duration::from_millis(200);

/// A peer of another organisation. Its compute nodes share their private data, so any of them may answer.
pub struct RemoteMember {
    /// This process's organisation.
    own: MspId,
    organization: MspId,
    nodes: Vec<Arc<RemotePeer>>,
}

impl RemoteMember {
    /// The peer of `organization` with these compute nodes, which accept links of the organisation `own`.
    pub fn new(own: MspId, organization: MspId, nodes: Vec<Arc<RemotePeer>>) -> RemoteMember {
        RemoteMember { own, organization, nodes }
    }

    async fn ask(&self, ask: Ask) -> Result<Bytes, Error> {
        match first_answer(self.nodes.iter().map(|node| node.ask(ask.clone()))).await {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(failed)) => Err(self.error(failed.kind(), failed.to_string())),
            None => Err(self.error(ErrorKind::Retry, "no compute node of its peer is known".to_owned())),
        }
    }

    fn error(&self, kind: ErrorKind, reason: String) -> Error {
        Error::Member { organization: self.organization.clone(), kind, reason }
    }
}

/// Asks in turn until one answers or rejects: the next one when one has failed, or when none of those before has answered for
/// [`PATIENCE`]. The caller's time limit is for all together.
async fn first_answer<A>(mut asks: impl Iterator<Item = A>) -> Option<Result<Bytes, crate::Error>>
where
    A: Future<Output = Result<Bytes, crate::Error>>,
{
    let (mut waiting, mut last) = (FuturesUnordered::new(), None);
    loop {
        let answered = match asks.next() {
            Some(ask) => {
                waiting.push(ask);
                rt::timeout(PATIENCE, waiting.next()).await
            }
            None => Ok(waiting.next().await),
        };
        match answered {
            Ok(Some(Err(failed))) if failed.kind() != ErrorKind::Rejected => last = Some(Err(failed)),
            Ok(Some(answered)) => return Some(answered),
            Ok(None) => return last,
            Err(_) => {}
        }
    }
}

#[async_trait]
impl MemberPeer for RemoteMember {
    fn organization(&self) -> &MspId {
        &self.organization
    }

    async fn push(&self, channel: &ChannelId, tx_id: &TxId, sets: &[PrivateSet]) -> Result<(), Error> {
        self.ask(Ask::PrivatePush(PrivatePush::new(channel, &self.own, tx_id, sets))).await.map(drop)
    }

    async fn pull(&self, channel: &ChannelId, wanted: &[SetDigest]) -> Result<Vec<Option<Bytes>>, Error> {
        let answer = self.ask(Ask::PrivatePull(PrivatePull::new(channel, &self.own, wanted))).await?;
        let answer: PrivatePullResponse = decode(answer)
            .map_err(|error| self.error(ErrorKind::Corrupt, format!("its answer cannot be read: {error}")))?;
        Ok(answer.sets.into_iter().map(|set| set.writes).take(wanted.len()).collect())
    }
}

#[cfg(test)]
mod tests {
    use base::rt::simulation::Simulation;

    use super::*;

    /// What a compute node does: answers after this long, fails, or is silent.
    #[derive(Clone, Copy)]
    enum Node {
        Answers(u64),
        Fails(ErrorKind),
        Silent,
    }

    type Expected = Option<Result<&'static str, ErrorKind>>;

    async fn ask(node: Node) -> Result<Bytes, crate::Error> {
        match node {
            Node::Answers(ms) => {
                rt::sleep(Duration::from_millis(ms)).await;
                Ok(Bytes::from(ms.to_string()))
            }
            Node::Fails(kind) => Err(crate::Error::Rejected { name: "a node".into(), kind, reason: "it fails".into() }),
            Node::Silent => std::future::pending().await,
        }
    }

    /// Regression: one compute node that answered nothing used up the time limit of all.
    #[test]
    fn a_silent_compute_node_leaves_time_for_the_others() {
        use Node::{Answers, Fails, Silent};
        let cases: [(&[Node], Expected, u64); 6] = [
            (&[], None, 0),
            (&[Answers(5), Silent], Some(Ok("5")), 5),
            (&[Silent, Silent, Answers(5)], Some(Ok("5")), 405),
            (&[Answers(300), Silent, Answers(500)], Some(Ok("300")), 300),
            (&[Fails(ErrorKind::Retry), Fails(ErrorKind::Rejected), Answers(5)], Some(Err(ErrorKind::Rejected)), 0),
            (&[Fails(ErrorKind::Retry), Fails(ErrorKind::Fenced)], Some(Err(ErrorKind::Fenced)), 0),
        ];
        for (nodes, expected, ms) in cases {
            let nodes = nodes.to_vec();
            let ran = Simulation::new(7).run(|_| async move {
                let start = rt::now();
                let found = first_answer(nodes.into_iter().map(ask)).await;
                assert_eq!(start.elapsed().as_millis(), u128::from(ms));
                let found = found.map(|found| found.map_err(|error| error.kind()));
                assert_eq!(found, expected.map(|expected| expected.map(|text| Bytes::from_static(text.as_bytes()))));
            });
            ran.expect("the run succeeds");
        }
    }
}
