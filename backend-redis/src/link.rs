//! One connection, to a server or to a cluster.

use redis::{Cmd, RedisResult, Value};
use tokio::runtime::Handle;

/// A connection that the tasks of a runtime share; it belongs to the runtime that opened it.
#[derive(Clone)]
pub(crate) enum Link {
    Single(redis::aio::MultiplexedConnection),
    #[cfg(feature = "cluster")]
    Cluster(redis::cluster_async::ClusterConnection),
}

impl Link {
    /// Sends a command and waits for its reply. Dropping the future does not cancel the command.
    pub(crate) async fn send(&self, own: &Handle, command: &Cmd) -> RedisResult<Value> {
        if Handle::try_current().is_ok() {
            return self.ask(command).await;
        }
        let (link, command) = (self.clone(), command.clone());
        Box::pin(within(own, async move { link.ask(&command).await })).await
    }

    async fn ask(&self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Link::Single(connection) => {
                connection.clone().send_packed_command(command).await?.extract_error()
            }
            #[cfg(feature = "cluster")]
            Link::Cluster(connection) => command.query_async(&mut connection.clone()).await,
        }
    }

    /// Subscribes to `channel`.
    pub(crate) async fn subscribe(&self, own: &Handle, channel: String) -> RedisResult<()> {
        let link = self.clone();
        within(own, async move {
            match link {
                Link::Single(mut connection) => connection.subscribe(channel).await,
                #[cfg(feature = "cluster")]
                Link::Cluster(mut connection) => connection.ssubscribe(channel).await,
            }
        })
        .await
    }
}

/// Runs `work` in the connection's own runtime where the caller has none: timeouts need one.
async fn within<T: Send + 'static>(
    own: &Handle,
    work: impl Future<Output = RedisResult<T>> + Send + 'static,
) -> RedisResult<T> {
    if Handle::try_current().is_ok() {
        return work.await;
    }
    let ended = |_| Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into());
    own.spawn(work).await.unwrap_or_else(ended)
}
