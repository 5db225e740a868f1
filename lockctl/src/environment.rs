//! What a command finds in its environment about its locks, and what a `lockctl` inside a command reads there.

use std::{ffi::OsString, process::Command, time::Duration};

use lockcore::{
    AnyLockDao, Claim, LockError, LockGuard, LockingError, LockingService, Mode, StoredContext, Target, Wait,
};
use lockcore_any::{BackendUrl, ConnectError};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::{args::Global, exit::Failure, group};

/// The locks of a command.
pub(crate) type Guard = LockGuard<String, Uuid, AnyLockDao>;

/// Passes to a command the context that holds its locks.
pub(crate) const CONTEXT: &str = "LOCKCORE_CONTEXT";
const FENCE: &str = "LOCKCORE_FENCE";
const FENCES: &str = "LOCKCORE_FENCES";
const PERMITS: &str = "LOCKCORE_PERMITS";
/// The contexts of this and of all enclosing commands, from the inside out.
const ENCLOSING: &str = "LOCKCORE_ENCLOSING";

/// Of each of these that leaves its locks locked after the command's end, the context and the process: after that they are held by
/// none that the command is inside of.
const KEPT: &str = "LOCKCORE_KEPT";

/// How long one variable can be: Linux refuses to start a command with a longer one, its name and a NUL included.
const LONGEST: usize = 128 * 1024;

/// The most digits of a fence, and of the index of a permit.
const FENCE_DIGITS: usize = 20;
const INDEX_DIGITS: usize = 10;

/// Refuses a set whose description does not fit into an environment, before it is locked.
pub(crate) fn check_room(claims: &[Claim<String>]) -> Result<(), Failure> {
    let key = |claim: &Claim<String>| json!(claim.target.stored()).to_string().len() + ":,".len();
    let fences = claims.iter().map(|claim| key(claim) + FENCE_DIGITS).sum();
    let permits = claims.iter().filter_map(|claim| match claim.mode {
        Mode::Slots { permits, .. } => Some(key(claim) + "[]".len() + permits as usize * (INDEX_DIGITS + 1)),
        _ => None,
    });
    for (name, bytes) in [(FENCES, fences), (PERMITS, permits.sum::<usize>())] {
        let most = LONGEST - name.len() - "={}\0".len();
        if bytes > most {
            return Err(Failure::usage(format!(
                "{name}: may need {bytes} bytes for these ids, but CMD's environment takes at most {most}: lock fewer \
                 or shorter ids, or fewer permits"
            )));
        }
    }
    Ok(())
}

/// Puts what is held into the command's environment.
pub(crate) fn describe(command: &mut Command, guard: &Guard) {
    let mut fences = Map::new();
    let mut permits = Map::new();
    for lock in guard.locks() {
        let id = lock.target.stored().into_owned();
        if !lock.granted.permits.is_empty() {
            permits.insert(id.clone(), json!(lock.granted.permits.as_slice()));
        }
        fences.insert(id, json!(lock.granted.fence));
    }
    let contexts: Vec<_> =
        [*guard.context()].into_iter().chain(enclosing()).map(|id| id.to_string()).collect();
    command.env(CONTEXT, guard.context().to_string()).env(ENCLOSING, contexts.join(" "));
    // What an enclosing lockctl said of its own locks does not hold for ours.
    match guard.locks() {
        [only] => command.env(FENCE, only.granted.fence.to_string()),
        _ => command.env_remove(FENCE),
    };
    match permits.is_empty() {
        true => command.env_remove(PERMITS),
        false => command.env(PERMITS, Value::Object(permits).to_string()),
    };
    command.env(FENCES, Value::Object(fences).to_string());
}

/// Notes that the locks stay locked after the command's end.
pub(crate) fn keeps(command: &mut Command, guard: &Guard) {
    let Some(process) = group::name_of_this() else { return };
    let outer = std::env::var(KEPT).unwrap_or_default();
    command.env(KEPT, format!("{}={process} {outer}", guard.context()).trim_end());
}

