//! What a command finds in its environment about its locks, and what a `lockctl` inside a command reads there.

use std::{ffi::OsString, process::Command, time::Duration};

use lockcore::{
    AnyLockDao, Claim, LockError, LockGuard, LockingError, LockingService, Mode, StoredContext, Target, Wait,
    rules::InUse,
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
/// An id that each of them holds, in whatever store, as a JSON object by context.
const ENCLOSING_IDS: &str = "LOCKCORE_ENCLOSING_IDS";

/// Of each of these that leaves its locks locked after the command's end, the context and the process: after that they are held by
/// none that the command is inside of.
const KEPT: &str = "LOCKCORE_KEPT";

/// How long one variable or argument can be: Linux refuses to start a command with a longer one, the variable's name and a NUL
/// included.
pub(crate) const LONGEST: usize = 128 * 1024;

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
    let context = guard.context().to_string();
    let mut ids = Vec::new();
    ids.extend(fences.keys().min_by_key(|id| id.len()).map(|id| (context.clone(), id.clone())));
    let contexts: Vec<_> =
        [context.clone()].into_iter().chain(enclosing().iter().map(Uuid::to_string)).collect();
    ids.extend(enclosing_ids().map(|(context, id)| (context.to_string(), id)));
    command.env(CONTEXT, context).env(ENCLOSING, contexts.join(" "));
    command.env(ENCLOSING_IDS, innermost_of(ids));
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
    let nested = holds_something(locks).await?;
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

/// An id that each of the enclosing commands holds, in its store, from the inside out.
fn enclosing_ids() -> impl Iterator<Item = (Uuid, String)> {
    let mut ids = object(ENCLOSING_IDS);
    // An earlier lockctl wrote no ids; all of the innermost's stand here.
    let innermost = object(FENCES).into_iter().map(|(id, _)| id).next();
    enclosing().into_iter().enumerate().filter_map(move |(depth, context)| {
        let id = ids.remove(&context.to_string()).and_then(|id| id.as_str().map(str::to_owned));
        Some((context, id.or_else(|| innermost.clone().filter(|_| depth == 0))?))
    })
}

fn object(variable: &str) -> Map<String, Value> {
    let text = std::env::var(variable).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// Writes ids by context, without those of the outermost if the variable cannot be so long.
fn innermost_of(ids: Vec<(String, String)>) -> String {
    let mut room = LONGEST - ENCLOSING_IDS.len() - "={}\0".len();
    let fits = |(context, id): &(String, String)| {
        let id = json!(id);
        room = room.checked_sub(context.len() + id.to_string().len() + "\"\":,".len())?;
        Some((context.clone(), id))
    };
    Value::Object(ids.iter().map_while(fits).collect()).to_string()
}

/// Whether an enclosing command still holds its locks, in this store. A process that outlives a command inherits the variables,
/// but not the locks. Of locks that are lost in part nothing is left soon: the command is being ended.
async fn holds_something(locks: &LockingService) -> Result<bool, LockError<String, Uuid>> {
    for (context, id) in enclosing_ids() {
        let target = if id.is_empty() { Target::Global } else { Target::Id(id) };
        let seen = locks.admin().inspect(&target).await?;
        if seen.holders.iter().any(|holder| holder.context == StoredContext::Known(context)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether what the enclosing commands hold is enough to keep the claim from being granted, whatever others do.
async fn keeps_out(
    locks: &LockingService,
    enclosing: &[Uuid],
    claim: &Claim<String>,
) -> Result<bool, LockError<String, Uuid>> {
    let seen = locks.admin().inspect(&claim.target).await?;
    let ours = seen.holders.iter().filter(
        |holder| matches!(&holder.context, StoredContext::Known(context) if enclosing.contains(context)),
    );
    let in_use = InUse::of(ours.map(|holder| holder.mode));
    Ok(in_use != InUse::default() && !in_use.fits(claim.mode))
}
