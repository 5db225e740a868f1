//! The steps and the service by a line that is cut, stalls and swallows, and a server that is killed: see
//! `lockcore_conformance::line`.

use std::process::ExitCode;

use lockcore::BackendError;
use lockcore_conformance::{
    line::{Remote, Route, trials},
    servers::{self, Kind, Server, ServerError},
};
use lockcore_redis::RedisLockDao;
use uuid::Uuid;

fn main() -> ExitCode {
    // They mostly wait for what does not come.
    servers::run_many(6, trials::<Redis>(Kind::Redis))
}

struct Redis;

impl Remote for Redis {
    type Dao = RedisLockDao<String, Uuid>;

    /// All clients' requests go through one connection.
    const POOLED: bool = false;

    async fn open(route: &Route) -> Result<Self::Dao, BackendError> {
        let builder = RedisLockDao::builder().url(&*route.url).namespace(&*route.namespace);
        builder.response_timeout(route.timeout).open().await
    }

    async fn lasting_server(kind: Kind) -> Result<Server, ServerError> {
        let written = ["--appendonly", "yes", "--appendfsync", "always"];
        Server::start_with(kind, move |_| Ok(written.map(str::to_owned).to_vec())).await
    }
}
