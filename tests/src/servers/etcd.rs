//! A cluster of etcd, as processes of this machine.

use std::{io, net::TcpListener};

use futures_util::future::try_join_all;

use super::{Kind, Server, ServerError};

const NAMES: [&str; 3] = ["one", "two", "three"];

/// Three members of one cluster.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Server>,
}

impl EtcdCluster {
    /// Starts the members, each with these further arguments.
    ///
    /// # Errors
    /// As [`Server::start_with`].
    pub async fn start(arguments: &[&str]) -> Result<Self, ServerError> {
        let failed = |error: io::Error| ServerError::failed(Kind::Etcd, "start", error);
        // All at once, so that no two are the same.
        let free: Vec<_> = NAMES
            .iter()
            .map(|_| TcpListener::bind("127.0.0.1:0"))
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        let peers: Vec<_> = free
            .iter()
            .map(|free| free.local_addr().map(|address| format!("http://{address}")))
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        drop(free);
        let all: Vec<String> =
            NAMES.iter().zip(&peers).map(|(name, peer)| format!("{name}={peer}")).collect();
        let members = NAMES.iter().zip(&peers).map(|(name, peer)| {
            let mut own = vec![
                format!("--name={name}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster={}", all.join(",")),
            ];
            own.extend(arguments.iter().map(|&argument| argument.to_owned()));
            Server::start_with(Kind::Etcd, move |_| Ok(own))
        });
        // None answers before most of them run.
        Ok(EtcdCluster { members: try_join_all(members).await? })
    }

    /// The members.
    #[must_use]
    pub fn members(&self) -> &[Server] {
        &self.members
    }
}
