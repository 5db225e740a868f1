//! The servers that a URL names, and how to connect to them.

use std::fmt;
#[cfg(any(feature = "sentinel", feature = "cluster"))]
use std::sync::Arc;

use lockcore::BackendError;
use redis::{
    AsyncConnectionConfig, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, aio::AsyncPushSender,
    io::tcp::TcpSettings,
};

#[cfg(any(feature = "sentinel", feature = "cluster"))]
use crate::announced::Unreachable;
use crate::{
    config::{Settings, TlsVerify},
    error::{self, bad_setting},
    link::Link,
};

/// The number of requests that one connection buffers; more wait for room.
const REQUESTS: usize = 1024;

/// One server, or those that know which one to ask.
#[derive(Clone)]
pub(crate) enum Server {
    Single(Box<redis::Client>),
    #[cfg(feature = "sentinel")]
    Sentinel(Arc<Nodes>),
    #[cfg(feature = "cluster")]
    Cluster(Arc<Nodes>),
}

/// Sentinels, or nodes of a cluster.
#[cfg(any(feature = "sentinel", feature = "cluster"))]
pub(crate) struct Nodes {
    nodes: Vec<ConnectionInfo>,
    #[cfg(feature = "tls")]
    tls: Tls,
    #[cfg(feature = "sentinel")]
    master: String,
    #[cfg(feature = "sentinel")]
    sentinel_user: Option<(String, String)>,
}

/// The settings of TLS.
#[cfg(feature = "tls")]
#[derive(Clone)]
pub(crate) struct Tls {
    certificates: Option<redis::TlsCertificates>,
    verify: TlsVerify,
}
/// Takes the place of the settings in a build without TLS.
#[cfg(not(feature = "tls"))]
#[derive(Clone, Copy)]
pub(crate) struct Tls;

/// The parts of a URL.
struct Parts<'u> {
    tls: bool,
    kind: &'u str,
    user: Option<&'u str>,
    hosts: Vec<&'u str>,
    path: Vec<&'u str>,
    /// Nothing of a certificate is verified.
    unverified: bool,
}

impl Server {
    /// Parses the URL of the settings. No error shows it: it may hold a password.
    pub(crate) fn read(settings: &Settings) -> Result<Self, BackendError> {
        let url = settings.url.as_str();
        let Some((scheme, rest)) = url.split_once(':') else { return Err(no_such_url("has no scheme")) };
        let scheme = scheme.to_ascii_lowercase();
        if matches!(scheme.as_str(), "redis+unix" | "unix") {
            let path = rest.strip_prefix("//").unwrap_or(rest);
            return Self::single(info(&format!("redis+unix://{path}"))?, certificates(settings)?);
        }
        let mut parts = Parts::read(&scheme, rest)?;
        parts.unverified = settings.tls_verify == TlsVerify::None;
        if !parts.tls && (settings.certificates.root.is_some() || settings.certificates.client.is_some()) {
            return Err(bad_setting("certificates: only a URL that begins with rediss uses TLS".to_owned()));
        }
        if !parts.tls && settings.tls_verify != TlsVerify::Full {
            return Err(bad_setting("tls_verify: only a URL that begins with rediss uses TLS".to_owned()));
        }
        if parts.kind == "sentinel" && settings.tls_verify == TlsVerify::Ca {
            return Err(bad_setting(
                "tls_verify: ca is not possible with sentinels, only full and none".to_owned(),
            ));
        }
        let tls = certificates(settings)?;
        match parts.kind {
            "" => match (parts.hosts.as_slice(), parts.path.as_slice()) {
                ([_], [] | [_]) => Self::single(info(&parts.node(0))?, tls),
                _ => Err(no_such_url(
                    "has several hosts or too long a path, for redis+sentinel or redis+cluster",
                )),
            },
            "sentinel" => Self::sentinel(&parts, settings, tls),
            "cluster" => Self::cluster(&parts, settings, tls),
            _ => Err(no_such_url(
                "has a scheme that is none of redis, redis+unix, redis+sentinel, redis+cluster",
            )),
        }
    }

    fn single(info: ConnectionInfo, tls: Tls) -> Result<Self, BackendError> {
        client(info, tls).map(|client| Server::Single(Box::new(client))).map_err(|error| unusable(&error))
    }

    #[cfg(feature = "sentinel")]
    fn sentinel(parts: &Parts<'_>, settings: &Settings, tls: Tls) -> Result<Self, BackendError> {
        let Some(master) = parts.path.first().filter(|master| !master.is_empty()) else {
            return Err(no_such_url("names no master: redis+sentinel://HOST,HOST/MASTER"));
        };
        let (master, sentinel_user) = ((*master).to_owned(), settings.sentinel_user.clone());
        #[cfg(not(feature = "tls"))]
        let Tls = tls;
        Ok(Server::Sentinel(Arc::new(Nodes {
            nodes: parts.nodes()?,
            #[cfg(feature = "tls")]
            tls,
            master,
            sentinel_user,
        })))
    }

