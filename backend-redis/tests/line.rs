//! The steps and the service by a line that is cut, stalls and swallows, and a server that is killed: see
//! `lockcore_conformance::line`.

use lockcore::BackendError;
use lockcore_conformance::{
    line::{self, Remote, Route},
    servers::{Kind, Server, ServerError, Trial},
};
use lockcore_redis::RedisLockDao;
use uuid::Uuid;

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    // They mostly wait for what does not come.
    line::trials::<Redis>(Kind::Redis).into_iter().map(|trial| trial.thorough().at_once("line", 6))
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
