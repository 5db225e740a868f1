//! Responses that are lost or forged, requests that are late, members whose clocks differ.

use std::{
    error::Error,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use lockcore::{BackendErrorKind, LockDao, LockingService, Target, Wait, backend::Withdraw};
use lockcore_cell::{Cell, Change};
use lockcore_conformance::{
    Caller, PATIENCE,
    cell::{Adapter, Fault as Met},
    eventually,
    judge::late,
    servers::{self, Kind, TestResult, Trial, cell_checks, shared},
};
use lockcore_etcd::{EtcdBuilder, EtcdLockDao, Keys};
use serde_json::json;
use tokio::{join, sync::Notify, time::timeout};
use uuid::Uuid;

use crate::{
    conformance::{LEASE, Place},
    front::{Fault, Front},
    raw::post,
};

pub(crate) const RANGE: &str = "/v3/kv/range";
pub(crate) const TXN: &str = "/v3/kv/txn";

pub(crate) fn trials() -> Vec<Trial> {
    macro_rules! trials {
        ($($name:ident)*) => { vec![$(trial(concat!("faults::", stringify!($name)), $name)),*] };
    }
    let own = trials! {
        an_error_after_the_write_is_no_refusal
        a_write_that_is_sent_twice_is_done_once
        a_write_after_the_withdrawal_takes_nothing
        what_is_refused_before_it_is_done_is_sent_to_another_member
        what_may_be_done_is_sent_to_no_other_member
        what_is_no_answer_of_etcd_is_an_error
        another_cluster_is_refused
        members_of_two_clusters_are_refused
        an_earlier_state_is_refused
        a_new_token_that_is_refused_is_no_wrong_password
        a_stream_that_is_cut_off_is_not_the_members_fault
        a_key_of_another_program_is_passed_over
        a_value_of_another_program_concerns_its_own_ids
        clocks_that_differ_too_much_are_named
        a_proxy_tells_no_time
        no_lease_ends_early_by_clocks_that_differ
        a_fail_over_keeps_the_time_within_its_bounds
        a_member_that_is_not_there_is_named
        a_watch_tells_of_changes
        sixteen_processes_lose_nothing
    };
    let cells = cell_checks("front", async || Ok(Fronted(shared(Kind::Etcd).await?.address())));
    own.into_iter().chain(cells).collect()
}

/// A member behind fronts.
pub(crate) struct Rig {
    pub(crate) member: String,
    pub(crate) one: Front,
    two: Front,
}

type Dao = EtcdLockDao<String, Uuid>;

pub(crate) fn trial<F>(name: &str, test: fn(Rig) -> F) -> Trial
where
    F: Future<Output = TestResult> + 'static,
{
    servers::trial(Kind::Etcd, name, move || async move {
        test(Rig::before(shared(Kind::Etcd).await?.address()).await?).await
    })
}

impl Rig {
    pub(crate) async fn before(member: String) -> io::Result<Self> {
        let (one, two) = (Front::before(&member).await?, Front::before(&member).await?);
        Ok(Rig { member, one, two })
    }

    /// Through both fronts, the first one first.
    fn both(&self) -> Place {
        Place::at(format!("etcd://{},{}", self.one.address(), self.two.address()))
    }

    /// Through the first one.
    pub(crate) fn first(&self) -> Place {
        Place::at(format!("etcd://{}", self.one.address()))
    }

    /// The same namespace beside the fronts.
    pub(crate) fn beside(&self, place: &Place) -> EtcdBuilder<String, Uuid> {
        place.builder().url(format!("etcd://{}", self.member))
    }
}

async fn opened(builder: EtcdBuilder<String, Uuid>) -> Arc<Dao> {
    Arc::new(builder.open().await.expect("the member answers"))
}

fn caller(dao: &Arc<Dao>) -> Caller<Dao> {
    Caller::new(dao.clone(), Duration::from_secs(60))
}

/// The cells behind a front that steps its clock and causes faults.
struct Fronted(String);

impl Adapter for Fronted {
    type Cell = Keys;
    type Place = (Front, Place);

    async fn place(&self) -> (Front, Place) {
        let front = Front::before(&self.0).await.expect("a port is free");
        let place = Place::at(format!("etcd://{}", front.address()));
        (front, place)
    }

    async fn open(&self, (_, place): &(Front, Place)) -> Keys {
        // With the usual allowance for clocks.
        let builder = place.builder().clock_difference(Duration::from_secs(1));
        builder.keys().await.expect("the member answers")
    }

    async fn fault(&self, (front, _): &(Front, Place), fault: Met) -> bool {
        front.next(
            TXN,
            match fault {
                Met::LosesResponse => Fault::LoseResponse,
                Met::IsTurnedAway => Fault::Refuse(503, 14, "etcdserver: leader changed"),
            },
        );
        true
    }

    async fn step(&self, (front, _): &(Front, Place), seconds: i64) -> bool {
        front.step_date(seconds);
        true
    }
}

/// The write that exceeds the quota is made, and reported as if it was not; so may be one before a change of the leader.
async fn an_error_after_the_write_is_no_refusal(rig: Rig) -> TestResult {
    let place = rig.first();
    let (dao, other) = (opened(place.builder()).await, opened(rig.beside(&place)).await);
    for (status, code, message) in [
        (403, 8, "etcdserver: mvcc: database space exceeded"),
        (503, 14, "etcdserver: leader changed"),
        (503, 14, "etcdserver: request timed out"),
        (500, 13, "anything"),
    ] {
        rig.one.next(TXN, Fault::DoAndRefuse(status, code, message));
        let held = caller(&dao).take(["a"]).await;
        assert_eq!(caller(&other).refused(["a"]).await.len(), 1, "{message}");
        rig.one.next(TXN, Fault::DoAndRefuse(status, code, message));
        caller(&dao).free(&held).await;
        let next = caller(&other).take(["a"]).await;
        caller(&other).free(&next).await;
    }
    assert!(rig.one.is_over());
    Ok(())
}

async fn a_write_that_is_sent_twice_is_done_once(rig: Rig) -> TestResult {
    let place = rig.first();
    let (dao, other) = (opened(place.builder()).await, opened(rig.beside(&place)).await);
    rig.one.next(TXN, Fault::Twice);
    let held = caller(&dao).take(["a"]).await;
    assert_eq!(caller(&other).refused(["a"]).await.len(), 1);
    rig.one.next(TXN, Fault::Twice);
    caller(&dao).free(&held).await;
    let next = caller(&other).take(["a"]).await;
    assert!(next.locks[0].granted.fence > held.locks[0].granted.fence);
    assert!(rig.one.is_over());
    Ok(())
}

async fn a_write_after_the_withdrawal_takes_nothing(rig: Rig) -> TestResult {
    let place = rig.first();
    let (dao, other) = (opened(place.builder()).await, opened(rig.beside(&place)).await);
    // The table is known, so that the next request is the write.
    let before = caller(&dao).take(["b"]).await;
    let gate = Arc::new(Notify::new());
    rig.one.next(TXN, Fault::Hold(gate.clone()));
    let late = caller(&dao);
    let request = late.request(["a"]);
    let acquire = dao.acquire(&request);
    let held_back = eventually("the write is held back", async || rig.one.is_over().then_some(()));
    tokio::select! {
        biased;
        outcome = acquire => panic!("{outcome:?}"),
        () = held_back => {}
    }
    late.through(&other).withdraw(&request, Withdraw::Undo).await;
    gate.notify_one();
    let taken = caller(&other).take(["a"]).await;
    caller(&other).free(&taken).await;
    caller(&dao).free(&before).await;
    caller(&other).take(["a", "b"]).await;
    Ok(())
}

async fn what_is_refused_before_it_is_done_is_sent_to_another_member(rig: Rig) -> TestResult {
    let place = rig.both();
    let keys = place.builder().keys().await?;
    let (mut first, mut second) = (&rig.one, &rig.two);
    for (name, refusal) in [
        ("a", Fault::Refuse(503, 14, "etcdserver: no leader")),
        ("b", Fault::Refuse(404, 5, "Not Found")),
        ("c", Fault::Refuse(404, 0, "")),
        ("d", Fault::Refuse(400, 0, "Client sent an HTTP request to an HTTPS server.")),
        ("e", Fault::Refuse(302, 0, "")),
        ("f", Fault::Refuse(501, 12, "unknown service")),
    ] {
        let (before, read) = (second.requests_of(TXN), second.requests_of(RANGE));
        first.next(TXN, refusal);
        let written = keys.replace(name, None, "1".into()).await?;
        assert!(matches!(written, lockcore_cell::Written::Done(_)), "{written:?}");
        assert_eq!(second.requests_of(TXN), before + 1, "{name}");
        // The next ones go there as well.
        keys.read(name, None).await?;
        assert_eq!(second.requests_of(RANGE), read + 1, "{name}");
        std::mem::swap(&mut first, &mut second);
    }
    // What all say is reported.
    for front in [first, second] {
        front.next(TXN, Fault::Refuse(404, 5, "Not Found"));
    }
    let failed = keys.replace("g", None, "1".into()).await.expect_err("there is no gateway");
    assert!(failed.kind() == BackendErrorKind::Misconfigured && !failed.in_doubt(), "{failed}");
    Ok(())
}

/// It would be refused there, as if another process had written.
async fn what_may_be_done_is_sent_to_no_other_member(rig: Rig) -> TestResult {
    let place = rig.both();
    let keys = place.builder().keys().await?;
    keys.now().await?;
    rig.one.next(TXN, Fault::DoAndRefuse(503, 14, "etcdserver: leader changed"));
    let failed =
        keys.replace("a", None, "1".into()).await.expect_err("the response does not say that it is done");
    assert!(failed.in_doubt() && failed.is_retryable(), "{failed}");
    assert_eq!(rig.two.requests_of(TXN), 0);
    // The other one comes first now.
    rig.two.next(TXN, Fault::DoAndRefuse(403, 8, "etcdserver: mvcc: database space exceeded"));
    let failed =
        keys.replace("c", None, "1".into()).await.expect_err("the response does not say that it is done");
    assert!(failed.in_doubt() && failed.is_retryable(), "{failed}");
    assert_eq!(rig.one.requests_of(TXN), 1);
    let keys =
        place.by(format!("etcd://{},{}", rig.two.address(), rig.one.address())).builder().keys().await?;
    keys.now().await?;
    rig.two.next(TXN, Fault::LoseResponse);
    let failed = keys.replace("b", None, "1".into()).await.expect_err("the response is lost");
    assert!(failed.in_doubt() && failed.is_retryable(), "{failed}");
    assert_eq!(rig.one.requests_of(TXN), 1);
    assert!(matches!(keys.read("a", None).await?, lockcore_cell::Found::Changed(..)));
    Ok(())
}

/// Another server at that port, or a proxy, may answer anything: it is no absence and no refusal.
async fn what_is_no_answer_of_etcd_is_an_error(rig: Rig) -> TestResult {
    let keys = rig.first().builder().keys().await?;
    keys.now().await?;
    for body in ["{}", "null", "<html></html>", "{\"header\":{}}", ""] {
        rig.one.next(TXN, Fault::Answer(body.to_owned()));
        let failed = keys.replace("a", None, "1".into()).await.expect_err(body);
        assert!(failed.in_doubt() && failed.is_retryable(), "{failed}");
        rig.one.next(RANGE, Fault::Answer(body.to_owned()));
        let failed = keys.read("a", None).await.expect_err(body);
        assert!(failed.is_retryable(), "{failed}");
    }
    // A transaction of which a part is missing.
    rig.one.next(TXN, Fault::Answer(header(&rig, u64::MAX / 2).await));
    let both = ["a", "b"].map(|name| (name.to_owned(), None));
    let failed = keys.read_all(&both).await.expect_err("it says nothing of them");
    assert!(failed.is_retryable() && !failed.in_doubt(), "{failed}");
    Ok(())
}

async fn another_cluster_is_refused(rig: Rig) -> TestResult {
    let keys = rig.first().builder().keys().await?;
    keys.now().await?;
    let other = "{\"header\":{\"cluster_id\":\"1\",\"revision\":\"7\"}}";
    rig.one.next(TXN, Fault::Answer(other.to_owned()));
    let failed = keys.replace("a", None, "1".into()).await.expect_err("it is another cluster");
    assert!(failed.kind() == BackendErrorKind::Misconfigured && failed.in_doubt(), "{failed}");
    // Until it is opened again.
    let failed = keys.replace("a", None, "1".into()).await.expect_err("it was another cluster");
    assert!(failed.kind() == BackendErrorKind::Misconfigured && !failed.in_doubt(), "{failed}");
    keys.read("a", None).await.expect_err("it was another cluster");
    rig.first().builder().keys().await?.read("a", None).await?;
    Ok(())
}

/// An answer of the member's cluster that says no more than that it has a revision.
async fn header(rig: &Rig, revision: u64) -> String {
    let status = post(&rig.member, "/v3/maintenance/status", json!({})).await;
    json!({ "header": { "cluster_id": status["header"]["cluster_id"], "revision": revision.to_string() } })
        .to_string()
}

/// A snapshot was restored: versions that are known come back.
async fn an_earlier_state_is_refused(rig: Rig) -> TestResult {
    let opened = async || rig.first().builder().keys().await.expect("the member answers");
    let keys = opened().await;
    keys.replace("a", None, "1".into()).await?;
    keys.read("a", None).await?;
    rig.one.next(RANGE, Fault::Answer(header(&rig, 1).await));
    let failed = keys.read("a", None).await.expect_err("it is an earlier state");
    assert!(failed.kind() == BackendErrorKind::Misconfigured && !failed.in_doubt(), "{failed}");
    // Until it is opened again.
    keys.read("a", None).await.expect_err("it was an earlier state");
    let keys = opened().await;
    keys.read("a", None).await?;
    rig.one.next(TXN, Fault::Answer(header(&rig, 1).await));
    let failed = keys.replace("b", None, "1".into()).await.expect_err("it is an earlier state");
    assert!(failed.kind() == BackendErrorKind::Misconfigured && failed.in_doubt(), "{failed}");
    // A request that was sent before, and is answered later.
    let keys = Arc::new(opened().await);
    keys.read("a", None).await?;
    let (gate, late) = (Arc::new(Notify::new()), keys.clone());
    rig.one.next(RANGE, Fault::AnswerLate(gate.clone()));
    let late = tokio::spawn(async move { late.read("a", None).await });
    eventually("the answer is held back", async || rig.one.is_over().then_some(())).await;
    keys.replace("c", None, "1".into()).await?;
    gate.notify_one();
    late.await??;
    Ok(())
}

/// A member that has not heard of the token yet may refuse it.
async fn a_new_token_that_is_refused_is_no_wrong_password(rig: Rig) -> TestResult {
    let place = Place::at(format!("etcd://app:hunter2@{}", rig.one.address()));
    let keys = place.builder().keys().await?;
    keys.now().await?;
    let (login, refusal) =
        ("/v3/auth/authenticate", Fault::Refuse(401, 16, "etcdserver: invalid auth token"));
    let logins = rig.one.requests_of(login);
    rig.one.next(TXN, refusal.clone());
    keys.replace("b", None, "1".into()).await?;
    assert_eq!(rig.one.requests_of(login), logins + 1);
    for _ in 0..2 {
        rig.one.next(TXN, refusal.clone());
    }
    let failed = keys.replace("a", None, "1".into()).await.expect_err("it is refused");
    assert!(rig.one.is_over());
    assert!(failed.kind() == BackendErrorKind::Unavailable && !failed.in_doubt(), "{failed}");
    keys.replace("a", None, "1".into()).await?;
    Ok(())
}

/// What lies before a member may pass on all but streams.
async fn a_stream_that_is_cut_off_is_not_the_members_fault(rig: Rig) -> TestResult {
    let keys = rig.both().builder().keys().await?;
    let cells = [("a".to_owned(), None)];
    let watched = eventually("it is tried", async || (rig.one.requests_of("/v3/watch") > 2).then_some(()));
    tokio::select! {
        () = keys.changed(&cells) => panic!("nothing is told"),
        () = watched => {}
    }
    assert_eq!(rig.two.requests_of("/v3/watch"), 0);
    Ok(())
}

async fn a_key_of_another_program_is_passed_over(rig: Rig) -> TestResult {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let place = rig.first();
    let keys = place.builder().keys().await?;
    let start = format!("lockcore/{}/session/", place.namespace);
    for end in [&b"\x80"[..], b"b\xff"] {
        let key = BASE64_STANDARD.encode([start.as_bytes(), end].concat());
        post(&rig.member, "/v3/kv/put", json!({ "key": key, "value": "" })).await;
    }
    for name in ["session/a", "session/c"] {
        keys.replace(name, None, "1".into()).await?;
    }
    let page = keys.list("session", None).await?;
    let names: Vec<&str> = page.cells.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["session/a", "session/c"]);
    Ok(())
}

