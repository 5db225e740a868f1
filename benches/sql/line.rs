//! Behind a line that takes 10 ms each way: what a pair costs in messages.

use std::time::{Duration, Instant};

use lockcore_conformance::servers::{Mode, Proxy, Server};

use crate::{
    bare::{Commits, Database},
    names, service,
};

const WAY: Duration = Duration::from_millis(10);

/// Counts what goes through the line, and prints it. What is more than a socket takes at once arrives in pieces, so that the
/// time shows round trips where the count shows pieces.
pub(crate) async fn messages<D: Database>(server: &Server) {
    let proxy = Proxy::start(server.address()).await.expect("a port");
    let locks = service::<D>(&server.url_through(proxy.address()), Commits::Usual).await;
    locks.with_locks(["warm"], || async {}).await.expect("free");
    proxy.set(Mode::Delay { requests: WAY, replies: WAY }).await;
    for ids in [1, 10, 100] {
        let names = names(ids);
        let (mut requests, mut replies, mut took) = (u64::MAX, u64::MAX, Duration::MAX);
        for _ in 0..20 {
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