    #[cfg(not(feature = "sentinel"))]
    fn sentinel(_: &Parts<'_>, _: &Settings, _: Tls) -> Result<Self, BackendError> {
        Err(no_such_url("needs the cargo feature `sentinel` of lockcore-redis"))
    }

    #[cfg(feature = "cluster")]
    fn cluster(parts: &Parts<'_>, _: &Settings, tls: Tls) -> Result<Self, BackendError> {
        #[cfg(not(feature = "tls"))]
        let Tls = tls;
        Ok(Server::Cluster(Arc::new(Nodes {
            nodes: parts.nodes()?,
            #[cfg(feature = "tls")]
            tls,
            #[cfg(feature = "sentinel")]
            master: String::new(),
            #[cfg(feature = "sentinel")]
            sentinel_user: None,
        })))
    }

    #[cfg(not(feature = "cluster"))]
    fn cluster(_: &Parts<'_>, _: &Settings, _: Tls) -> Result<Self, BackendError> {
        Err(no_such_url("needs the cargo feature `cluster` of lockcore-redis"))
    }

    /// Returns whether messages go through sharded channels.
    pub(crate) fn is_cluster(&self) -> bool {
        match self {
            #[cfg(feature = "cluster")]
            Server::Cluster(_) => true,
            _ => false,
        }
    }

    /// Connects on the current runtime; push messages go to `pushed`.
    pub(crate) async fn connect(
        &self,
        settings: &Settings,
        pushed: impl AsyncPushSender,
    ) -> Result<Link, BackendError> {
        #[cfg(any(feature = "sentinel", feature = "cluster"))]
        let unconnected = |error| error::failure(error, false);
        let config = || {
            AsyncConnectionConfig::new()
                .set_connection_timeout(Some(settings.connect_timeout))
                .set_response_timeout(Some(settings.response_timeout))
                .set_pipeline_buffer_size(REQUESTS)
        };
        match self {
            Server::Single(client) => {
                let config = config().set_push_sender(pushed);
                let link = client.get_multiplexed_async_connection_with_config(&config).await;
                let address = || client.get_connection_info().addr().to_string();
                link.map(Link::Single).map_err(|error| error::unconnected(error, &address()))
            }
            #[cfg(feature = "sentinel")]
            Server::Sentinel(nodes) => {
                let config = config().set_push_sender(pushed);
                let resolve = async { nodes.sentinel()?.async_get_client().await };
                // The driver asks one sentinel after the other, with a timeout for each.
                let patience =
                    settings.connect_timeout * u32::try_from(nodes.nodes.len()).unwrap_or(1).max(1);
                let client = tokio::time::timeout(patience, resolve).await;
                let client = client.unwrap_or_else(|_elapsed| Err(no_sentinel())).map_err(unconnected)?;
                let link = client.get_multiplexed_async_connection_with_config(&config).await;
                link.map(Link::Single).map_err(unconnected)
            }
            #[cfg(feature = "cluster")]
            Server::Cluster(nodes) => {
                let client = nodes.cluster(settings, pushed).map_err(unconnected)?;
                let connect = client.get_async_connection();
                let patience = settings.connect_timeout + std::time::Duration::from_secs(1);
                let link = tokio::time::timeout(patience, connect).await;
                link.unwrap_or_else(|_elapsed| Err(no_answer())).map(Link::Cluster).map_err(unconnected)
            }
        }
    }

    /// Returns an error of opening a connection with the node that cannot be reached, if there is one: the driver names none.
    pub(crate) async fn explain(&self, error: BackendError) -> BackendError {
        #[cfg(any(feature = "sentinel", feature = "cluster"))]
        if error.is_retryable()
            && let Some(nodes) = self.nodes()
            && let Some(unreachable) = nodes.unreachable().await
        {
            return unreachable.explain(error);
        }
        error
    }

    #[cfg(any(feature = "sentinel", feature = "cluster"))]
    fn nodes(&self) -> Option<&Nodes> {
        match self {
            Server::Single(_) => None,
            #[cfg(feature = "sentinel")]
            Server::Sentinel(nodes) => Some(nodes),
            #[cfg(feature = "cluster")]
            Server::Cluster(nodes) => Some(nodes),
        }
    }
}

