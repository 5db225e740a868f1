//! The configuration: its fields, its layers, and how a backend and a service are made from it.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use lockcore::{AnyLockDao, Builder, ContextId, FreshContext, Ident, LockDao, LockingService, blocking};
use uuid::Uuid;

use crate::{
    BackendOptions, BackendUrl, ConfigError, ConnectError, Waiting,
    backends::{self, Settings},
    enclosing,
    option::OptionValue,
    schemes::backend_of,
    source,
    text::trimmed,
    url::NAMESPACE,
};

/// Connects to the backend that `url` names; identifiers are strings, contexts UUIDs. Tries once: [`Config::connect`] waits for
/// the store, if [`wait`](Config::wait) says so.
///
/// # Errors
/// [`ConnectError`].
pub async fn connect(url: &str) -> Result<AnyLockDao, ConnectError> {
    connect_as(url).await
}

/// Connects to the backend that `url` names, for other identifiers and contexts.
///
/// # Errors
/// [`ConnectError`].
pub async fn connect_as<I: Ident, C: ContextId>(url: &str) -> Result<AnyLockDao<I, C>, ConnectError> {
    Config { url: Some(url.parse()?), ..Config::default() }.connect_as().await
}

/// The backend, and the service's defaults. A field that is `None` is left to the backend or the service.
#[derive(Clone, Default, Debug)]
pub struct Config {
    /// The backend.
    pub url: Option<BackendUrl>,
    /// Keeps applications and tenants in one store apart. The URL may give it instead, as `?namespace=..`.
    pub namespace: Option<String>,
    /// The default owner label.
    pub owner: Option<String>,
    /// The default lease.
    pub lease: Option<Duration>,
    /// The default wait, which is also for how long a store is waited for that cannot be opened at present: its server starts,
    /// fails over, takes no more connections. Nothing is waited for that does not pass, such as a wrong password.
    pub wait: Option<Waiting>,
    /// The backends' own options.
    pub options: BackendOptions,
}

