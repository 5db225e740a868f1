//! `lockctl acquire`, `release` and `renew`: locks that outlive the process, for scripts.

use lockcore::{Lock, LostLock};
use serde_json::json;

use crate::{
    args::{Acquire, Global, quoted},
    exit::{Code, Failure},
    output::Output,
    run::{Locked, listen, lock, settle},
    session, show, token,
};

/// Takes the locks and prints their token.
pub(crate) async fn acquire(global: &Global, args: Acquire, output: Output) -> Result<u8, Failure> {
    let mut signals = listen()?;
    // The locks belong to the caller: this process ends at once.
    let caller = std::os::unix::process::parent_id();
    let (locks, guard) = match lock(global, &args.locking, caller, &mut signals).await? {
        Locked::Held(locks, guard) => (locks, guard),
        Locked::Interrupted(code) => return Ok(code),
    };
    let grant = guard.leave();
    let token = token::write(&grant);
    let written = output.result(
        || token.clone(),
        || {
            let lock = |lock: &Lock<String>| {
                let mut shown = show::mode(lock.granted.mode, &lock.granted.permits);
                shown.insert("id".to_owned(), show::id(&lock.target));
                shown.insert("fence".to_owned(), lock.granted.fence.into());
                shown.insert("in_use".to_owned(), lock.granted.in_use.into());
                shown
            };
            json!({
                "token": token,
                "context": grant.context,
                "lease_ms": show::millis(grant.lease),
                "locks": grant.locks.iter().map(lock).collect::<Vec<_>>(),
            })
        },
    );
    if written.is_err() {
        // The token is not known to the caller, who could not release them.
        let _ = locks.admin().release(&grant).await;
    }
    settle(&locks).await;
    written.map(|()| 0)
}

/// Releases what a token stands for.
pub(crate) async fn release(global: &Global, token: &str, output: Output) -> Result<u8, Failure> {
    let grant = token::read(token)?;
    let (locks, _) = session::open_existing(global).await?;
    let released = locks.admin().release(&grant).await?;
    if let Some((_, error)) = released.failed.into_iter().next() {
        return Err(error.into());
    }
    held_until_now(&released.lost, &grant.locks)?;
    output.result(String::new, || json!({ "released": ids(&grant.locks) })).map(|()| 0)
}

/// Extends the lease of what a token stands for.
pub(crate) async fn renew(global: &Global, token: &str, output: Output) -> Result<u8, Failure> {
    let grant = token::read(token)?;
    let (locks, _) = session::open_existing(global).await?;
    let renewed = locks.admin().renew(&grant).await?;
    held_until_now(&renewed.lost, &grant.locks)?;
    let lease_ms = show::millis(grant.lease);
    output.result(String::new, || json!({ "renewed": ids(&grant.locks), "lease_ms": lease_ms })).map(|()| 0)
}

fn ids(locks: &[Lock<String>]) -> Vec<serde_json::Value> {
    locks.iter().map(|lock| show::id(&lock.target)).collect()
}

fn held_until_now(lost: &[LostLock<String>], all: &[Lock<String>]) -> Result<(), Failure> {
    if lost.is_empty() {
        return Ok(());
    }
    let each: Vec<_> = lost.iter().map(|lock| format!("{}: {}", quoted(&lock.target), lock.reason)).collect();
    let some = if lost.len() < all.len() { " all" } else { "" };
    Err(Failure::new(Code::NotHeld, format!("not{some} held any more: {}", each.join("; "))))
}
