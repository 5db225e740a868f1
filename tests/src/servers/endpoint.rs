//! Where a server is reached, with a password that does not show.

use std::{fmt, net::SocketAddr};

use url::Url;

use super::Kind;

/// The database that SQL tests start from; each test makes its own schema or tables.
pub(super) const MYSQL_DATABASE: &str = "lockcore";

/// Where a server is reached. Its `Debug` shows host and port only.
#[derive(Clone)]
pub(super) struct Endpoint {
    kind: Kind,
    url: Url,
}

impl Endpoint {
    /// Reads a URL from outside; the error does not repeat it.
    pub(super) fn parse(kind: Kind, url: &str) -> Result<Self, String> {
        let url = Url::parse(url).map_err(|error| format!("not a URL: {error}"))?;
        if url.host().is_none() {
            return Err("not a URL with a host".to_owned());
        }
        Ok(Self { kind, url })
    }

    /// The endpoint of a server that this harness started.
    pub(super) fn own(kind: Kind, host: &str, port: u16, password: &str) -> Self {
        let url = match kind {
            Kind::Redis => format!("redis://{host}:{port}"),
            Kind::Postgres => format!("postgres://postgres:{password}@{host}:{port}/postgres"),
            Kind::DynamoDb => format!("http://{host}:{port}"),
            Kind::Etcd => format!("etcd://{host}:{port}"),
            Kind::MariaDb | Kind::MySql => {
                format!("mysql://root:{password}@{host}:{port}/{MYSQL_DATABASE}")
            }
        };
        Self::parse(kind, &url).expect("hosts and generated passwords need no escaping")
    }

    pub(super) fn url(&self) -> String {
        self.url.to_string()
    }

    pub(super) fn password(&self) -> String {
        self.url.password().unwrap_or_default().to_owned()
    }

    /// The URL with host and port replaced, as for a proxy.
    pub(super) fn url_through(&self, address: SocketAddr) -> String {
        let mut url = self.url.clone();
        url.set_ip_host(address.ip())
            .and_then(|()| url.set_port(Some(address.port())))
            .expect("a URL with a host takes another host and port");
        url.to_string()
    }

    /// `host:port`.
    pub(super) fn address(&self) -> String {
        let host = self.url.host_str().expect("checked when it was parsed");
        let port = self.url.port().unwrap_or(self.kind.default_port());
        format!("{host}:{port}")
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn shows_no_password() {
        let url = "postgres://me:secret@db.example/locks?password=secret";
        let endpoint = Endpoint::parse(Kind::Postgres, url).unwrap();
        assert_eq!(format!("{endpoint:?}"), "db.example:5432");
        assert_eq!(endpoint.url(), url);
        for bad in ["secret", "redis:secret", "redis://me:secret@h:x/0"] {
            let error = Endpoint::parse(Kind::Redis, bad).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn goes_through_a_proxy() {
        for kind in Kind::ALL {
            let endpoint = Endpoint::own(kind, "127.0.0.1", 7, "secret");
            assert_eq!(endpoint.address(), "127.0.0.1:7");
            let there = endpoint.url_through("127.0.0.2:9".parse().unwrap());
            assert_eq!(
                there,
                Endpoint::own(kind, "127.0.0.2", 9, "secret").url(),
                "only host and port change"
            );
        }
    }
}
