//! What the server has to do, and what is left with it: counted in commands, by the server's own account.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use lockcore::{
    Claim, Grant, LockDao, Mode,
    backend::{Acquired, Wake, Withdraw, Withdrawn},
};
use lockcore_conformance::{
    Caller, Store, eventually,
    judge::in_time,
    servers::TestResult,
    store::{exclusive, id, shared, slot},
};
use tokio::runtime::Builder;
use uuid::Uuid;

use super::{
    place::{Dao, Failure, Place},
    topology::{Raw, server},
};

/// The commands that scripts have made, and how many scripts there were.
async fn done(raw: &Raw) -> Result<(u64, u64), Failure> {
    let stats: String = raw.send(&["INFO", "commandstats"]).await?;
    let (mut commands, mut scripts) = (0, 0);
    for line in stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")) {
        let calls: u64 =
            line.split("calls=").nth(1).and_then(|calls| calls.split(',').next()?.parse().ok()).unwrap_or(0);
        match line.split(':').next().unwrap_or_default() {
            "evalsha" => scripts += calls,
            name if name.starts_with("config") || name.starts_with("info") => {}
            _ => commands += calls,
        }
    }
    Ok((commands, scripts))
}

/// What `work` has scripts do.
async fn cost(raw: &Raw, work: impl AsyncFnOnce()) -> Result<(u64, u64), Failure> {
    raw.ask::<()>("CONFIG RESETSTAT").await?;
    work().await;
    done(raw).await
}

/// Does the same many times, some at once.
async fn repeat<T>(times: usize, work: impl AsyncFn() -> T) -> Vec<T> {
    stream::iter(0..times).map(|_| work()).buffered(100).collect().await
}

/// Places in the queue of callers whose process then ends.
async fn die_waiting(place: &Place, claims: Vec<Claim<String>>, how_many: usize) -> TestResult {
    let dies = place.clone();
    tokio::task::spawn_blocking(move || {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let store = dies.store().await;
            repeat(how_many, async || drop(store.caller().queue(claims.clone()).await)).await;
        });
        Ok::<_, Failure>(())
    })
    .await??;
    let raw = place.raw().await?;
    for heartbeat in raw.send::<Vec<String>>(&["KEYS", &place.base("/p:*")]).await? {
        raw.send::<()>(&["DEL", &heartbeat]).await?;
    }
    Ok(())
}

/// Holders and waiters that never come back, and attempts that were withdrawn: all of it ends by itself.
pub(crate) async fn what_is_abandoned_ends() -> TestResult {
    let place = Place::shared().await?;
    let (store, raw) = (place.store().await, place.raw().await?);
    for claims in [
        vec![exclusive("a")],
        vec![exclusive("b"), exclusive("c")],
        vec![shared("d"), slot("e", 3)],
        vec![slot("f", 1)],
    ] {
        store.caller().take(claims.clone()).await;
        let alone = claims.into_iter().map(alone);
        drop(store.caller().queue(alone).await);
    }
    drop(store.caller().queue([exclusive("a"), shared("d"), slot("e", 9), exclusive("free")]).await);
    let undone = store.caller().request(["g"]);
    assert_eq!(store.dao().withdraw(&undone, Withdraw::Undo).await?, Withdrawn::Left);
    let changes = store.caller();
    changes.take([shared("h")]).await;
    changes.take([exclusive("h")]).await;
    for key in raw.send::<Vec<String>>(&["KEYS", &place.base("*")]).await? {
        let ttl: i64 = raw.send(&["PTTL", &key]).await?;
        assert!(ttl != -1 && ttl <= 86_400_000, "{key}: {ttl}");
    }
    Ok(())
}

/// Waiters, sharers and withdrawn attempts elsewhere in the namespace cost nothing for an id without any.
pub(crate) async fn an_id_of_ones_own_costs_the_same_beside_others() -> TestResult {
    let server = server("").await?;
    let place = Place::at(server.url());
    let (store, raw) = (place.store().await, place.raw().await?);
    let us = store.caller();
    let pair = async || us.free(&us.take(["ours"]).await).await;
    pair().await;
    let alone = cost(&raw, pair).await?;
    let [holder, sharing] = store.callers();
    holder.take([exclusive("a")]).await;
    sharing.take([shared("b"), slot("c", 2)]).await;
    die_waiting(&place, vec![exclusive("a"), exclusive("b")], 1).await?;
    assert_eq!(store.dao().withdraw(&holder.request(["d"]), Withdraw::Undo).await?, Withdrawn::Left);
    pair().await;
    assert_eq!(cost(&raw, pair).await?, alone, "commands and scripts");
    assert!(alone.0 <= 6, "{alone:?}");
    Ok(())
}

