//! From the command line to the service.

use std::time::{Duration, Instant};

use lockcore::{AnyLockDao, Event, LockDao, LockingService, MAX_OWNER_BYTES, Owner};
use lockcore_any::{Config, ConnectError, Waiting};
use nix::unistd::{Uid, User, gethostname};
use uuid::Uuid;

use crate::{
    args::Global,
    exit::{Code, Failure},
    output::say,
};

/// The share of a lease before whose end a command gets TERM. It has three quarters of that to stop; then it gets
/// KILL, early enough to be gone when the lease ends.
pub(crate) const MARGIN: f64 = 0.2;

/// The time for which the end of the process waits for the store to answer to what is still under way.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// Loads the configuration, by the command line first of all.
pub(crate) fn config(
    global: &Global,
    wait: Option<Waiting>,
    lease: Option<Duration>,
) -> Result<Config, Failure> {
    let url = match &global.url {
        Some(url) => Some(url.parse().map_err(ConnectError::from)?),
        None => None,
    };
    let (namespace, owner) = (global.namespace.clone(), global.owner.clone());
    let overrides = Config { url, namespace, owner, wait, lease, ..Config::default() };
    Ok(Config::load(global.config.as_deref(), overrides).map_err(ConnectError::from)?)
}

/// The time that a wait leaves for the locks, however long it took to connect.
const FOR_ONE_ANSWER: Duration = Duration::from_secs(1);

/// Connects to the store that is configured, and waits for it as for locks: what is left of the wait, also returned, is for these.
/// `pid` is whose the locks are, for the default label.
pub(crate) async fn open(
    global: &Global,
    wait: Option<Waiting>,
    lease: Option<Duration>,
    pid: u32,
) -> Result<(LockingService, Waiting), Failure> {
    open_as(global, without_listening(config(global, wait, lease)?), pid).await
}

/// Connects as [`open`] does, to the store of a configuration.
pub(crate) async fn open_as(
    global: &Global,
    mut config: Config,
    pid: u32,
) -> Result<(LockingService, Waiting), Failure> {
    let begun = Instant::now();
    let dao = config.connect().await.map_err(|error| at_store(error, &config))?;
    if let Some(Waiting::UpTo(limit)) = &mut config.wait {
        // Without time for one answer the store could as well be away.
        *limit = limit.saturating_sub(begun.elapsed()).max(FOR_ONE_ANSWER.min(*limit));
    }
    let wait = config.wait.unwrap_or(Waiting::Never);
    Ok((service(global, config, dao, pid)?, wait))
}

/// Without the connections on which a database notifies waiters, if there is nothing to wait for; the URL may say otherwise.
fn without_listening(config: Config) -> Config {
    match config.wait {
        None | Some(Waiting::Never) => {
            let options = ["postgres", "mysql"]
                .into_iter()
                .fold(config.options, |options, backend| options.with(backend, "listen", "false"));
            Config { options, ..config }
        }
        Some(_) => config,
    }
}

/// Connects to the store that is configured as administration does: creates nothing. Also gives what the store is called.
pub(crate) async fn open_existing(global: &Global) -> Result<(LockingService, String), Failure> {
    let config = config(global, None, None)?;
    let store = config.store().map_err(ConnectError::from)?;
    let dao = config.connect_existing().await.map_err(|error| at_store(error, &config))?;
    Ok((service(global, config, dao, std::process::id())?, store))
}

/// Connects as [`open_existing`], but in another namespace than what is configured. Also gives the configuration.
pub(crate) async fn open_existing_in(
    global: &Global,
    namespace: &str,
) -> Result<(LockingService, Config), Failure> {
    let config = Config { namespace: Some(namespace.to_owned()), ..config(global, None, None)? };
    let dao = config.connect_existing().await.map_err(|error| at_store(error, &config))?;
    Ok((service(global, config.clone(), dao, std::process::id())?, config))
}

/// Creates or migrates the schema of the store that is configured, whatever the configuration has programs do on connecting.
pub(crate) async fn migrate(global: &Global) -> Result<(), Failure> {
    let config = config(global, None, None)?;
    let dao = config.connect_and_migrate().await.map_err(|error| at_store(error, &config))?;
    check_shared(&config, &dao)
}

fn service(global: &Global, config: Config, dao: AnyLockDao, pid: u32) -> Result<LockingService, Failure> {
    check_shared(&config, &dao)?;
    let mut owner = config.owner.map_or_else(|| default_owner(pid), Owner::from);
    if let Some(data) = &global.data {
        owner = Owner::with_data(&owner, data);
    }
    let mut builder = LockingService::builder(dao).margin(MARGIN).owner(owner).on_event(report);
    if let Some(lease) = config.lease {
        builder = builder.lease(lease);
    }
    if let Some(wait) = config.wait {
        builder = builder.wait(wait.into());
    }
    builder.build().map_err(|bad| Failure::usage(bad.to_string()))
}

/// A failure of the backend on connecting, with the store that was meant.
fn at_store(error: ConnectError, config: &Config) -> Failure {
    let failure = Failure::from(error);
    match config.store() {
        Ok(store) if failure.code == Code::Backend => {
            Failure::new(failure.code, format!("{} (store: {store})", failure.message))
        }
        _ => failure,
    }
}

fn check_shared(config: &Config, dao: &AnyLockDao) -> Result<(), Failure> {
    if dao.capabilities().shared_store {
        return Ok(());
    }
    let store = config.store().map_err(ConnectError::from)?;
    Err(Failure::usage(format!(
        "url: no other process sees the locks of {store}, choose a store such as sqlite:/var/lib/locks.db"
    )))
}

/// Prints what no outcome shows.
fn report(event: &Event<'_, String, Uuid>) {
    match event {
        Event::RenewalFailed { error: Some(error), .. } => {
            say(&format!("renewal failed, trying on: {error}"))
        }
        Event::RenewalFailed { error: None, .. } => say("renewal failed, trying on: no answer in time"),
        Event::ReleaseFailed { error, .. } => {
            say(&format!(
                "the release failed, trying on; the locks end with their lease at the latest: {error}"
            ));
        }
        Event::WithdrawFailed { error, .. } => {
            say(&format!("the request may still be granted, for one lease at most: {error}"));
        }
        _ => {}
    }
}

fn default_owner(pid: u32) -> Owner {
    let user = std::env::var("USER")
        .ok()
        .filter(|user| !user.is_empty())
        .or_else(|| User::from_uid(Uid::effective()).ok().flatten().map(|user| user.name));
    let user = user.unwrap_or_else(|| Uid::effective().to_string());
    let host = gethostname().map_or_else(|_| "?".to_owned(), |host| host.to_string_lossy().into_owned());
    let (mut who, which) = (format!("{user}@{host}"), format!(":{pid}"));
    who.truncate(who.floor_char_boundary(MAX_OWNER_BYTES - which.len()));
    (who + &which).into()
}
