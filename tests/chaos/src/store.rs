//! The store of a run: a file, or the servers that are started for it.

use std::path::Path;

use lockcore::{LockDao, LockingService, Uuid};
use lockcore_any::Config;
use lockcore_conformance::servers::{
    self, Cluster, Duplicator, EtcdCluster, Mounts, Proxy, Replicated, Server, Watched, Way,
};

use crate::{backend::Backend, driver::Run, faults::Kind};

/// The namespace of all locks.
pub(crate) const NAMESPACE: &str = "chaos";

/// The size of a disk that is to be filled.
const DISK: u64 = 512 << 20;

/// The store of a run.
pub(crate) struct Store {
    /// What all connect to, the driver too: a server that is started again may have another port, which the proxy knows.
    pub(crate) url: String,
    pub(crate) home: Home,
}

/// What runs the store.
pub(crate) enum Home {
    File,
    /// What speaks HTTP has a proxy that sends writes twice behind the one that all connect to.
    Server(Box<Server>, Proxy, Option<Duplicator>),
    Replicated(Box<Replicated>, Proxy),
    Watched(Box<Watched>),
    Cluster(Cluster),
    /// Each member has a proxy before it.
    Members(EtcdCluster, Vec<Proxy>),
    /// A folder that is mounted twice: the workers take turns with the mounts.
    Mounted(Mounts),
}

impl Store {
    /// Starts the store of a run.
    pub(crate) async fn start(run: &Run) -> anyhow::Result<Store> {
        let kind = match run.backend {
            Backend::Server(kind) | Backend::Statements(kind) => kind,
            Backend::Replicated => {
                let replicated = Replicated::start().await?;
                let proxy = Proxy::start(replicated.address().await).await?;
                let url = replicated.url_through(proxy.address()).await;
                return Ok(Store { url, home: Home::Replicated(Box::new(replicated), proxy) });
            }
            Backend::Sentinel => {
                let watched = Watched::start().await?;
                return Ok(Store { url: watched.url(), home: Home::Watched(Box::new(watched)) });
            }
            Backend::Cluster => {
                let cluster = Cluster::start().await?;
                let url = format!("redis+cluster://{}", cluster.addresses());
                return Ok(Store { url, home: Home::Cluster(cluster) });
            }
            Backend::Members => {
                let (cluster, mut proxies, mut addresses) =
                    (EtcdCluster::start(&[]).await?, Vec::new(), Vec::new());
                for member in cluster.members() {
                    let proxy = Proxy::start(member.address()).await?;
                    addresses.push(proxy.address().to_string());
                    proxies.push(proxy);
                }
                let url = format!("etcd://{}", addresses.join(","));
                return Ok(Store { url, home: Home::Members(cluster, proxies) });
            }
            Backend::Bucket => {
                let server = Server::start_by(servers::Kind::DynamoDb, Way::Process).await?;
                servers::Bucket::make(&server, NAMESPACE).await?;
                return Store::over_http(server, &format!("s3://{NAMESPACE}/locks?region=us-east-1&")).await;
            }
            Backend::Share if Mounts::can_be_had().is_ok() => {
                let mounts = Mounts::start()?;
                return Ok(Store { url: share(&mounts.locks(0)), home: Home::Mounted(mounts) });
            }
            Backend::Share => {
                let folder = run.folder.join("share");
                std::fs::create_dir_all(&folder)?;
                return Ok(Store { url: share(&folder), home: Home::File });
            }
            Backend::Memory | Backend::Sqlite => {
                let url = format!("sqlite:{}", run.folder.join("locks.db").display());
                return Ok(Store { url, home: Home::File });
            }
        };
        let server = match kind {
            // It forgets no grant that it answered.
            servers::Kind::Redis => {
                let written = ["--appendonly", "yes", "--appendfsync", "always", "--maxclients", "100"];
                Server::start_with(kind, move |_| Ok(written.map(str::to_owned).to_vec())).await?
            }
            _ if run.faults.contains(&Kind::FillDisk) => Server::start_small(kind, DISK).await?,
            // Files in memory do not outlive the server.
            _ if !run.faults.contains(&Kind::Restart) => Server::start_for_many(kind).await?,
            _ => Server::start(kind).await?,
        };
        if kind == servers::Kind::DynamoDb {
            return Store::over_http(server, "dynamodb://eu-central-1/chaos?").await;
        }
        let proxy = Proxy::start(server.address()).await?;
        let mut url = server.url_through(proxy.address());
        if matches!(run.backend, Backend::Statements(_)) {
            url.push_str(if url.contains('?') { "&routines=no" } else { "?routines=no" });
        }
        Ok(Store { url, home: Home::Server(Box::new(server), proxy, None) })
    }

    /// Returns the URL for a worker.
    pub(crate) fn url_of(&self, worker: u64) -> String {
        match &self.home {
            Home::Mounted(mounts) => share(&mounts.locks(usize::try_from(worker).unwrap_or(0))),
            _ => self.url.clone(),
        }
    }

    /// A store whose URL begins so, and goes on with parameters.
    async fn over_http(server: Server, url: &str) -> anyhow::Result<Store> {
        let duplicator = Duplicator::start(server.address()).await?;
        let proxy = Proxy::start(duplicator.address().to_string()).await?;
        let endpoint = server.url_through(proxy.address());
        let url = format!(
            "{url}access_key_id=test&secret_access_key=test&endpoint={}",
            endpoint.trim_end_matches('/')
        );
        Ok(Store { url, home: Home::Server(Box::new(server), proxy, Some(duplicator)) })
    }
}

fn share(folder: &Path) -> String {
    format!("share:{}", folder.display())
}

/// Connects to a store.
///
/// # Errors
/// When that fails.
pub async fn connect(url: &str) -> anyhow::Result<LockingService> {
    let config =
        Config { url: Some(url.parse()?), namespace: Some(NAMESPACE.to_owned()), ..Config::default() };
    // Elsewhere the first to connect creates the schema.
    let locks = config.service().await?;
    if url.starts_with("dynamodb:") {
        LockDao::<String, Uuid>::migrate(locks.dao()).await?;
    }
    Ok(locks)
}
