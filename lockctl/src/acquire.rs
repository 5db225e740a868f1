//! `lockctl acquire`, `release`, `renew` and `check`: locks that outlive the process, for scripts.

use std::{io::Read, time::Duration};

use lockcore::{Grant, Lock, LostLock};
use serde_json::json;

use crate::{
    args::{Acquire, Global, quoted},
    environment::LONGEST,
    exit::{Code, Failure},
    output::{Output, say},
    run::{Locked, listen, lock, settle},
    session, show, token,
};

/// Takes the locks and prints their token.
pub(crate) async fn acquire(global: &Global, args: Acquire, output: Output) -> Result<u8, Failure> {
    let mut signals = listen()?;
    // The locks belong to the caller: this process ends at once.
    let caller = std::os::unix::process::parent_id();
    let (locks, guard) = match lock(global, &args.locking, None, caller, &mut signals).await? {
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
    if token.len() >= LONGEST {
        say(&format!(
            "the token has {} bytes, more than a command line takes: `lockctl release -` reads it from standard input",
            token.len()
        ));
    }
    if written.is_err() {
        // The token is not known to the caller, who could not release them.
        let _ = locks.admin().release(&grant).await;
    }
    settle(&locks, session::GRACE).await;
    written.map(|()| 0)
}

/// Releases what a token stands for.
pub(crate) async fn release(global: &Global, token: &str, output: Output) -> Result<u8, Failure> {
    let grant = read(token)?;
    let (locks, _) = session::open_existing(global).await?;
    let released = locks.admin().release(&grant).await?;
    if let Some((_, error)) = released.failed.into_iter().next() {
        return Err(error.into());
    }
    held_until_now(&released.lost, &grant.locks)?;
    output.result(String::new, || json!({ "released": ids(&grant.locks) })).map(|()| 0)
}

/// Extends the lease of what a token stands for, by default to the length for which it was taken.
pub(crate) async fn renew(
    global: &Global,
    token: &str,
    lease: Option<Duration>,
    output: Output,
) -> Result<u8, Failure> {
    let mut grant = read(token)?;
    grant.lease = lease.or(grant.lease);
    let (locks, _) = session::open_existing(global).await?;
    let renewed = locks.admin().renew(&grant).await?;
    held_until_now(&renewed.lost, &grant.locks)?;
    let lease_ms = show::millis(grant.lease);
    output.result(String::new, || json!({ "renewed": ids(&grant.locks), "lease_ms": lease_ms })).map(|()| 0)
}

/// Checks that what a token stands for is held.
pub(crate) async fn check(global: &Global, token: &str, output: Output) -> Result<u8, Failure> {
    let grant = read(token)?;
    let (locks, _) = session::open_existing(global).await?;
    held_until_now(&locks.admin().check(&grant).await?, &grant.locks)?;
    output.result(String::new, || json!({ "held": ids(&grant.locks) })).map(|()| 0)
}

/// Reads a token, from standard input if it is `-`: a long one fits into no command line.
fn read(token: &str) -> Result<Grant, Failure> {
    let mut given = token.to_owned();
    if token == "-" {
        given.clear();
        let read = std::io::stdin().read_to_string(&mut given);
        read.map_err(|error| Failure::usage(format!("TOKEN: standard input cannot be read: {error}")))?;
    }
    let token = given.trim_end();
    match token::read(token) {
        Some(grant) if !grant.locks.is_empty() => Ok(grant),
        _ => {
            let start: String = token.chars().take(20).collect();
            Err(Failure::usage(format!("TOKEN: {start:?} is not the beginning of what `acquire` printed")))
        }
    }
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