impl Config {
    /// Reads everything, each over what came before: the file, the environment, `overrides`. What counts only where neither file nor
    /// environment say anything goes below instead, by [`overridden_by`](Self::overridden_by):
    ///
    /// ```
    /// # async fn example() -> Result<(), lockcore_any::ConnectError> {
    /// use lockcore_any::Config;
    ///
    /// // SQLite, unless something else is configured
    /// let defaults = Config { url: Some("sqlite:locks.db".parse()?), ..Config::default() };
    /// let locks = defaults.overridden_by(Config::load(None, Config::default())?)?.service().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The file is the one that `LOCKCORE_CONFIG` names, else `lockcore.toml` in the current directory if
    /// there is one; the latter is refused unless it belongs to root or the caller, and no other user may write it.
    /// Relative paths in a file are relative to the folder that it is in. The environment is
    /// `LOCKCORE_URL`, `LOCKCORE_NAMESPACE`, `LOCKCORE_OWNER`, `LOCKCORE_LEASE` and `LOCKCORE_WAIT`; an
    /// empty variable counts as absent, and an unknown one that begins with `LOCKCORE_` is refused.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(file: Option<&Path>, overrides: Config) -> Result<Config, ConfigError> {
        let variable = |name: &str| std::env::var_os(name);
        source::check_names(std::env::vars_os())?;
        source::find(file, variable)?.overridden_by(source::environment(variable)?)?.overridden_by(overrides)
    }

    /// Reads one file.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn from_file(file: &Path) -> Result<Config, ConfigError> {
        source::file(file)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn from_toml(text: &str) -> Result<Config, ConfigError> {
        source::toml(text, "lockcore.toml")
    }

    /// Returns these settings with those of `over` on top.
    ///
    /// # Errors
    /// [`ConfigError::Value`] if one of the two gives two different namespaces.
    pub fn overridden_by(self, over: Config) -> Result<Config, ConfigError> {
        let (below, over) = (self.settled()?, over.settled()?);
        Ok(Config {
            url: over.url.or(below.url),
            namespace: over.namespace.or(below.namespace),
            owner: over.owner.or(below.owner),
            lease: over.lease.or(below.lease),
            wait: over.wait.or(below.wait),
            options: below.options.overridden_by(over.options),
        })
    }

    /// Connects to the backend; identifiers are strings, contexts UUIDs.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(&self) -> Result<AnyLockDao, ConnectError> {
        self.connect_as().await
    }

    /// Connects and migrates: creates what is missing, even where the options say that programs do not (`migrate=false`, SQLite's
    /// `mode=rw`).
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect_and_migrate(&self) -> Result<AnyLockDao, ConnectError> {
        let mut settings = self.settings()?;
        backends::set_creation(&mut settings, true)?;
        let dao = backends::open(settings).await?;
        dao.migrate().await?;
        Ok(dao)
    }

    /// Connects to the backend as administration does: to a store that is there and has its schema. Creates nothing,
    /// whatever the options say.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect_existing(&self) -> Result<AnyLockDao, ConnectError> {
        let mut settings = self.settings()?;
        backends::set_creation(&mut settings, false)?;
        backends::open(settings).await
    }

    /// Returns the store and the namespace in it as messages show them: without secrets, and with an absolute path.
    ///
    /// # Errors
    /// [`ConfigError`] if there is no URL, or two different namespaces.
    pub fn store(&self) -> Result<String, ConfigError> {
        let config = self.clone().settled()?;
        let url = config.url.ok_or(ConfigError::NoUrl)?;
        // Without a current directory a relative path is all there is.
        let url = std::env::current_dir().ok().and_then(|folder| url.under(&folder).ok()).unwrap_or(url);
        Ok(match config.namespace {
            Some(namespace) => format!("{url}, namespace {namespace:?}"),
            None => url.to_string(),
        })
    }

    /// Connects to the backend, for other identifiers and contexts.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect_as<I: Ident, C: ContextId>(&self) -> Result<AnyLockDao<I, C>, ConnectError> {
        let settings = self.settings()?;
        let may_pass =
            |error: &ConnectError| matches!(error, ConnectError::Backend(error) if error.is_retryable());
        // In a box: the futures of the backends are large.
        let open = || Box::pin(backends::open(settings.clone()));
        self.wait.unwrap_or(Waiting::Never).retry(Instant::now(), may_pass, open).await
    }

    /// Returns what creates the backend's schema, for other tools to read: of `postgres:`, `mysql:` and `mariadb:` in the
    /// language `sql`, of `dynamodb:` in the languages `cloudformation`, `terraform` and, for the permissions that programs
    /// need, `iam`. Reaches nothing.
    ///
    /// # Errors
    /// [`ConnectError`]; [`ConfigError::Value`] for a language that the backend's schema cannot be had in.
    pub fn schema(&self, language: &str) -> Result<String, ConnectError> {
        backends::schema(&self.settings()?, language)
    }

    fn settings(&self) -> Result<Settings, ConnectError> {
        let config = self.clone().settled()?;
        let url = config.url.ok_or(ConfigError::NoUrl)?;
        config.options.check_backends()?;
        let mut options = config.options.of(backend_of(url.scheme())).overridden_by(url.options());
        if let Some(namespace) = config.namespace {
            let value = OptionValue::new(NAMESPACE, NAMESPACE.to_owned(), namespace);
            options.insert(NAMESPACE.to_owned(), value);
        }
        Ok(Settings { url, options })
    }

    /// Connects and builds a service with these defaults. In a program that `lockctl run` started it knows of the locks of that command,
    /// see [`Builder::enclosed_by`].
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn service(&self) -> Result<LockingService, ConnectError> {
        self.service_as::<String, Uuid>().await
    }

    /// Connects and builds a service with these defaults, for other identifiers and contexts.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn service_as<I: Ident, C: FreshContext>(&self) -> Result<LockingService<I, C>, ConnectError> {
        Ok(self.defaults(LockingService::builder(self.connect_as().await?)).build()?)
    }

    /// Connects and builds a service with these defaults, for programs without an async runtime.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn blocking_service(&self) -> Result<blocking::LockingService, ConnectError> {
        blocking::LockingService::build(self.service())
    }

    /// Connects and returns a builder with these defaults, for what configuration does not set: hooks, `max_hold`, `margin`. What is
    /// set on the builder counts over the configuration: `wait` on it beats `LOCKCORE_WAIT`.
    ///
    /// ```
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = lockcore_any::Config::from_toml("url = 'sqlite::memory:'\nlease = '1m'")?;
    /// let locks = config.builder().await?.on_event(|event| println!("{event:?}")).build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn builder(&self) -> Result<Builder, ConnectError> {
        Ok(self.defaults(LockingService::builder(self.connect().await?)))
    }

    /// Connects and returns a builder with these defaults whose contexts `make` creates, each unlike any other in any process; see
    /// [`Builder::contexts`](lockcore::Builder::contexts).
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn builder_with_contexts<I: Ident, C: ContextId>(
        &self,
        make: impl Fn() -> C + Send + Sync + 'static,
    ) -> Result<Builder<I, C>, ConnectError> {
        Ok(self.defaults(LockingService::builder_with_contexts(self.connect_as().await?, make)))
    }

    fn defaults<I: Ident, C: ContextId>(&self, builder: Builder<I, C>) -> Builder<I, C> {
        let mut builder = builder.enclosed_by(enclosing::contexts());
        if let Some(owner) = &self.owner {
            builder = builder.owner(owner.as_str());
        }
        if let Some(lease) = self.lease {
            builder = builder.lease(lease);
        }
        if let Some(wait) = self.wait {
            builder = builder.wait(wait.into());
        }
        builder
    }

    /// Returns the settings with relative paths as paths under `folder`.
    pub(crate) fn under(self, folder: &Path) -> Result<Config, ConfigError> {
        let url = self.url.map(|url| url.under(folder)).transpose()?;
        Ok(Config { url, options: self.options.under(folder), ..self })
    }

    /// Returns the settings with the namespace of the URL where it belongs: a URL brings its own, so that it also
    /// overrides that of the layers below.
    fn settled(mut self) -> Result<Config, ConfigError> {
        let in_url = self.url.as_mut().and_then(BackendUrl::take_namespace);
        let named = |field: &str, name: &str| match trimmed(name) {
            Ok(name) => Ok(name.to_owned()),
            Err(expected) => {
                let (field, expected) = (field.to_owned(), expected.to_owned());
                Err(ConfigError::Value { field, value: format!("{name:?}"), expected })
            }
        };
        self.namespace = self.namespace.map(|name| named(NAMESPACE, &name)).transpose()?;
        let Some(in_url) = in_url else { return Ok(self) };
        let in_url = named(&in_url.field, in_url.expose())?;
        match &self.namespace {
            Some(beside) if *beside != in_url => Err(ConfigError::Value {
                field: NAMESPACE.to_owned(),
                value: format!("{beside:?}"),
                expected: format!("the URL beside it says {in_url:?}"),
            }),
            _ => {
                self.namespace = Some(in_url);
                Ok(self)
            }
        }
    }
}
