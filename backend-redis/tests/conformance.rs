//! The conformance suite on the Redis backend: one real server, a namespace for each store; and what only Redis shows.

use std::{
    error::Error,
    pin::pin,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use lockcore::{
    BackendError, BadRequest, Claim, ClaimSet, Grant, IntoClaim, LockDao, Mode, Owner, StoredContext,
    backend::{AcquireRequest, Acquired, AttemptId, Wake, Withdraw, Withdrawn},
};
use lockcore_conformance::{
    Backend, Store, all,
    checks::contexts::odd_contexts_are_kept_apart,
    servers::{self, Kind, Server, ServerError, TestResult},
};
use lockcore_redis::RedisLockDao;
use uuid::Uuid;

/// No check takes longer, however slow the server.
const PATIENCE: Duration = Duration::from_secs(180);

struct Redis {
    server: Arc<Server>,
    /// Other tests, and other runs of this one, may use the same server.
    run: Uuid,
    stores: AtomicUsize,
}

/// A namespace of the server.
struct Namespace {
    server: Arc<Server>,
    name: String,
}

impl Namespace {
    async fn open(&self) -> RedisLockDao<String, Uuid> {
        let builder = RedisLockDao::builder()
            .url(self.server.url())
            .response_timeout(servers::ANSWERS)
            .namespace(&*self.name);
        builder.open().await.expect("the server answers")
    }
}

impl Backend for Redis {
    type Dao = RedisLockDao<String, Uuid>;
    type Guard = Namespace;

    async fn build(&self) -> (Namespace, Self::Dao) {
        let number = self.stores.fetch_add(1, Ordering::Relaxed);
        let name = format!("{} store {number}", self.run);
        let namespace = Namespace { server: self.server.clone(), name };
        let dao = namespace.open().await;
        (namespace, dao)
    }

    async fn reopen(&self, namespace: &Namespace) -> Option<Self::Dao> {
        Some(namespace.open().await)
    }
}

async fn backend() -> Result<Redis, ServerError> {
    let server = servers::shared(Kind::Redis).await?;
    Ok(Redis { server, run: Uuid::new_v4(), stores: AtomicUsize::new(0) })
}

fn main() -> ExitCode {
    let checks = all::<Redis>().into_iter().map(|check| {
        servers::trial(Kind::Redis, check.name, move || async move {
            let store = Store::new(Arc::new(backend().await?)).await;
            tokio::time::timeout(PATIENCE, (check.run)(store)).await?;
            Ok(())
        })
    });
    servers::run(checks.chain([
        servers::trial(Kind::Redis, "own::odd_contexts", odd_contexts),
        servers::trial(Kind::Redis, "own::a_clock_that_was_set_back", a_clock_that_was_set_back),
        servers::trial(Kind::Redis, "own::a_withdrawn_change", a_withdrawn_change),
        servers::trial(Kind::Redis, "own::an_offer_is_short", an_offer_is_short),
        servers::trial(Kind::Redis, "own::a_longer_lease", a_longer_lease),
        servers::trial(Kind::Redis, "own::an_offer_before_the_answer", an_offer_before_the_answer),
    ]))
}

/// Contexts of any text, which the suite's stores do not have.
async fn odd_contexts() -> TestResult {
    let server = servers::shared(Kind::Redis).await?;
    let builder =
        RedisLockDao::<String, String>::builder().url(server.url()).response_timeout(servers::ANSWERS);
    let dao = builder.namespace(Uuid::new_v4().to_string()).open().await?;
    odd_contexts_are_kept_apart(&dao).await;
    Ok(())
}

/// A lock whose time lies an hour ahead, as its key's does then: it lasts for its lease from when a client meets it.
async fn a_clock_that_was_set_back() -> TestResult {
    let backend = backend().await?;
    let (namespace, dao) = backend.build().await;
    let client = redis::Client::open(backend.server.url())?;
    // The usual limits are short for a loaded machine.
    let patience = Some(PATIENCE);
    let config =
        redis::AsyncConnectionConfig::new().set_connection_timeout(patience).set_response_timeout(patience);
    let mut raw = client.get_multiplexed_async_connection_with_config(&config).await?;
    let (holder, next) = (caller(&dao, 600), caller(&dao, 600));
    holder.take("a").await?;
    let key = format!("{{{}}}:a", namespace.name);
    let value: String = redis::cmd("GET").arg(&key).query_async(&mut raw).await?;
    let (seconds, _): (u64, u64) = redis::cmd("TIME").query_async(&mut raw).await?;
    let ahead = (seconds + 3600) * 1000;
    // Empty is the time of the fence.
    let moved = value.replacen("|||600|", &format!("||{ahead}|600|"), 1);
    assert_ne!(moved, value);
    redis::cmd("SET").arg(&key).arg(moved).arg("PX").arg(3_600_000).query_async::<()>(&mut raw).await?;
    let met = Instant::now();
    assert!(next.take("a").await.is_err(), "it is not taken for one that ended");
    let taken = async {
        while next.take("a").await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), taken).await?;
    assert!(met.elapsed() >= Duration::from_millis(540), "{:?}", met.elapsed());
    Ok(())
}

/// A client that withdraws a change to a stronger mode holds what it held before, under the old fence.
async fn a_withdrawn_change() -> TestResult {
    let (_namespace, dao) = backend().await?.build().await;
    let (us, others) = (caller(&dao, 60_000), caller(&dao, 60_000));
    let shared = us.take(Claim::shared("a")).await?;
    let change = us.request(Claim::exclusive("a"))?;
    let Acquired::Granted(changed) = dao.acquire(&change).await? else { panic!("no other has it") };
    assert!(changed[0].fence > shared.locks[0].granted.fence);
    assert_eq!(dao.renew(&shared).await?.lost.len(), 1, "it holds something else now");
    assert_eq!(dao.withdraw(&change, Withdraw::Undo).await?, Withdrawn::Left);
    assert!(dao.renew(&shared).await?.lost.is_empty(), "it holds what it held before");
    others.take(Claim::shared("a")).await?;
    assert!(others.take(Claim::exclusive("a")).await.is_err());
    Ok(())
}

