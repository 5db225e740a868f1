//! Redis servers in other set-ups than one plain node, as processes of the tests' own.

use std::{fs, io, net::TcpListener, path::Path};

use lockcore_conformance::{
    PATIENCE, eventually,
    servers::{Cluster, Kind, Server, ServerError, TestResult, Watched},
};
use redis::{FromRedisValue, RedisError, RedisResult, aio::MultiplexedConnection};

/// A connection that nothing but a test's own commands use.
#[derive(Clone)]
pub(crate) struct Raw(MultiplexedConnection);

impl Raw {
    pub(crate) async fn to(url: &str) -> RedisResult<Self> {
        // The usual limits are short for a loaded machine.
        let patience = Some(PATIENCE);
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(patience)
            .set_response_timeout(patience);
        let client = redis::Client::open(url)?;
        Ok(Raw(client.get_multiplexed_async_connection_with_config(&config).await?))
    }

    /// Sends `words`, which are separated by blanks.
    pub(crate) async fn ask<T: FromRedisValue>(&self, words: &str) -> RedisResult<T> {
        self.send(&words.split(' ').collect::<Vec<_>>()).await
    }

    pub(crate) async fn send<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(word);
        }
        command.query_async(&mut self.0.clone()).await
    }

    /// A number of `INFO`.
    pub(crate) async fn info(&self, section: &str, field: &str) -> RedisResult<u64> {
        let text: String = self.send(&["INFO", section]).await?;
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(value.and_then(|value| value.trim().parse().ok()).unwrap_or_default())
    }
}

/// A server with further arguments.
pub(crate) async fn server(arguments: &str) -> Result<Server, ServerError> {
    let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
    Server::start_with(Kind::Redis, move |_| Ok(arguments)).await
}

/// A server of the oldest release that is supported.
pub(crate) async fn old_server(arguments: &str) -> Result<Server, ServerError> {
    let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
    Server::start_program(Kind::Redis, "redis-server-6.2", move |_| Ok(arguments)).await
}

/// A replica of `master`, once it has all data.
pub(crate) async fn replica_of(
    master: &Server,
    more: &str,
) -> Result<Server, Box<dyn std::error::Error + Send + Sync>> {
    let address = master.address();
    let (host, port) = address.rsplit_once(':').expect("host:port");
    let replica = server(&format!("--replicaof {host} {port} {more}")).await?;
    let raw = Raw::to(&replica.url()).await?;
    eventually("the replica is in step", || async {
        let info: String = raw.ask("INFO replication").await.ok()?;
        info.contains("master_link_status:up").then_some(())
    })
    .await;
    Ok(replica)
}

/// The node of a cluster that has the slot of `key`.
pub(crate) async fn node_of<'a>(cluster: &'a Cluster, key: &str) -> Result<&'a Server, RedisError> {
    for node in cluster.nodes() {
        let raw = Raw::to(&node.url()).await?;
        if raw.send::<Option<String>>(&["GET", key]).await.is_ok() {
            return Ok(node);
        }
    }
    panic!("no node has the slot of {key}");
}

/// Keeps the replica from hearing anything more of the master, to which all others stay connected.
pub(crate) async fn part(watched: &Watched) -> TestResult {
    let master = Raw::to(&watched.master.url()).await?;
    master.ask::<()>("CONFIG SET requirepass nobody-knows").await?;
    master.ask::<i64>("CLIENT KILL TYPE replica").await?;
    let replica = Raw::to(&watched.replica.url()).await?;
    eventually("they are parted", || async {
        let info: String = replica.ask("INFO replication").await.ok()?;
        info.contains("master_link_status:down").then_some(())
    })
    .await;
    Ok(())
}

/// Certificates of an authority that exists for one test.
pub(crate) struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    pub(crate) certificate: String,
}

impl Authority {
    pub(crate) fn new() -> Result<Self, rcgen::Error> {
        let key = rcgen::KeyPair::generate()?;
        let mut params = rcgen::CertificateParams::new(Vec::new())?;
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "an authority for one test");
        let certificate = params.self_signed(&key)?.pem();
        Ok(Authority { issuer: rcgen::Issuer::new(params, key), certificate })
    }

    /// A certificate for `name`, and its key.
    pub(crate) fn issue(&self, name: &str) -> Result<(String, String), rcgen::Error> {
        let key = rcgen::KeyPair::generate()?;
        let params = rcgen::CertificateParams::new(vec![name.to_owned()])?;
        Ok((params.signed_by(&key, &self.issuer)?.pem(), key.serialize_pem()))
    }
}

/// A server that speaks TLS on a second port, and knows the users of `acl`; returns that port too.
pub(crate) async fn tls_server(
    authority: &Authority,
    acl: &str,
    clients: &str,
) -> Result<(Server, u16), Box<dyn std::error::Error + Send + Sync>> {
    let (certificate, key) = authority.issue("127.0.0.1")?;
    let (ca, acl, clients, port) =
        (authority.certificate.clone(), acl.to_owned(), clients.to_owned(), free_port()?);
    let server = Server::start_with(Kind::Redis, move |folder| {
        let file = |name: &str, text: &str| -> io::Result<String> {
            let path = folder.join(name);
            fs::write(&path, text)?;
            Ok(path.display().to_string())
        };
        let port = port.to_string();
        let arguments = [
            ("--tls-port", &port),
            ("--tls-cert-file", &file("server.crt", &certificate)?),
            ("--tls-key-file", &file("server.key", &key)?),
            ("--tls-ca-cert-file", &file("ca.crt", &ca)?),
            ("--tls-auth-clients", &clients),
            ("--aclfile", &file("users.acl", &acl)?),
        ];
        Ok(arguments.into_iter().flat_map(|(name, value)| [name.to_owned(), value.clone()]).collect())
    })
    .await?;
    Ok((server, port))
}

/// A server that speaks TLS with this certificate, whose text has the key, on a second port, also of `::1`; returns that port too.
pub(crate) async fn tls_server_with(
    pem: &str,
    more: &str,
) -> Result<(Server, u16), Box<dyn std::error::Error + Send + Sync>> {
    let (pem, more, port) = (pem.to_owned(), more.to_owned(), free_port()?);
    let server = Server::start_with(Kind::Redis, move |folder| {
        let file = folder.join("tls.pem");
        fs::write(&file, pem)?;
        let file = file.display();
        let arguments = format!(
            "--bind 127.0.0.1 -::1 --tls-port {port} --tls-cert-file {file} --tls-key-file {file} --tls-ca-cert-file {file} \
             --tls-auth-clients no {more}"
        );
        Ok(arguments.split_whitespace().map(str::to_owned).collect())
    })
    .await?;
    Ok((server, port))
}

/// A server that also listens on a Unix socket; returns its path.
pub(crate) async fn socket_server() -> Result<(Server, String), Box<dyn std::error::Error + Send + Sync>> {
    let (tell, told) = std::sync::mpsc::channel();
    let server = Server::start_with(Kind::Redis, move |folder: &Path| {
        let path = folder.join("socket").display().to_string();
        let _ = tell.send(path.clone());
        Ok(vec!["--unixsocket".to_owned(), path])
    })
    .await?;
    Ok((server, told.recv()?))
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
