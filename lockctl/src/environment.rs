//! The variables that tell a command of its locks, and that a `lockctl` inside a command reads.

use std::{
    ffi::OsString,
    process::Command,
    time::{Duration, Instant},
};

use lockcore::{
    AnyLockDao, Claim, Held, LockError, LockGuard, LockingError, LockingService, Mode, StoredContext, Target,
    Wait, rules::InUse,
};
use lockcore_any::{BackendUrl, ConnectError, WITHHELD, Waiting};
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
/// The contexts of this and of all enclosing commands, from the inside out. Each is followed by a `=` and the bytes in hexadecimal of
/// an id that it holds, in whatever store, and by a `@` and the [name](group::name_of_this) of its lockctl if it leaves its locks
/// locked after its command's end. An earlier lockctl writes contexts alone, and skips the rest where it reads.
const ENCLOSING: &str = "LOCKCORE_ENCLOSING";

/// The longest variable or argument: Linux refuses to start a command with a longer one, the variable's name and a NUL
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

/// Puts what is held into the command's environment, and whether any of it stays locked after the command's end. `fence` stands for all
/// of it.
pub(crate) fn describe(command: &mut Command, held: &Held<String, Uuid>, fence: Option<u64>, is_kept: bool) {
    let mut fences = Map::new();
    let mut permits = Map::new();
    for lock in held.locks() {
        let id = lock.target.stored().into_owned();
        if !lock.granted.permits.is_empty() {
            permits.insert(id.clone(), json!(lock.granted.permits.as_slice()));
        }
        fences.insert(id, json!(lock.granted.fence));
    }
    let shortest = fences.keys().min_by_key(|id| id.len()).cloned();
    let kept_by = if is_kept { group::name_of_this() } else { None };
    let own = Enclosing { context: *held.context(), id: shortest, kept_by };
    command
        .env(CONTEXT, held.context().to_string())
        .env(ENCLOSING, written([own].into_iter().chain(enclosing())));
    // The variables of an enclosing lockctl are about its locks, not ours.
    match fence {
        Some(fence) => command.env(FENCE, fence.to_string()),
        None => command.env_remove(FENCE),
    };
    match permits.is_empty() {
        true => command.env_remove(PERMITS),
        false => command.env(PERMITS, Value::Object(permits).to_string()),
    };
    command.env(FENCES, Value::Object(fences).to_string());
}