/// What is handed over has to be confirmed within two seconds, whatever the lease.
async fn an_offer_is_short() -> TestResult {
    let (_namespace, dao) = backend().await?.build().await;
    // One id alone, and a set with a shared one, go different ways.
    for ids in [vec![Claim::exclusive("a")], vec![Claim::exclusive("b"), Claim::shared("c")]] {
        let (holder, waiter) = (caller(&dao, 60_000), caller(&dao, 60_000));
        let held = holder.take(ids.clone()).await?;
        let mut request = waiter.request(ids.clone())?;
        request.queue = true;
        let Acquired::Queued { mut wakeup, .. } = dao.acquire(&request).await? else { panic!("it is held") };
        dao.release(&held).await?;
        let Wake::Offer(offer) = wakeup.recv().await else { panic!("it was handed over") };
        assert!(offer.remaining.is_some_and(|remaining| remaining <= Duration::from_secs(2)), "{offer:?}");
        let seen = dao.inspect(&request.claims[0].target).await?.holders;
        assert!(seen[0].remaining <= Some(Duration::from_secs(2)), "{seen:?}");
        assert!(seen[0].context == StoredContext::Known(waiter.context), "{seen:?}");
    }
    Ok(())
}

/// The first request of a connection that takes a place: its offer is pushed before its answer was looked at, and counts.
async fn an_offer_before_the_answer() -> TestResult {
    let (namespace, other) = backend().await?.build().await;
    let holder = caller(&other, 60_000);
    for number in 0.. {
        let id = format!("a{number}");
        let held = holder.take(&*id).await?;
        let dao = namespace.open().await;
        let waiter = caller(&dao, 60_000);
        let mut request = waiter.request(&*id)?;
        request.queue = true;
        let target = &request.claims[0].target;
        let mut asking = pin!(dao.acquire(&request));
        let waits = async {
            // Not looked at any more as soon as the server has it.
            while other.inspect(target).await?.waiters.is_empty() {
                if futures_util::poll!(&mut asking).is_ready() {
                    return Ok::<_, BackendError>(false);
                }
            }
            Ok(true)
        };
        if !waits.await? {
            continue; // the answer was too fast
        }
        other.release(&held).await?;
        // The answer to this comes behind the offer.
        assert_eq!(dao.inspect(target).await?.holders.len(), 1);
        let Acquired::Queued { mut wakeup, .. } = asking.await? else { panic!("it was held") };
        let wake = wakeup.recv().await;
        assert!(matches!(wake, Wake::Offer(_)), "{wake:?}");
        return Ok(());
    }
    unreachable!("there are numbers enough")
}

/// Two grants of one context for one id: renewing that with the shorter lease does not cut the other's short.
async fn a_longer_lease() -> TestResult {
    let (_namespace, dao) = backend().await?.build().await;
    let us = caller(&dao, 60_000);
    let long = us.take("a").await?;
    let mut short = long.clone();
    short.lease = Some(Duration::from_secs(1));
    assert!(dao.renew(&short).await?.lost.is_empty());
    let seen = dao.inspect(&long.locks[0].target).await?.holders;
    assert!(seen[0].remaining >= Some(Duration::from_secs(30)), "{seen:?}");
    Ok(())
}

/// A client with a context of its own.
struct Us<'d> {
    dao: &'d RedisLockDao<String, Uuid>,
    context: Uuid,
    lease: Duration,
}

fn caller(dao: &RedisLockDao<String, Uuid>, lease: u64) -> Us<'_> {
    Us { dao, context: Uuid::new_v4(), lease: Duration::from_millis(lease) }
}

impl Us<'_> {
    fn request(&self, ids: impl Into<Wanted>) -> Result<AcquireRequest<String, Uuid>, BadRequest> {
        Ok(AcquireRequest {
            context: self.context,
            attempt: AttemptId::fresh(),
            claims: ClaimSet::new(ids.into().0, Mode::Exclusive)?,
            lease: Some(self.lease),
            owner: Owner::default(),
            queue: false,
            nested: false,
            detached: false,
            weaken: false,
        })
    }

    async fn take(
        &self,
        ids: impl Into<Wanted>,
    ) -> Result<Grant<String, Uuid>, Box<dyn Error + Send + Sync>> {
        let request = self.request(ids)?;
        match self.dao.acquire(&request).await? {
            Acquired::Granted(granted) => {
                Ok(Grant::new(self.context, request.claims, granted, request.lease))
            }
            other => Err(format!("{other:?}").into()),
        }
    }
}

/// One claim or several.
struct Wanted(Vec<Claim<String>>);

impl From<&str> for Wanted {
    fn from(id: &str) -> Self {
        Wanted(vec![Claim::exclusive(id.to_owned())])
    }
}

impl From<Claim<&str>> for Wanted {
    fn from(claim: Claim<&str>) -> Self {
        Wanted(vec![claim.into_claim(Mode::Exclusive)])
    }
}

impl From<Vec<Claim<&str>>> for Wanted {
    fn from(claims: Vec<Claim<&str>>) -> Self {
        Wanted(claims.into_iter().map(|claim| claim.into_claim(Mode::Exclusive)).collect())
    }
}
