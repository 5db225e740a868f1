//! Behind a line that takes 10 ms each way: what a pair costs in messages.

use std::time::{Duration, Instant};

use lockcore::LockDao;
use lockcore_conformance::servers::{Mode, Proxy, Server};
use uuid::Uuid;

use crate::{
    Locks,
    bare::{Commits, Database},
    by_statements, fresh, names, service,
};

const WAY: Duration = Duration::from_millis(10);
const TIMES: u32 = 20;

/// Counts what goes through the line, and prints it: by routines, and by plain statements.
pub(crate) async fn messages<D: Database>(server: &Server) {
    let proxy = Proxy::start(server.address()).await.expect("a port");
    let url = server.url_through(proxy.address());
    let routines = service::<D>(&url, Commits::Usual).await;
    let statements = by_statements::<D>(&url, Commits::Usual).await;
    count("with_locks", &proxy, &routines).await;
    count("by statements", &proxy, &statements).await;
}

/// What is more than a socket takes at once arrives in pieces, so that the time shows round trips where the count shows pieces.
async fn count<L: LockDao<String, Uuid>>(way: &str, proxy: &Proxy, locks: &Locks<L>) {
    type Names = fn(usize) -> Vec<String>;
    const SEEN: [(&str, Names); 2] = [("", names), (" never seen before", fresh)];
    locks.with_locks(["warm"], || async {}).await.expect("free");
    proxy.set(Mode::Delay { requests: WAY, replies: WAY }).await;
    for (ids, (seen, names)) in [1, 10, 100].into_iter().flat_map(|ids| SEEN.map(|seen| (ids, seen))) {
        let (mut requests, mut replies, mut took) = (u64::MAX, u64::MAX, Duration::MAX);
        let first = proxy.counts().requests;
        for _ in 0..TIMES {
            let names = names(ids);
            let (before, begun) = (proxy.counts(), Instant::now());
            locks.with_locks(&names, || async {}).await.expect("free");
            let after = proxy.counts();
            took = took.min(begun.elapsed());
            requests = requests.min(after.requests - before.requests);
            replies = replies.min(after.replies - before.replies);
        }
        let mean = (proxy.counts().requests - first) as f64 / f64::from(TIMES);
        println!(
            "{way} of {ids} ids{seen}, 10 ms away: {requests} requests, {mean:.2} in the mean, {replies} replies, {took:.1?}"
        );
    }
    proxy.set(Mode::Pass).await;
}