/// Returns what the command line said of the store, as variables for the command. A URL with a secret is withheld: a command line
/// has it where others may read it, and it is not spread further. Nor is another store that is inherited found in its place.
pub(crate) fn store(global: &Global) -> Result<Vec<(&'static str, OsString)>, Failure> {
    let mut variables = Vec::new();
    if let Some(url) = &global.url {
        let url: BackendUrl = url.parse().map_err(ConnectError::from)?;
        let url = url.in_current_folder().map_err(ConnectError::from)?;
        let inherited = || std::env::var("LOCKCORE_URL").ok()?.parse::<BackendUrl>().ok();
        if !url.has_secret() {
            variables.push(("LOCKCORE_URL", url.expose().into()));
        } else if inherited().is_none_or(|inherited| inherited.expose() != url.expose()) {
            variables.push(("LOCKCORE_URL", WITHHELD.into()));
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
    wait: Waiting,
    claims: &[Claim<String>],
    keep_for: Option<Duration>,
) -> Result<Guard, LockError<String, Uuid>> {
    lock_inside(&enclosing(), locks, wait, claims, keep_for).await
}

async fn lock_inside(
    enclosing: &[Enclosing],
    locks: &LockingService,
    wait: Waiting,
    claims: &[Claim<String>],
    keep_for: Option<Duration>,
) -> Result<Guard, LockError<String, Uuid>> {
    // The questions are waited for as the locks are.
    let (begun, may_pass) = (Instant::now(), LockError::is_retryable);
    let nested = wait.retry(begun, may_pass, || holds_something(locks, enclosing)).await?;
    let call = || {
        let mut call = locks.wait(wait.left(begun).into()).detached();
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
    refuse(enclosing, locks, wait.left(begun), claims).await?;
    call().lock(claims).await
}

/// Refuses a wait for what the enclosing commands hold.
pub(crate) async fn refuse_enclosed(
    locks: &LockingService,
    wait: Waiting,
    claims: &[Claim<String>],
) -> Result<(), LockError<String, Uuid>> {
    let enclosing = if wait == Waiting::Never { Vec::new() } else { enclosing() };
    refuse(&enclosing, locks, wait, claims).await
}

async fn refuse(
    enclosing: &[Enclosing],
    locks: &LockingService,
    wait: Waiting,
    claims: &[Claim<String>],
) -> Result<(), LockError<String, Uuid>> {
    let begun = Instant::now();
    for claim in claims.iter().filter(|_| !enclosing.is_empty()) {
        if wait.retry(begun, LockError::is_retryable, || keeps_out(locks, enclosing, claim)).await? {
            return Err(LockingError::SelfDeadlock { target: claim.target.clone() });
        }
    }
    Ok(())
}

/// An enclosing command.
struct Enclosing {
    context: Uuid,
    /// An id that it holds, if that is known.
    id: Option<String>,
    /// The lockctl that leaves its locks locked: once that has ended, they are held by none that a command is inside of.
    kept_by: Option<String>,
}

/// The enclosing commands, the innermost first. A process that outlives a command inherits the variables.
fn enclosing() -> Vec<Enclosing> {
    let mut all: Vec<Enclosing> = Vec::new();
    for word in std::env::var(ENCLOSING).unwrap_or_default().split_whitespace() {
        match (word.split_at_checked(1), all.last_mut()) {
            (Some(("=", id)), Some(last)) => last.id = from_hex(id),
            (Some(("@", lockctl)), Some(last)) => last.kept_by = Some(lockctl.to_owned()),
            _ => all.extend(word.parse().ok().map(|context| Enclosing { context, id: None, kept_by: None })),
        }
    }
    if let Some(innermost) = all.first_mut().filter(|innermost| innermost.id.is_none()) {
        let fences = std::env::var(FENCES).unwrap_or_default();
        let fences: Map<String, Value> = serde_json::from_str(&fences).unwrap_or_default();
        innermost.id = fences.into_iter().map(|(id, _)| id).next();
    }
    all.retain(|enclosing| !enclosing.kept_by.as_deref().is_some_and(group::has_ended));
    all
}

/// Writes the enclosing commands, without the ids of the outermost if the variable cannot be so long.
fn written(all: impl Iterator<Item = Enclosing>) -> String {
    let mut text = String::new();
    for Enclosing { context, id, kept_by } in all {
        let id = id.map(|id| format!(" ={}", hex(&id))).unwrap_or_default();
        // Contexts take the other half, of some thousand commands.
        let id = if text.len() + id.len() > LONGEST / 2 { "" } else { &id };
        let kept_by = kept_by.map(|lockctl| format!(" @{lockctl}")).unwrap_or_default();
        text += &format!("{context}{id}{kept_by} ");
    }
    text
}

fn hex(id: &str) -> String {
    id.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<String> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let bytes =
        digits?.chunks(2).map(|byte| byte.iter().fold(0, |sum, digit| sum * 16 + *digit as u8)).collect();
    String::from_utf8(bytes).ok()
}

/// Returns whether an enclosing command still holds its locks, in this store. A process that outlives a command inherits the variables,
/// but not the locks. Of locks that are lost in part nothing is left soon: the command is being ended.
async fn holds_something(
    locks: &LockingService,
    enclosing: &[Enclosing],
) -> Result<bool, LockError<String, Uuid>> {
    for Enclosing { context, id, .. } in enclosing {
        let Some(id) = id else { continue };
        let target = if id.is_empty() { Target::Global } else { Target::Id(id.clone()) };
        let seen = locks.admin().inspect(&target).await?;
        if seen.holders.iter().any(|holder| holder.context == StoredContext::Known(*context)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether what the enclosing commands hold is enough to keep the claim from being granted, whatever others do.
async fn keeps_out(
    locks: &LockingService,
    enclosing: &[Enclosing],
    claim: &Claim<String>,
) -> Result<bool, LockError<String, Uuid>> {
    let seen = locks.admin().inspect(&claim.target).await?;
    let is_ours = |context: &Uuid| enclosing.iter().any(|command| command.context == *context);
    let ours = seen
        .holders
        .iter()
        .filter(|holder| matches!(&holder.context, StoredContext::Known(context) if is_ours(context)));
    let in_use = InUse::of(ours.map(|holder| holder.mode));
    Ok(in_use != InUse::default() && !in_use.fits(claim.mode))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lockcore::BackendErrorKind;
    use lockcore_conformance::fault::{Fault, FaultyDao, Operation};

    use super::*;

    /// 11.3: what passes ends no wait, also if the store is asked what the enclosing commands hold. What does not pass ends it.
    #[tokio::test]
    async fn questions_about_the_enclosing_commands_are_waited_for() {
        let dao = lockcore_any::connect("memory:").await.expect("it needs no server");
        let (dao, faults) = FaultyDao::new(Arc::new(dao));
        let locks = LockingService::new(AnyLockDao::new(dao));
        let outer = locks.lock(["x"]).await.expect("it is free");
        let claims = [Claim::exclusive("a".to_owned())];
        let long = Waiting::UpTo(Duration::from_secs(60));
        // The first is asked what it holds, the other one only whether it is in the way.
        for id in [Some("x".to_owned()), None] {
            let enclosing = [Enclosing { context: *outer.context(), id, kept_by: None }];
            let other = locks.lock(["a"]).await.expect("it is free");
            faults.set_times(Operation::Inspect, Fault::Fails(BackendErrorKind::Unavailable), 3);
            let asked = faults.calls(Operation::Inspect);
            let release = async {
                while faults.calls(Operation::Inspect) <= asked + 3 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                other.release().await
            };
            let (guard, released) =
                tokio::join!(lock_inside(&enclosing, &locks, long, &claims, None), release);
            released.expect("nothing was lost");
            guard.expect("it was waited for").release().await.expect("nothing was lost");

            let other = locks.lock(["a"]).await.expect("it is free");
            for (wait, kind) in
                [(Waiting::Never, BackendErrorKind::Unavailable), (Waiting::Forever, BackendErrorKind::Other)]
            {
                faults.set(Operation::Inspect, Fault::Fails(kind));
                let error =
                    lock_inside(&enclosing, &locks, wait, &claims, None).await.expect_err("it failed");
                assert!(!error.is_contention(), "{error}");
            }
            faults.lift();
            other.release().await.expect("nothing was lost");
        }
        outer.release().await.expect("nothing was lost");
    }

    #[test]
    fn ids_are_read_as_they_were_written() {
        for id in ["", "a", "a b\u{a0}é\0=", "67e55044-10b1-426f-9247-bb680e5fe0c8"] {
            assert_eq!(from_hex(&hex(id)).as_deref(), Some(id));
        }
        for other in ["x", "ff", "é"] {
            assert_eq!(from_hex(other), None, "{other}");
        }
    }

    #[test]
    fn a_deep_nesting_has_room_in_an_environment() {
        let command = || Enclosing { context: Uuid::nil(), id: Some("x".repeat(1024)), kept_by: None };
        let text = written(std::iter::repeat_with(command).take(1000));
        assert!(text.len() < LONGEST - ENCLOSING.len() - "=\0".len(), "{}", text.len());
        assert_eq!(text.split_whitespace().filter(|word| word.parse::<Uuid>().is_ok()).count(), 1000);
    }
}
