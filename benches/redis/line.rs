//! Behind a line that takes 10 ms each way: what a hand-off and a pair cost in messages.

use std::time::{Duration, Instant};

use lockcore_benches::Case;
use lockcore_conformance::servers::{Mode, Proxy, Server};

use crate::{bare::Channel, hand_over, names, service};

const SLOW: Mode = Mode::Delay { requests: Duration::from_millis(10), replies: Duration::from_millis(10) };

/// The same hand-off with both ends behind the line: 20 ms are the line's own.
pub(crate) async fn hand_off(server: &Server) -> Case {
    let candidates = ["release -> the waiter's callback", "bare PUBLISH -> message"];
    let mut case = Case::new("the same, 10 ms away", &candidates);
    let proxy = Proxy::start(server.address()).await.expect("a port");
    let url = server.url_through(proxy.address());
    let services = [service(&url).await, service(&url).await];
    let mut channel = Channel::open(&url).await;
    proxy.set(SLOW).await;
    for round in 0..60 {
        let (holder, waiter) = (&services[round % 2], services[(round + 1) % 2].clone());
        case.times(0).add(hand_over(holder, waiter).await, 1);
        case.times(1).add(channel.message().await, 1);
    }
    case
}

/// Counts what goes through the line, and prints it.
pub(crate) async fn messages(server: &Server) {
    let proxy = Proxy::start(server.address()).await.expect("a port");
    let url = server.url_through(proxy.address());
    let locks = service(&url).await;
    locks.with_locks(["warm"], || async {}).await.expect("free");
    proxy.set(SLOW).await;
    for ids in [1, 10, 100] {
        let names = names(ids);
        let (mut requests, mut replies, mut took) = (u64::MAX, u64::MAX, Duration::MAX);
        for _ in 0..10 {
            let (before, begun) = (proxy.counts(), Instant::now());
            locks.with_locks(&names, || async {}).await.expect("free");
            let after = proxy.counts();
            took = took.min(begun.elapsed());
            requests = requests.min(after.requests - before.requests);
            replies = replies.min(after.replies - before.replies);
        }
        println!("with_locks of {ids} ids, 10 ms away: {requests} requests, {replies} replies, {took:.1?}");
    }
}
