//! A namespace on a server: our stores in it, and what others see of it.

use std::{error::Error, sync::Arc, time::Duration};

use lockcore::{BackendError, LockingService};
use lockcore_conformance::{
    Backend, Store,
    servers::{Kind, Server, shared},
};
use lockcore_redis::{RedisBuilder, RedisLockDao, TlsVerify};
use uuid::Uuid;

use super::topology::Raw;

pub(crate) type Dao = RedisLockDao<String, Uuid>;
pub(crate) type Locks = LockingService<String, Uuid, Dao>;
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// A lease that does not end during a test.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// A namespace of a test's own.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) namespace: String,
    response_timeout: Duration,
    trusted: Option<String>,
    verified: TlsVerify,
    shown: Option<(String, String)>,
    _server: Option<Arc<Server>>,
}

impl Place {
    /// On the server that the tests share.
    pub(crate) async fn shared() -> Result<Self, Failure> {
        let server = shared(Kind::Redis).await?;
        Ok(Place { _server: Some(server.clone()), ..Place::at(server.url()) })
    }

    pub(crate) fn at(url: impl Into<String>) -> Self {
        let namespace = format!("test-{}", Uuid::new_v4().simple());
        let response_timeout = Duration::from_secs(5);
        Place {
            url: url.into(),
            namespace,
            response_timeout,
            trusted: None,
            verified: TlsVerify::Full,
            shown: None,
            _server: None,
        }
    }

    /// The same namespace by another way.
    pub(crate) fn through(&self, url: impl Into<String>) -> Self {
        Place { url: url.into(), ..self.clone() }
    }

    /// The same, where what is not answered in this time is given up.
    pub(crate) fn patient_for(mut self, response_timeout: Duration) -> Self {
        self.response_timeout = response_timeout;
        self
    }

    /// The same, trusting what this certificate vouches for.
    pub(crate) fn trusting(mut self, certificate: &str) -> Self {
        self.trusted = Some(certificate.to_owned());
        self
    }

    /// The same, where so much of the server's certificate is verified.
    pub(crate) fn verifying(mut self, verified: TlsVerify) -> Self {
        self.verified = verified;
        self
    }

    /// The same with a certificate to show.
    pub(crate) fn showing(mut self, certificate: &str, key: &str) -> Self {
        self.shown = Some((certificate.to_owned(), key.to_owned()));
        self
    }

    pub(crate) fn builder(&self) -> RedisBuilder<String, Uuid> {
        let mut builder = Dao::builder().url(&*self.url).namespace(&*self.namespace);
        if let Some(certificate) = &self.trusted {
            builder = builder.root_certificate(certificate.clone());
        }
        if let Some((certificate, key)) = &self.shown {
            builder = builder.client_certificate(certificate.clone(), key.clone());
        }
        builder.tls_verify(self.verified).response_timeout(self.response_timeout)
    }

    pub(crate) async fn open(&self) -> Result<Dao, BackendError> {
        self.builder().open().await
    }

    /// Callers for the steps of the DAO.
    pub(crate) async fn store(&self) -> Store<Place> {
        Store::new(Arc::new(self.clone())).await
    }

    /// A service as a program has it, whose locks last.
    pub(crate) async fn locks(&self) -> Result<Locks, Failure> {
        self.locks_on(self.open().await?)
    }

    /// The same over a DAO that was opened in another way.
    pub(crate) fn locks_on(&self, dao: Dao) -> Result<Locks, Failure> {
        Ok(LockingService::builder(dao).lease(LONG).build()?)
    }

    /// The key that other clients know the lock of `id` by.
    pub(crate) fn key(&self, id: &str) -> String {
        format!("{{{}}}:{id}", self.namespace)
    }

    /// One of the namespace's other keys, or a pattern of them.
    pub(crate) fn base(&self, name: &str) -> String {
        format!("{{{}}}{name}", self.namespace)
    }

    /// A connection that has nothing to do with ours.
    pub(crate) async fn raw(&self) -> Result<Raw, Failure> {
        Ok(Raw::to(&self.url).await?)
    }
}

impl Backend for Place {
    type Dao = Dao;
    type Guard = ();

    async fn build(&self) -> ((), Dao) {
        ((), self.open().await.expect("the server answers"))
    }

    async fn reopen(&self, (): &()) -> Option<Dao> {
        Some(self.open().await.expect("the server answers"))
    }
}
