//! Watchers learn of changes by messages of the server, or else by polls.

use std::time::Duration;

use lockcore_conformance::{
    NEVER,
    checks::admin::see_changes,
    servers::{Cluster, TestResult},
};

use super::{
    place::Place,
    topology::{Raw, old_server, server},
};

pub(crate) async fn a_watcher_sees_changes_at_once() -> TestResult {
    for server in [server("").await?, old_server("").await?] {
        let raw = Raw::to(&server.url()).await?;
        // The connection is lost, and with it what the server would push.
        let kill = async || {
            raw.ask::<u64>("CLIENT KILL TYPE normal SKIPME yes").await.expect("the server answers");
        };
        see_changes(&Place::at(server.url()).store().await, NEVER, kill).await;
    }
    Ok(())
}

pub(crate) async fn a_watcher_polls_where_changes_are_not_pushed() -> TestResult {
    const OFTEN: Duration = Duration::from_millis(20);
    let server = server("").await?;
    let raw = Raw::to(&server.url()).await?;
    raw.ask::<()>("ACL SETUSER locks on >s3cret ~* &* +@all -client|tracking").await?;
    let cluster = Cluster::start().await?;
    for url in [
        format!("redis://locks:s3cret@{}", server.address()),
        format!("redis+cluster://{}", cluster.addresses()),
    ] {
        see_changes(&Place::at(url).store().await, OFTEN, async || {}).await;
    }
    Ok(())
}