/// The release of another id whose waiter wants that one, too, is made.
async fn a_value_of_another_program_concerns_its_own_ids(rig: Rig) -> TestResult {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let place = rig.first();
    let locks = LockingService::new(place.builder().open().await?);
    let held = locks.lock(["a"]).await?;
    let waiter = locks.clone();
    let waiting =
        tokio::spawn(
            async move { waiter.wait(Wait::up_to(PATIENCE)).run_locked(["a", "b"], async || {}).await },
        );
    let (a, admin) = (Target::Id("a".to_owned()), locks.admin());
    eventually("it waits", async || admin.inspect(&a).await.ok().filter(|seen| !seen.waiters.is_empty()))
        .await;
    let key = BASE64_STANDARD.encode(format!("lockcore/{}/id/x62", place.namespace));
    post(&rig.member, "/v3/kv/put", json!({ "key": key, "value": "bWluZQ==" })).await;
    held.release().await?;
    assert!(waiting.await?.is_err(), "b is not known");
    let error = locks.lock(["b"]).await.expect_err("it is not known");
    // Not in the message, which may be logged.
    let mut causes = std::iter::successors(error.source(), |&cause| cause.source());
    assert!(causes.any(|cause| cause.to_string().contains("\"id/x62\"")), "{error:?}");
    locks.lock(["a"]).await?.release().await?;
    Ok(())
}

