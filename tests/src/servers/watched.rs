//! A Redis master with a replica and a sentinel, as processes of this machine.

use std::{fs, io, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Kind, Server, ServerError, wire};

const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// A master with a replica, and a sentinel that watches them under the name `locks`.
#[derive(Debug)]
pub struct Watched {
    /// The master at first.
    pub master: Server,
    /// The replica at first.
    pub replica: Server,
    /// The sentinel, which promotes the replica when the master has not answered for a second.
    pub sentinel: Server,
}

impl Watched {
    /// Starts the three, and waits until the sentinel can promote the replica.
    ///
    /// # Errors
    /// As [`Server::start_with`].
    pub async fn start() -> Result<Self, ServerError> {
        let master = Server::start_with(Kind::Redis, |_| Ok(Vec::new())).await?;
        let address = master.address().replace(':', " ");
        let of_master = address.clone();
        let replica = Server::start_with(Kind::Redis, move |_| {
            Ok(["--replicaof"].into_iter().chain(of_master.split(' ')).map(str::to_owned).collect())
        })
        .await?;
        let sentinel = Server::start_with(Kind::Redis, move |folder| {
            let file = folder.join("sentinel.conf");
            let text = format!(
                "sentinel monitor locks {address} 1\n\
                 sentinel down-after-milliseconds locks 1000\n\
                 sentinel failover-timeout locks 5000\n"
            );
            fs::write(&file, text)?;
            Ok(vec![file.display().to_string(), "--sentinel".to_owned()])
        })
        .await?;
        let watched = Watched { master, replica, sentinel };
        let failed = |error: io::Error| ServerError::failed(Kind::Redis, "start", error.to_string());
        watched.in_step(&watched.replica).await.map_err(failed)?;
        Ok(watched)
    }

    /// Its URL by the sentinel.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/locks", self.sentinel.address())
    }

    /// Returns the master that the sentinel names.
    ///
    /// # Errors
    /// When the sentinel does not answer, or names neither.
    pub async fn current(&self) -> io::Result<&Server> {
        let named = self.ask("SENTINEL GET-MASTER-ADDR-BY-NAME locks").await?.replace('\n', ":");
        let both = [&self.master, &self.replica].into_iter();
        both.into_iter().find(|server| server.address() == named).ok_or_else(|| io::Error::other(named))
    }

    /// Waits until `server` is the master, by its own account and the sentinel's.
    ///
    /// # Errors
    /// When it is not within a minute.
    pub async fn promoted(&self, server: &Server) -> io::Result<()> {
        until(&format!("{server:?} is the master"), async || {
            let named = self.current().await.is_ok_and(|current| current.address() == server.address());
            let role = wire::redis_command(&server.address(), "ROLE").await;
            named && role.is_ok_and(|role| role.starts_with("master"))
        })
        .await
    }

    /// Waits until `server` is a replica that has all data, and that the sentinel can promote.
    ///
    /// # Errors
    /// When it is not within a minute.
    pub async fn in_step(&self, server: &Server) -> io::Result<()> {
        until(&format!("{server:?} is a replica in step"), async || {
            let info = wire::redis_command(&server.address(), "INFO replication").await;
            // The sentinel promotes only a replica that it has asked how far it is.
            let known = self.ask("SENTINEL REPLICAS locks").await;
            info.is_ok_and(|info| info.contains("role:slave") && info.contains("master_link_status:up"))
                && known.is_ok_and(|known| {
                    known.contains("flags\nslave\n") && known.contains("master-link-status\nok")
                })
        })
        .await
    }

    async fn ask(&self, command: &str) -> io::Result<String> {
        wire::redis_command(&self.sentinel.address(), command).await
    }
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        if Instant::now() > deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("not within {PATIENCE:?}: {what}")));
        }
        sleep(POLL).await;
    }
    Ok(())
}
