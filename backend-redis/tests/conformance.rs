//! The conformance suite on the Redis backend, a namespace for each store; and what only Redis shows.

use std::{error::Error, pin::pin, time::Duration};

use lockcore::{
    BackendError, BadRequest, Claim, ClaimSet, Grant, IntoClaim, LockDao, Mode, Owner, StoredContext,
    backend::{AcquireRequest, Acquired, AttemptId, Wake, Withdraw, Withdrawn},
};
use lockcore_conformance::{
    Backend,
    checks::contexts::odd_contexts_are_kept_apart,
    servers::{self, Cluster, Kind, Server, TestResult, Trial, checks, shared, trial},
};
use lockcore_redis::RedisLockDao;
use tokio::sync::OnceCell;
use uuid::Uuid;

use crate::server::{
    place::{Dao, Failure, Place},
    topology::old_server,
};

/// The server at a URL, with a namespace for each store.
struct Namespaces(String);

impl Backend for Namespaces {
    type Dao = Dao;
    type Guard = Place;

    async fn build(&self) -> (Place, Dao) {
        let place = Place::at(&*self.0).patient_for(servers::ANSWERS);
        let dao = by_test_clock(&place, Duration::ZERO).await;
        (place, dao)
    }

    async fn reopen(&self, place: &Place) -> Option<Dao> {
        Some(by_test_clock(place, Duration::ZERO).await)
    }

    async fn reopen_ahead(&self, place: &Place, ahead: Duration) -> Option<Dao> {
        Some(by_test_clock(place, ahead).await)
    }

    async fn advance(&self, place: &Place, by: Duration) -> bool {
        if !by.is_zero() {
            let dao = by_test_clock(place, Duration::ZERO).await;
            dao.advance(by).await.expect("the server answers");
        }
        true
    }

    async fn spoil(&self, place: &Place, id: &str, way: usize) -> bool {
        let beside = |of: &str| place.base(&format!("/{of}:{id}"));
        let commands = match way {
            0 => vec![
                vec!["DEL".to_owned(), place.key(id)],
                vec!["RPUSH".to_owned(), place.key(id), "x".to_owned()],
            ],
            1 => vec![vec!["SET".to_owned(), beside("b"), "x".to_owned()]],
            2 => vec![vec!["SET".to_owned(), beside("n"), "x".to_owned()]],
            _ => return false,
        };
        // The node of a cluster is not known here.
        let Ok(raw) = place.raw().await else { return false };
        for command in commands {
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            raw.send::<redis::Value>(&command).await.expect("the server answers");
        }
        true
    }
}

async fn by_test_clock(place: &Place, ahead: Duration) -> Dao {
    place.builder().test_clock(ahead).open().await.expect("the server answers")
}

/// The server that all tests share.
async fn usual() -> Result<Namespaces, Failure> {
    Ok(Namespaces(shared(Kind::Redis).await?.url()))
}

/// A cluster, where each namespace may lie on another node: the one in the environment, else one of this process. The guard of
/// processes ends it.
async fn cluster() -> Result<Namespaces, Failure> {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    let start = || async {
        match Cluster::from_environment() {
            Some(running) => Ok(running),
            None => Cluster::start().await,
        }
    };
    let cluster = CLUSTER.get_or_try_init(start).await?;
    Ok(Namespaces(format!("redis+cluster://{}", cluster.addresses())))
}

/// The oldest release that is supported.
async fn oldest() -> Result<Namespaces, Failure> {
    static OLDEST: OnceCell<Server> = OnceCell::const_new();
    Ok(Namespaces(OLDEST.get_or_try_init(|| old_server("")).await?.url()))
}

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    let others = checks("cluster", cluster).chain(checks("oldest", oldest)).map(Trial::thorough);
    let own = [
        trial(Kind::Redis, "own::odd_contexts", odd_contexts),
        trial(Kind::Redis, "own::a_withdrawn_change", a_withdrawn_change),
        trial(Kind::Redis, "own::an_offer_is_short", an_offer_is_short).of_liveness(),
        trial(Kind::Redis, "own::a_longer_lease", a_longer_lease),
        trial(Kind::Redis, "own::an_offer_before_the_answer", an_offer_before_the_answer),
    ];
    checks("redis", usual).chain(others).chain(own)
}

/// Contexts of any text, which the suite's stores do not have.
async fn odd_contexts() -> TestResult {
    let server = shared(Kind::Redis).await?;
    let builder =
        RedisLockDao::<String, String>::builder().url(server.url()).response_timeout(servers::ANSWERS);
    let dao = builder.namespace(Uuid::new_v4().to_string()).open().await?;
    odd_contexts_are_kept_apart(&dao).await;
    Ok(())
}

/// A client that withdraws a change to a stronger mode holds what it held before, under the old fence.
async fn a_withdrawn_change() -> TestResult {
    let (_place, dao) = usual().await?.build().await;
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
    let (_place, dao) = usual().await?.build().await;
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
    let (place, other) = usual().await?.build().await;
    let holder = caller(&other, 60_000);
    for number in 0.. {
        let id = format!("a{number}");
        let held = holder.take(&*id).await?;
        let dao = place.open().await?;
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
    let (_place, dao) = usual().await?.build().await;
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