/// Before the second is asked for anything else.
async fn members_of_two_clusters_are_refused(rig: Rig) -> TestResult {
    let other = "{\"header\":{\"cluster_id\":\"1\"}}";
    rig.two.next("/v3/maintenance/status", Fault::Answer(other.to_owned()));
    let keys = rig.both().builder().keys().await?;
    eventually("the other cluster is noticed", async || {
        let failed = keys.read("a", None).await.err()?;
        assert!(failed.kind() == BackendErrorKind::Misconfigured && !failed.in_doubt(), "{failed}");
        Some(())
    })
    .await;
    assert!(rig.two.requests().iter().all(|request| request.first.contains("/v3/maintenance/status")));
    Ok(())
}

async fn clocks_that_differ_too_much_are_named(rig: Rig) -> TestResult {
    let named = |keys: &Keys| keys.findings().iter().any(|found| found.check == "clocks");
    rig.two.step_date(4);
    eventually("the clocks are compared", async || {
        // Both have to tell the time about now.
        let opened = rig.both().builder().clock_difference(Duration::from_secs(1)).keys();
        let keys = opened.await.expect("the member answers");
        tokio::time::sleep(Duration::from_millis(200)).await;
        let failed = keys.now().await.err()?;
        assert!(failed.kind() == BackendErrorKind::Unavailable && !failed.in_doubt(), "{failed}");
        assert!(failed.to_string().contains("clock_difference"), "{failed}");
        named(&keys).then_some(())
    })
    .await;
    let patient = rig.both().builder().clock_difference(Duration::from_secs(5)).keys().await?;
    patient.now().await?;
    assert!(!named(&patient));
    Ok(())
}