#[cfg(any(feature = "sentinel", feature = "cluster"))]
impl Nodes {
    /// Looks for a node that the others announce and that cannot be reached.
    async fn unreachable(&self) -> Option<Unreachable> {
        #[cfg(feature = "tls")]
        let tls = self.tls.clone();
        #[cfg(not(feature = "tls"))]
        let tls = Tls;
        let mut question = redis::cmd("CLUSTER");
        question.arg("SLOTS");
        let nodes = self.nodes.iter().cloned();
        #[cfg(feature = "sentinel")]
        let nodes = nodes.map(|node| match self.master.is_empty() {
            true => node,
            // User and password of the URL are for the master.
            false => node.set_redis_settings(login(self.sentinel_user.clone().unwrap_or_default())),
        });
        #[cfg(feature = "sentinel")]
        if !self.master.is_empty() {
            question = redis::cmd("SENTINEL");
            question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
        }
        let servers = nodes.filter_map(|node| client(node, tls.clone()).ok());
        Unreachable::find(servers, &question).await
    }

    #[cfg(feature = "sentinel")]
    fn sentinel(&self) -> redis::RedisResult<redis::sentinel::SentinelClient> {
        use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
        let first = self.nodes.first().expect("a URL has at least one host");
        let nodes = self.nodes.iter().map(|node| node.addr().clone());
        let mut builder = SentinelClientBuilder::new(nodes, &self.master, SentinelServerType::Master)?
            .set_client_to_redis_protocol(ProtocolVersion::RESP3)
            .set_client_to_redis_tcp_settings(tcp())
            .set_client_to_redis_db(first.redis_settings().db());
        if let Some(user) = first.redis_settings().username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = first.redis_settings().password() {
            builder = builder.set_client_to_redis_password(password);
        }
        if let Some((user, password)) = &self.sentinel_user {
            if !user.is_empty() {
                builder = builder.set_client_to_sentinel_username(user);
            }
            builder = builder.set_client_to_sentinel_password(password);
        }
        #[cfg(feature = "tls")]
        if let redis::ConnectionAddr::TcpTls { .. } = first.addr() {
            let mode = match self.tls.verify {
                TlsVerify::None => redis::TlsMode::Insecure,
                _ => redis::TlsMode::Secure,
            };
            builder = builder.set_client_to_redis_tls_mode(mode).set_client_to_sentinel_tls_mode(mode);
            if let Some(certificates) = &self.tls.certificates {
                builder = builder
                    .set_client_to_redis_certificates(certificates.clone())
                    .set_client_to_sentinel_certificates(certificates.clone());
            }
        }
        builder.build()
    }

    #[cfg(feature = "cluster")]
    fn cluster(
        &self,
        settings: &Settings,
        pushed: impl AsyncPushSender,
    ) -> redis::RedisResult<redis::cluster::ClusterClient> {
        let builder = redis::cluster::ClusterClientBuilder::new(self.nodes.iter().cloned())
            .use_protocol(ProtocolVersion::RESP3)
            .tcp_settings(tcp())
            .push_sender(pushed)
            .connection_timeout(settings.connect_timeout)
            .response_timeout(settings.response_timeout)
            .overall_response_timeout(Some(settings.response_timeout));
        #[cfg(feature = "tls")]
        let builder = {
            let builder = builder.danger_accept_invalid_hostnames(self.tls.verify == TlsVerify::Ca);
            let builder = match &self.tls.certificates {
                Some(certificates) => builder.certs(certificates.clone()),
                None => builder,
            };
            // With certificates it would be verified after all.
            if self.tls.verify == TlsVerify::None { builder.tls(redis::TlsMode::Insecure) } else { builder }
        };
        builder.build()
    }
}