/// Taking, renewing, refusing and freeing do not read all who hold.
pub(crate) async fn ten_thousand_holders_are_no_slower_than_one() -> TestResult {
    const HOLDERS: usize = 10_000;
    let server = server("").await?;
    let place = Place::at(server.url()).patient_for(Duration::from_secs(30));
    let (store, raw) = (place.store().await, place.raw().await?);
    for (name, claim) in [("s", shared("s")), ("k", slot("k", 20_000))] {
        let us = store.caller();
        let held = us.take([claim.clone()]).await;
        let mut few = Vec::new();
        let mut many = Vec::new();
        for times in [&mut few, &mut many] {
            for step in 0..4 {
                times.push(fastest(&raw, &store, &us, &held, &claim, step).await?);
            }
            if store.dao().inspect(&id(name)).await?.holders.len() == 1 {
                repeat(HOLDERS, async || store.caller().take([claim.clone()]).await).await;
            }
        }
        for (step, (few, many)) in few.iter().zip(&many).enumerate() {
            assert!(
                *many <= *few * 4 + Duration::from_micros(50),
                "{name}, step {step}: {few:?}, {many:?} with many"
            );
        }
    }
    Ok(())
}

/// The time that the server spends on the fastest of some scripts of one kind.
async fn fastest(
    raw: &Raw,
    store: &Store<Place>,
    us: &Caller<Dao>,
    held: &Grant<String, Uuid>,
    claim: &Claim<String>,
    step: usize,
) -> Result<Duration, Failure> {
    let mut fastest = Duration::MAX;
    for _ in 0..20 {
        let other = store.caller();
        let grant = if step == 3 { Some(other.take([claim.clone()]).await) } else { None };
        raw.ask::<()>("CONFIG RESETSTAT").await?;
        match (step, &grant) {
            (0, _) => us.keep(held).await,
            (1, _) => drop(other.refused([alone(claim.clone())]).await),
            (2, _) => drop(other.take([claim.clone()]).await),
            (_, Some(grant)) => other.free(grant).await,
            _ => {}
        }
        let stats: String = raw.send(&["INFO", "commandstats"]).await?;
        let took =
            stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")?.split("usec=").nth(1));
        let took = took.and_then(|took| took.split(',').next()?.parse().ok()).expect("a script ran");
        fastest = fastest.min(Duration::from_micros(took));
        if step == 2 {
            store.dao().release_context(&other.context).await?;
        }
    }
    Ok(fastest)
}

/// The same id, wanted exclusively.
fn alone(claim: Claim<String>) -> Claim<String> {
    Claim { mode: Mode::Exclusive, ..claim }
}

/// A release that meets thousands of dead waiters removes some of them; a live waiter behind them has its turn soon.
pub(crate) async fn dead_waiters_are_removed_a_few_at_a_time() -> TestResult {
    const DEAD: usize = 5000;
    let server = server("").await?;
    let place = Place::at(server.url()).patient_for(Duration::from_secs(30));
    let (store, raw) = (place.store().await, place.raw().await?);
    for claims in [vec![exclusive("a")], vec![slot("b", 1), exclusive("c")]] {
        let [holder, waiter] = store.callers();
        let held = holder.take(claims.clone()).await;
        die_waiting(&place, claims.clone(), DEAD).await?;
        let (commands, _) = cost(&raw, async || holder.free(&held).await).await?;
        assert!(commands < DEAD as u64, "{commands} commands in one script");
        let began = Instant::now();
        let turn = waiter.queue(claims).await.granted().await;
        in_time(began.elapsed(), Duration::from_secs(5));
        waiter.free(&turn).await;
    }
    Ok(())
}