async fn a_proxy_tells_no_time(rig: Rig) -> TestResult {
    rig.one.is_proxy();
    let keys = rig.first().builder().keys().await?;
    let failed = keys.now().await.expect_err("no response tells the time");
    assert_eq!(failed.kind(), BackendErrorKind::Unavailable, "{failed}");
    assert!(failed.to_string().contains("Date"), "{failed}");
    assert!(!keys.replace("a", None, "1".into()).await.expect_err("nothing is sent").in_doubt());
    Ok(())
}

/// Whichever of two processes has the faster clock: a lease lasts for as long as it says.
async fn no_lease_ends_early_by_clocks_that_differ(rig: Rig) -> TestResult {
    rig.two.step_date(1);
    for [holder, other] in [[&rig.one, &rig.two], [&rig.two, &rig.one]] {
        let place = Place::at(format!("etcd://{}", holder.address()));
        let usual = || place.builder().clock_difference(Duration::from_secs(1));
        let (dao, rival) =
            (opened(usual()).await, opened(usual().url(format!("etcd://{}", other.address()))).await);
        // Narrow bounds are the hard case.
        for dao in [&dao, &rival] {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(1_500) {
                let one = caller(dao);
                let held = one.take(["warm"]).await;
                one.free(&held).await;
            }
        }
        let taken = Instant::now();
        caller(&dao).with_lease(LEASE).take(["a"]).await;
        caller(&rival).take_soon(["a"]).await;
        assert!(taken.elapsed() >= LEASE, "taken over after {:?}", taken.elapsed());
    }
    Ok(())
}