impl<'u> Parts<'u> {
    fn read(scheme: &'u str, rest: &'u str) -> Result<Self, BackendError> {
        let (scheme, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        let tls = match scheme {
            "redis" => false,
            "rediss" => true,
            _ => return Err(no_such_url("does not begin with redis or rediss")),
        };
        if tls && cfg!(not(feature = "tls")) {
            return Err(no_such_url("needs the cargo feature `tls` of lockcore-redis"));
        }
        let Some(rest) = rest.strip_prefix("//") else {
            return Err(no_such_url("has no // behind its scheme"));
        };
        if rest.ends_with("#insecure") {
            return Err(no_such_url("has #insecure: the option is tls_verify=none"));
        }
        if rest.contains(['?', '#']) {
            return Err(no_such_url("has options, which belong into the builder"));
        }
        let (user, rest) = match rest.rsplit_once('@') {
            Some((user, rest)) => (Some(user), rest),
            None => (None, rest),
        };
        let mut segments = rest.split('/');
        let hosts: Vec<_> = segments.next().unwrap_or_default().split(',').collect();
        let path = segments.filter(|segment| !segment.is_empty()).collect();
        Ok(Parts { tls, kind, user, hosts, path, unverified: false })
    }

    /// One of the hosts as a URL of its own, with the database.
    fn node(&self, position: usize) -> String {
        let scheme = if self.tls { "rediss" } else { "redis" };
        let user = self.user.map(|user| format!("{user}@")).unwrap_or_default();
        let host = match self.hosts[position] {
            "" => "127.0.0.1",
            host => host,
        };
        let skipped = usize::from(self.kind == "sentinel");
        let unverified = if self.unverified { "#insecure" } else { "" };
        format!("{scheme}://{user}{host}/{}{unverified}", self.path.get(skipped).unwrap_or(&""))
    }

    #[cfg(any(feature = "sentinel", feature = "cluster"))]
    fn nodes(&self) -> Result<Vec<ConnectionInfo>, BackendError> {
        (0..self.hosts.len()).map(|position| info(&self.node(position))).collect()
    }
}

#[cfg(feature = "sentinel")]
fn login((user, password): (String, String)) -> redis::RedisConnectionInfo {
    let login = redis::RedisConnectionInfo::default();
    let login = if user.is_empty() { login } else { login.set_username(user) };
    if password.is_empty() { login } else { login.set_password(password) }
}

fn client(info: ConnectionInfo, tls: Tls) -> redis::RedisResult<redis::Client> {
    #[cfg(feature = "tls")]
    return match (info.addr(), tls.certificates) {
        (redis::ConnectionAddr::TcpTls { .. }, certificates) => {
            let client = match certificates {
                Some(certificates) => redis::Client::build_with_tls(info, certificates)?,
                None => redis::Client::open(info)?,
            };
            let info = client.get_connection_info().clone();
            let mut address = info.addr().clone();
            address.set_danger_accept_invalid_hostnames(tls.verify == TlsVerify::Ca);
            redis::Client::open(info.set_addr(address))
        }
        _ => redis::Client::open(info),
    };
    #[cfg(not(feature = "tls"))]
    {
        let Tls = tls;
        redis::Client::open(info)
    }
}

fn info(url: &str) -> Result<ConnectionInfo, BackendError> {
    let info = url.into_connection_info().map_err(|error| unusable(&error))?;
    let settings = info.redis_settings().clone();
    let settings =
        settings.set_protocol(ProtocolVersion::RESP3).set_lib_name("lockcore", env!("CARGO_PKG_VERSION"));
    Ok(info.set_redis_settings(settings).set_tcp_settings(tcp()))
}

/// Sends small requests at once: by Nagle's algorithm the second would wait until the first is acknowledged.
fn tcp() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

#[cfg(feature = "tls")]
fn certificates(settings: &Settings) -> Result<Tls, BackendError> {
    let crate::config::Certificates { root, client } = settings.certificates.clone();
    let verify = settings.tls_verify;
    if root.is_none() && client.is_none() {
        return Ok(Tls { certificates: None, verify });
    }
    let client_tls =
        client.map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key });
    Ok(Tls { certificates: Some(redis::TlsCertificates { client_tls, root_cert: root }), verify })
}

#[cfg(not(feature = "tls"))]
fn certificates(settings: &Settings) -> Result<Tls, BackendError> {
    match (&settings.certificates.root, &settings.certificates.client) {
        (None, None) => Ok(Tls),
        _ => Err(bad_setting("certificates: need the cargo feature `tls` of lockcore-redis".to_owned())),
    }
}

fn no_such_url(why: &str) -> BackendError {
    bad_setting(format!("url: {why}"))
}

/// Reports the driver's own message, which does not show the URL.
fn unusable(error: &redis::RedisError) -> BackendError {
    bad_setting(format!("url: {error}"))
}

#[cfg(feature = "sentinel")]
fn no_sentinel() -> redis::RedisError {
    std::io::Error::new(std::io::ErrorKind::TimedOut, "no sentinel answered in time").into()
}

#[cfg(feature = "cluster")]
fn no_answer() -> redis::RedisError {
    std::io::Error::new(std::io::ErrorKind::TimedOut, "no node of the cluster answered in time").into()
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = match self {
            Server::Single(client) => vec![client.get_connection_info().addr().to_string()],
            #[cfg(feature = "sentinel")]
            Server::Sentinel(nodes) => nodes.nodes.iter().map(|node| node.addr().to_string()).collect(),
            #[cfg(feature = "cluster")]
            Server::Cluster(nodes) => nodes.nodes.iter().map(|node| node.addr().to_string()).collect(),
        };
        f.write_str(&addresses.join(","))
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
