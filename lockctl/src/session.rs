//! From the command line to the service.

use std::time::Duration;

use lockcore::{AnyLockDao, Capabilities, Event, LockDao, LockingService, MAX_OWNER_BYTES, Owner};
use lockcore_any::{Config, Waiting};
use nix::unistd::{Uid, User, gethostname};
use uuid::Uuid;

use crate::{args::Global, exit::Failure, output::say};

/// The share of a lease before whose end a command gets TERM. It has three quarters of that to stop; then it gets
/// KILL, early enough to be gone when the lease ends.
pub(crate) const MARGIN: f64 = 0.2;

/// How long the end of the process waits for the store to answer to what is still under way.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// What is configured, by the command line first of all.
pub(crate) fn config(
    global: &Global,
    wait: Option<Waiting>,
    lease: Option<Duration>,
) -> Result<Config, Failure> {
    let url = match &global.url {
        Some(url) => Some(url.parse().map_err(lockcore_any::ConnectError::from)?),
        None => None,
    };
    let (namespace, owner) = (global.namespace.clone(), global.owner.clone());
    let overrides = Config { url, namespace, owner, wait, lease, ..Config::default() };
    Ok(Config::load(global.config.as_deref(), overrides).map_err(lockcore_any::ConnectError::from)?)
}

/// Connects to the store that is configured. `pid` is whose the locks are, for the default label.
pub(crate) async fn open(
    global: &Global,
    wait: Option<Waiting>,
    lease: Option<Duration>,
    pid: u32,
) -> Result<LockingService, Failure> {
    let config = config(global, wait, lease)?;
    let dao = config.connect().await?;
    check_shared(&dao)?;
    let owner = config.owner.map_or_else(|| default_owner(pid), Owner::from);
    let mut builder = LockingService::builder(dao).margin(MARGIN).owner(owner).on_event(report);
    if let Some(lease) = config.lease {
        builder = builder.lease(lease);
    }
    if let Some(wait) = config.wait {
        builder = builder.wait(wait.into());
    }
    builder.build().map_err(|bad| Failure::usage(bad.to_string()))
}

/// Creates or migrates the schema of the store that is configured, whatever the configuration has programs do on connecting.
pub(crate) async fn migrate(global: &Global) -> Result<(), Failure> {
    let dao = config(global, None, None)?.connect_and_migrate().await?;
    check_shared(&dao)
}

fn check_shared(dao: &AnyLockDao) -> Result<(), Failure> {
    match dao.capabilities() {
        Capabilities { shared_store: true, .. } => Ok(()),
        Capabilities { backend, .. } => Err(Failure::usage(format!(
            "url: no other process sees the locks of {backend}:, choose a store such as sqlite:/var/lib/locks.db"
        ))),
    }
}

/// Tells what no outcome tells.
fn report(event: &Event<'_, String, Uuid>) {
    match event {
        Event::RenewalFailed { error: Some(error), .. } => {
            say(&format!("renewal failed, trying on: {error}"))
        }
        Event::RenewalFailed { error: None, .. } => say("renewal failed, trying on: no answer in time"),
        Event::ReleaseFailed { error, .. } => {
            say(&format!("the release failed, the locks end with their lease at the latest: {error}"));
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