/// Looking at an id that thousands hold and wait for is done in many scripts, each of which is short.
pub(crate) async fn many_holders_are_read_in_parts() -> TestResult {
    const MANY: usize = 3000;
    let server = server("").await?;
    let place = Place::at(server.url()).patient_for(Duration::from_secs(30));
    let (store, raw) = (place.store().await, place.raw().await?);
    repeat(MANY, async || store.caller().take([shared("a"), slot("b", u32::MAX)]).await).await;
    let _waiting = repeat(MANY, async || store.caller().queue([exclusive("a"), exclusive("b")]).await).await;
    for name in ["a", "b"] {
        let mut seen = None;
        let inspect = async || seen = store.dao().inspect(&id(name)).await.ok();
        let (commands, scripts) = cost(&raw, inspect).await?;
        let seen = seen.expect("the server answers");
        assert_eq!((seen.holders.len(), seen.waiters.len()), (MANY, MANY));
        assert!(scripts >= 10 && commands / scripts < 3000, "{commands} commands in {scripts} scripts");
        let mut tickets: Vec<_> = seen.waiters.iter().map(|waiter| waiter.since).collect();
        tickets.sort();
        assert!(tickets.iter().eq(seen.waiters.iter().map(|waiter| &waiter.since)), "in order");
    }
    let mut listed = None;
    let list = async || listed = store.dao().list(&lockcore::Page::default()).await.ok();
    let (commands, scripts) = cost(&raw, list).await?;
    let listed = listed.expect("the server answers");
    assert!(listed.ids.iter().all(|id| (id.holders.len(), id.waiters.len()) == (MANY, MANY)));
    assert!(scripts >= 20 && commands / scripts < 3000, "{commands} commands in {scripts} scripts");
    Ok(())
}

/// A process that waits for our locks costs the server one script a second, and not one for each id.
pub(crate) async fn waiting_costs_a_script_a_second() -> TestResult {
    let server = server("").await?;
    let place = Place::at(server.url());
    let (store, raw) = (place.store().await, place.raw().await?);
    let (holder, mut waiting) = (store.caller(), Vec::new());
    for id in ["a", "b", "c"] {
        holder.take([id]).await;
        waiting.push(store.caller().queue([id]).await);
    }
    eventually("the first look", || async { done(&raw).await.ok().filter(|(_, scripts)| *scripts > 6) })
        .await;
    raw.ask::<()>("CONFIG RESETSTAT").await?;
    let began = Instant::now();
    eventually("six more", || async { done(&raw).await.ok().filter(|(_, scripts)| *scripts >= 6) }).await;
    assert!(began.elapsed() > Duration::from_secs(3), "{:?}", began.elapsed());
    Ok(())
}

/// The server lost the place of a waiter, and with it any message that there may have been: it asks again at once, and not only
/// when its recheck is due.
pub(crate) async fn a_waiter_that_is_not_in_line_any_more_asks_again() -> TestResult {
    let place = Place::shared().await?;
    let (store, raw) = (place.store().await, place.raw().await?);
    let [holder, waiter] = store.callers();
    let held = holder.take(["a"]).await;
    let mut waiting = waiter.queue(["a"]).await;
    for key in raw.send::<Vec<String>>(&["KEYS", &place.base("/*")]).await? {
        // Neither the fence nor the heartbeat.
        if key != place.base("/f") && !key.starts_with(&place.base("/p:")) {
            raw.send::<()>(&["DEL", &key]).await?;
        }
    }
    let began = Instant::now();
    assert!(matches!(waiting.notified().await, Wake::Recheck));
    in_time(began.elapsed(), Duration::from_secs(10));
    waiting.still_waits().await;
    holder.free(&held).await;
    waiter.free(&waiting.served().await).await;
    Ok(())
}

/// The first one's lease ends while it is frozen: the id stays closed, to all clients.
pub(crate) async fn a_frozen_id_stays_closed_when_its_holders_lease_ends() -> TestResult {
    let place = Place::shared().await?;
    let (store, raw) = (place.store().await, place.raw().await?);
    for claim in [exclusive("a"), shared("a"), slot("a", 2)] {
        let holder = store.caller().with_lease(store.ending());
        let held = holder.take([claim.clone()]).await;
        store.dao().freeze(&id("a"), true).await?;
        let key = place.key("a");
        assert_eq!(raw.send::<i64>(&["PTTL", &key]).await?, -1, "{claim:?}: it has no end");
        holder.keep(&held).await;
        assert_eq!(raw.send::<i64>(&["PTTL", &key]).await?, -1, "{claim:?}: nor has it when it was renewed");
        store.end_leases().await;
        assert_eq!(store.dao().renew(&held).await?.lost.len(), 1, "{claim:?}");
        let theirs: Option<String> = raw.send(&["SET", &key, "theirs", "NX", "PX", "60000"]).await?;
        assert_eq!(theirs, None, "{claim:?}");
        assert!(matches!(store.dao().acquire(&store.caller().request(["a"])).await?, Acquired::Refused(_)));
        store.dao().freeze(&id("a"), false).await?;
        let theirs: Option<String> = raw.send(&["SET", &key, "theirs", "NX", "PX", "60000"]).await?;
        assert_eq!(theirs.as_deref(), Some("OK"), "{claim:?}");
        raw.send::<()>(&["DEL", &key]).await?;
    }
    Ok(())
}