/// Returns what the command line said of the store, as variables for the command. A URL with a secret is left out: a command line
/// has it where others may read it, and it is not spread further.
pub(crate) fn store(global: &Global) -> Result<Vec<(&'static str, OsString)>, Failure> {
    let mut variables = Vec::new();
    if let Some(url) = &global.url {
        let url: BackendUrl = url.parse().map_err(ConnectError::from)?;
        let url = url.in_current_folder().map_err(ConnectError::from)?;
        if !url.has_secret() {
            variables.push(("LOCKCORE_URL", url.expose().into()));
        }
    }
    if let Some(file) = &global.config {
        // Without a current folder the path is as good as it can be.
        variables
            .push(("LOCKCORE_CONFIG", std::path::absolute(file).unwrap_or_else(|_| file.clone()).into()));
    }
    if let Some(namespace) = &global.namespace {
        variables.push(("LOCKCORE_NAMESPACE", namespace.into()));
    }
    Ok(variables)
}

/// Takes the locks, with regard to what the enclosing commands hold in the same store: their ids are not waited for.
pub(crate) async fn lock(
    locks: &LockingService,
    claims: &[Claim<String>],
    keep_for: Option<Duration>,
) -> Result<Guard, LockError<String, Uuid>> {
    let enclosing = enclosing();
    let nested = match enclosing.first() {
        Some(innermost) => holds_something(locks, *innermost).await?,
        None => false,
    };
    let call = || {
        let mut call = locks.call().detached();
        if let Some(keep_for) = keep_for {
            call = call.keep_for(keep_for);
        }
        if nested { call.nested() } else { call }
    };
    if enclosing.is_empty() {
        return call().lock(claims).await;
    }
    // Only what is refused can be waited for.
    match call().wait(Wait::never()).lock(claims).await {
        Err(LockingError::NotLocked { .. }) => {}
        settled => return settled,
    }
    for claim in claims {
        if keeps_out(locks, &enclosing, claim).await? {
            return Err(LockingError::SelfDeadlock { target: claim.target.clone() });
        }
    }
    call().lock(claims).await
}

/// The contexts of the enclosing commands, the innermost first. A process that outlives a command inherits the variables; what is
/// only kept by then encloses it no more.
fn enclosing() -> Vec<Uuid> {
    let [contexts, kept] = [ENCLOSING, KEPT].map(|name| std::env::var(name).unwrap_or_default());
    let is_over = |context: &str| {
        let mut of_context = kept.split_whitespace().filter_map(|kept| kept.split_once('='));
        of_context.any(|(kept, process)| kept == context && group::has_ended(process))
    };
    let enclosing = contexts.split_whitespace().filter(|context| !is_over(context));
    enclosing.filter_map(|context| context.parse().ok()).collect()
}

/// Whether the innermost enclosing command still holds its locks, in this store. A process that outlives the command
/// inherits the variables, but not the locks.
async fn holds_something(locks: &LockingService, context: Uuid) -> Result<bool, LockError<String, Uuid>> {
    let fences = std::env::var(FENCES).unwrap_or_default();
    let fences: Map<String, Value> = serde_json::from_str(&fences).unwrap_or_default();
    // Of locks that are lost in part nothing is left soon: the command is being ended.
    let Some((stored, _)) = fences.into_iter().next() else { return Ok(false) };
    let target = if stored.is_empty() { Target::Global } else { Target::Id(stored) };
    let seen = locks.admin().inspect(&target).await?;
    Ok(seen.holders.iter().any(|holder| holder.context == StoredContext::Known(context)))
}

/// Whether what the enclosing commands hold is enough to keep the claim from being granted, whatever others do.
async fn keeps_out(
    locks: &LockingService,
    enclosing: &[Uuid],
    claim: &Claim<String>,
) -> Result<bool, LockError<String, Uuid>> {
    let seen = locks.admin().inspect(&claim.target).await?;
    let ours = seen.holders.into_iter().filter(
        |holder| matches!(&holder.context, StoredContext::Known(context) if enclosing.contains(context)),
    );
    let mut in_use = 0_u32;
    for holder in ours {
        match (holder.mode, claim.mode) {
            (Mode::Shared, Mode::Shared) => {}
            (Mode::Slots { permits, .. }, Mode::Slots { .. }) => in_use = in_use.saturating_add(permits),
            _ => return Ok(true),
        }
    }
    Ok(match claim.mode {
        Mode::Slots { permits, limit } => in_use > 0 && in_use.saturating_add(permits) > limit,
        _ => false,
    })
}
