//! A Postgres server whose commits wait for its replica, in containers.

use tokio::sync::Mutex;

use super::{Kind, Server, ServerError};

/// Lets replicas connect. The password is for clients; the network is this machine's.
const ADMIT: &str = "echo 'host replication all all trust' >>$PGDATA/pg_hba.conf \
    && psql -q -U postgres -c 'SELECT pg_reload_conf()'";

/// Has commits wait for the replica, and waits until it is in step.
const SYNCHRONOUS: &str = "psql -q -U postgres -c \"ALTER SYSTEM SET synchronous_standby_names = '*'\" \
    -c 'SELECT pg_reload_conf()' && timeout 60 sh -c \
    'until psql -U postgres -tAc \"SELECT sync_state FROM pg_stat_replication\" | grep -q sync; do sleep 0.1; done'";

/// Makes a replica the primary, whose commits wait for no other one yet.
const PROMOTE: &str = "psql -q -U postgres -c 'SELECT pg_promote()' \
    -c 'ALTER SYSTEM RESET synchronous_standby_names' -c 'SELECT pg_reload_conf()'";

/// A primary and a replica that has all that the primary has answered.
#[derive(Debug)]
pub struct Replicated {
    /// The primary, and its replica.
    servers: Mutex<(Server, Server)>,
}

impl Replicated {
    /// Starts both, and waits until the replica is in step.
    ///
    /// # Errors
    /// As [`Server::start`]; unavailable where no Docker engine answers.
    pub async fn start() -> Result<Self, ServerError> {
        let primary = Server::start_for_many(Kind::Postgres).await?;
        primary.shell("admit replicas to", ADMIT).await?;
        let replica = Self::replica_of(&primary).await?;
        Ok(Replicated { servers: Mutex::new((primary, replica)) })
    }

    /// The URL of the primary through a proxy.
    pub async fn url_through(&self, proxy: std::net::SocketAddr) -> String {
        self.servers.lock().await.0.url_through(proxy)
    }

    /// The `host:port` of the primary.
    pub async fn address(&self) -> String {
        self.servers.lock().await.0.address()
    }

    /// Stops the primary in the middle of what it does, and promotes the replica; returns the new primary's address.
    ///
    /// # Errors
    /// [`ServerError::Failed`].
    pub async fn fail_over(&self) -> Result<String, ServerError> {
        let mut servers = self.servers.lock().await;
        servers.0.pause().await?;
        servers.1.shell("promote", PROMOTE).await?;
        let (primary, replica) = &mut *servers;
        std::mem::swap(primary, replica);
        Ok(primary.address())
    }

    /// Starts a new replica after a failover, and waits until it is in step. The former primary runs on for a moment and then
    /// ends; its commits wait for a replica that it has no more.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn replace(&self) -> Result<(), ServerError> {
        let mut servers = self.servers.lock().await;
        servers.1.kill().await?;
        servers.1 = Self::replica_of(&servers.0).await?;
        Ok(())
    }

    async fn replica_of(primary: &Server) -> Result<Server, ServerError> {
        let replica = Server::start_replica(primary).await?;
        primary.shell("wait for the replica of", SYNCHRONOUS).await?;
        Ok(replica)
    }
}
