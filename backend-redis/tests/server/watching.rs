//! Watchers go on where the connection is lost.

use lockcore_conformance::{checks::admin::see_changes, servers::TestResult};

use super::{
    place::Place,
    topology::{Raw, old_server, server},
};

pub(crate) async fn a_watcher_outlasts_its_connection() -> TestResult {
    for server in [server("").await?, old_server("").await?] {
        let raw = Raw::to(&server.url()).await?;
        let kill = async || {
            raw.ask::<u64>("CLIENT KILL TYPE normal SKIPME yes").await.expect("the server answers");
        };
        see_changes(&Place::at(server.url()).store().await, kill).await;
    }
    Ok(())
}
