//! Addresses with a registered scheme go to its transport; others stay names.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use base::Bytes;
use base::rt::channel::{Closed, Receiver, Sender, TrySendError, bounded};
use base::rt::net::{self, BoxFuture, GatherList, Link, ReceiveHalf, SendHalf, Transport, TransportListener};
use base::rt::production;

/// Every connection is a link to itself; listeners accept nothing.
struct Echo;
struct Nobody;
struct Outwards(Sender<GatherList>);
struct Inwards(Receiver<GatherList>);

impl Transport for Echo {
    fn listen<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<Box<dyn TransportListener>>> {
        Box::pin(async { Ok(Box::new(Nobody) as Box<dyn TransportListener>) })
    }

    fn connect<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Link>> {
        Box::pin(async move {
            let (sender, receiver) = bounded(1);
            Ok(Link::new(Box::new(Outwards(sender)), Box::new(Inwards(receiver)), Some(rest)))
        })
    }
}

impl TransportListener for Nobody {
    fn poll_accept(&mut self, _: &mut Context<'_>) -> Poll<Result<Link, Closed>> {
        Poll::Ready(Err(Closed))
    }

    fn address(&self) -> String {
        "chosen:7".to_owned()
    }
}

impl SendHalf for Outwards {
    fn try_send(&self, message: GatherList) -> Result<(), TrySendError<GatherList>> {
        self.0.try_send(message)
    }

    fn send(&self, message: GatherList) -> BoxFuture<'_, Result<(), Closed>> {
        Box::pin(self.0.send(message))
    }
}

impl ReceiveHalf for Inwards {
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Closed>> {
        self.0.poll_recv(cx).map(|message| message.map(GatherList::concat).ok_or(Closed))
    }
}

#[test]
fn an_address_with_a_registered_scheme_goes_to_its_transport() {
    net::register("echo", Arc::new(Echo));
    production::run(async {
        let link = net::connect("echo:some:where").await.expect("it connects to anything");
        assert_eq!(link.peer(), Some("some:where"));
        let (sender, mut receiver) = link.split();
        // The second message waits for space, which takes the path with the boxed future.
        let sending = base::rt::spawn(async move {
            for byte in 0..3 {
                sender.send(Bytes::from(vec![byte])).await.expect("the receiver is there");
            }
        });
        for byte in 0..3 {
            assert_eq!(receiver.receive().await, Ok(Bytes::from(vec![byte])));
        }
        sending.await.expect("nothing aborts it");
        assert_eq!(receiver.receive().await, Err(Closed));
        assert_eq!(net::listen("echo:").await.expect("it listens").address(), "echo:chosen:7");
    });
}

#[test]
fn an_address_without_one_names_a_listener_of_the_process() {
    production::run(async {
        let mut listener = net::listen("nobody-registered:this").await.expect("it is free");
        let near = net::connect("nobody-registered:this").await.expect("it listens");
        assert_eq!((near.peer(), listener.address()), (None, "nobody-registered:this"));
        let mut far = listener.accept().await.expect("it was connected to");
        near.send(Bytes::from_static(b"x")).await.expect("there is room");
        assert_eq!(far.receive().await, Ok(Bytes::from_static(b"x")));
        let refused = net::connect("nobody-registered:that").await.expect_err("nobody listens there");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    });
}
