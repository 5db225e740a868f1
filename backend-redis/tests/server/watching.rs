//! Watchers learn of changes by messages of the server, or else by polls.

use std::{pin::pin, time::Duration};

use futures_util::StreamExt;
use lockcore::{Change, EndedBy, LockDao};
use lockcore_conformance::{
    PATIENCE,
    servers::{Cluster, TestResult},
    store::{exclusive, id, shared},
};
use tokio::time::timeout;

use crate::{
    place::{LONG, Place},
    topology::{Raw, old_server, server},
};

/// Far longer than a test lasts: what is seen was pushed.
const NEVER: Duration = Duration::from_secs(24 * 60 * 60);

/// Has others take, release, freeze, thaw and lose an id, and expects that a watcher sees each of it.
async fn watch(place: &Place, every: Duration, kills: Option<&Raw>) -> TestResult {
    let (locks, store) = (place.locks().await?, place.store().await);
    let (admin, target) = (locks.admin(), id("a"));
    let mut changes = pin!(admin.watch(&target, every));
    let mut next = async || {
        let change = timeout(PATIENCE, changes.next()).await.expect("it is seen in time");
        change.expect("it goes on").expect("the store answers")
    };
    // Nothing is looked at before the first poll: it sees what is held then.
    let us = store.caller().with_lease(LONG);
    let held = us.take([exclusive("a")]).await;
    assert!(matches!(next().await, Change::Acquired(_)));
    us.free(&held).await;
    assert!(matches!(next().await, Change::Ended { by: EndedBy::Release, .. }));
    let [one, two] = store.callers();
    let (one, two) = (one.with_lease(LONG), two.with_lease(LONG));
    let first = one.take([shared("a")]).await;
    assert!(matches!(next().await, Change::Acquired(_)));
    let second = two.take([shared("a")]).await;
    assert!(matches!(next().await, Change::Acquired(_)));
    one.free(&first).await;
    assert!(matches!(next().await, Change::Ended { .. }));
    two.free(&second).await;
    assert!(matches!(next().await, Change::Ended { .. }));
    if let Some(raw) = kills {
        // The connection is lost, and with it what the server would push.
        raw.ask::<u64>("CLIENT KILL TYPE normal SKIPME yes").await?;
    }
    let other = place.open().await?;
    other.freeze(&target, true).await?;
    assert_eq!(next().await, Change::Frozen);
    other.freeze(&target, false).await?;
    assert_eq!(next().await, Change::Thawed);
    let store = place.store().await;
    let dead = store.caller().with_lease(store.short());
    dead.take([exclusive("a")]).await;
    assert!(matches!(next().await, Change::Acquired(_)));
    assert!(matches!(next().await, Change::Ended { by: EndedBy::Lease, .. }));
    Ok(())
}

pub(crate) async fn a_watcher_sees_changes_at_once() -> TestResult {
    for server in [server("").await?, old_server("").await?] {
        watch(&Place::at(server.url()), NEVER, Some(&Raw::to(&server.url()).await?)).await?;
    }
    Ok(())
}

pub(crate) async fn a_watcher_polls_where_changes_are_not_pushed() -> TestResult {
    const OFTEN: Duration = Duration::from_millis(20);
    let server = server("").await?;
    let raw = Raw::to(&server.url()).await?;
    raw.ask::<()>("ACL SETUSER locks on >s3cret ~* &* +@all -client|tracking").await?;
    watch(&Place::at(format!("redis://locks:s3cret@{}", server.address())), OFTEN, None).await?;
    let cluster = Cluster::start().await?;
    watch(&Place::at(format!("redis+cluster://{}", cluster.addresses())), OFTEN, None).await
}