async fn a_fail_over_keeps_the_time_within_its_bounds(rig: Rig) -> TestResult {
    rig.two.step_date(1);
    let place = rig.both();
    let keys = place.builder().clock_difference(Duration::from_secs(1)).keys().await?;
    // The middle between the two clocks.
    let is_within = async |keys: &Keys| {
        let now =
            || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970") + Duration::from_millis(500);
        let before = now().as_micros() as u64;
        let told = keys.now().await.expect("a member answers");
        assert!(told.lo <= now().as_micros() as u64 && before <= told.hi, "{told:?}, {before}");
    };
    for front in [&rig.one, &rig.two, &rig.one, &rig.two] {
        for _ in 0..20 {
            keys.read("a", None).await?;
            is_within(&keys).await;
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
        front.next(RANGE, Fault::Refuse(503, 14, "etcdserver: no leader"));
        keys.read("a", None).await?;
        assert!(front.is_over(), "the other one is asked from now on");
        is_within(&keys).await;
    }
    Ok(())
}

async fn a_member_that_is_not_there_is_named(rig: Rig) -> TestResult {
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
    let builder = EtcdLockDao::<String, Uuid>::builder().url(format!("etcd://app:hunter2@{closed}/locks"));
    let failed = builder.open().await.expect_err("none listens there");
    assert!(failed.kind() == BackendErrorKind::Unavailable && !failed.in_doubt(), "{failed}");
    let shown = format!("{failed} {failed:?}");
    assert!(shown.contains(&closed.to_string()) && !shown.contains("hunter2"), "{shown}");
    // With others there it is passed over.
    let place = Place::at(format!("etcd://{closed},{}", rig.member));
    caller(&opened(place.builder()).await).take(["a"]).await;
    Ok(())
}

/// Ends when a change of one of these cells is told.
async fn told<const N: usize>(keys: &Keys, cells: [(&str, Option<u64>); N]) {
    let cells = cells.map(|(name, known)| (name.to_owned(), known));
    if timeout(PATIENCE, keys.changed(&cells)).await.is_err() {
        late(format_args!("a change of one of {cells:?} is told"));
    }
}

/// Waiters look by themselves as well, so that nothing else shows it.
async fn a_watch_tells_of_changes(rig: Rig) -> TestResult {
    let place = Place::at(format!("etcd://{}", rig.member));
    let (keys, other) = (place.builder().keys().await?, place.builder().keys().await?);
    let [table, one, two] = ["table", "id/61", "id/62"];
    let written = async |name: &str, at: Option<u64>| match other.replace(name, at.as_ref(), "1".into()).await
    {
        Ok(lockcore_cell::Written::Done(version)) => version,
        failed => panic!("its condition holds: {failed:?}"),
    };
    // Once, when the stream is opened for each of the two places: nothing is known of what was before.
    told(&keys, [(one, None)]).await;
    for name in [table, one] {
        let first = join!(told(&keys, [(name, None)]), written(name, None)).1;
        let second = join!(told(&keys, [(two, None), (name, Some(first))]), written(name, Some(first))).1;
        // What is over is told, too.
        told(&keys, [(name, Some(first)), (two, None)]).await;
        let removed = async { other.remove(name).await.expect("the member answers") };
        join!(told(&keys, [(name, Some(second))]), removed);
        told(&keys, [(name, Some(second))]).await;
    }
    // A step of two is told of each.
    let both = [one, two].map(|name| Change { name: name.to_owned(), at: None, content: "1".into() });
    let replaced = async { other.replace_all(&both).await.expect("the member answers") };
    let lockcore_cell::Written::Done(versions) = join!(told(&keys, [(two, None)]), replaced).1 else {
        panic!("neither is there");
    };
    // What others wait for ends nothing, nor does a session; nor what is known. An empty list has nothing to wait for.
    let known = written(one, Some(versions[0])).await;
    told(&keys, [(one, Some(known - 1))]).await;
    let cells = [(two.to_owned(), Some(u64::MAX)), (one.to_owned(), Some(known))];
    let (waits, never) = (keys.changed(&cells), keys.changed(&[]));
    let others = async {
        written("session/a", None).await;
        join!(told(&keys, [(table, None)]), written(table, None));
    };
    tokio::select! {
        biased;
        () = waits => panic!("neither has changed"),
        () = never => panic!("there is nothing that could change"),
        () = others => {}
    }
    Ok(())
}

async fn sixteen_processes_lose_nothing(rig: Rig) -> TestResult {
    let (place, number) = (rig.first(), Arc::new(AtomicU64::new(0)));
    let mut workers = Vec::new();
    for _ in 0..16 {
        let (dao, number) = (opened(rig.beside(&place)).await, number.clone());
        workers.push(tokio::spawn(async move {
            for _ in 0..4 {
                let one = caller(&dao);
                let held = one.take_in_turn(["number"]).await;
                let seen = number.load(SeqCst);
                tokio::task::yield_now().await;
                number.store(seen + 1, SeqCst);
                one.free(&held).await;
            }
        }));
    }
    for worker in workers {
        worker.await?;
    }
    assert_eq!(number.load(SeqCst), 64);
    Ok(())
}
