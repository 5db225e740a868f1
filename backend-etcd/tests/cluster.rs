//! Three members: a leader that is killed, members that cannot be reached, a minority, compaction, a quota.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use lockcore::{
    BackendErrorKind, LockDao, LockingService, Wait,
    backend::{Acquired, Withdraw},
};
use lockcore_cell::Cell;
use lockcore_conformance::{
    Caller, eventually,
    judge::late,
    race,
    servers::{self, ANSWERS, EtcdCluster, Kind, Mode, Proxy, TestResult, Trial},
};
use lockcore_etcd::{EtcdBuilder, EtcdLockDao};
use serde_json::json;
use uuid::Uuid;

use crate::{
    conformance::Place,
    raw::{metric, number, post, put, try_post},
};

pub(crate) fn trials() -> Vec<Trial> {
    macro_rules! trials {
        ($($name:ident)*) => { vec![$(trial(stringify!($name), &[], $name)),*] };
    }
    let mut all = trials! {
        a_killed_leader_costs_no_lock
        a_member_behind_a_black_hole_is_passed_over
        a_response_that_is_lost_on_its_way_is_no_refusal
        a_frozen_member_hinders_no_opening
        a_minority_grants_nothing
        a_leader_that_is_cut_off_grants_nothing
        compaction_harms_no_waiter
        waiters_share_one_watch
        an_increment_is_lost_by_no_failure
    };
    all.push(trial(
        "without_room_nothing_is_granted",
        &["--quota-backend-bytes=4000000"],
        without_room_nothing_is_granted,
    ));
    // Each has three servers.
    all.into_iter().map(|trial| trial.at_once("cluster", 2)).collect()
}

type Dao = EtcdLockDao<String, Uuid>;

fn trial<F>(name: &str, arguments: &'static [&'static str], test: fn(Rig) -> F) -> Trial
where
    F: Future<Output = TestResult> + 'static,
{
    servers::trial(Kind::Etcd, &format!("cluster::{name}"), move || async move {
        let cluster = EtcdCluster::start(arguments).await?;
        let mut proxies = Vec::new();
        for member in cluster.members() {
            proxies.push(Proxy::start(member.address()).await?);
        }
        let addresses: Vec<String> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
        let place = Place::at(format!("etcd://{}", addresses.join(",")));
        test(Rig { cluster, proxies, place }).await
    })
}

/// Three members, each with a proxy before it.
struct Rig {
    cluster: EtcdCluster,
    proxies: Vec<Proxy>,
    place: Place,
}

impl Rig {
    /// A client whose requests last for as long as usual.
    fn builder(&self) -> EtcdBuilder<String, Uuid> {
        self.place.builder().request_timeout(Duration::from_secs(3)).clock_difference(Duration::from_secs(1))
    }

    async fn dao(&self) -> Arc<Dao> {
        Arc::new(self.builder().open().await.expect("the members answer"))
    }

    fn address(&self, member: usize) -> String {
        self.cluster.members()[member].address()
    }

    /// The position of the leader, as a member sees it once there is one.
    async fn leader(&self, asked: usize) -> usize {
        let all: Vec<usize> = (0..self.proxies.len()).collect();
        let members = [&[asked], &all[..]].concat();
        eventually("there is a leader", async || self.leader_of(&members).await).await
    }

    /// The position of the leader as the first of some members sees it, if it is one of them.
    async fn leader_of(&self, members: &[usize]) -> Option<usize> {
        let status =
            async |member: usize| post(&self.address(member), "/v3/maintenance/status", json!({})).await;
        let leader = status(members[0]).await["leader"].clone();
        for &member in members {
            if status(member).await["header"]["member_id"] == leader {
                return Some(member);
            }
        }
        None
    }
}

fn caller(dao: &Arc<Dao>) -> Caller<Dao> {
    // None ends in a test, however slow the machine is.
    Caller::new(dao.clone(), Duration::from_secs(3600))
}

async fn a_killed_leader_costs_no_lock(rig: Rig) -> TestResult {
    let (one, two) = (rig.dao().await, rig.dao().await);
    let holder = caller(&one);
    let held = holder.take(["a"]).await;
    let leader = rig.leader(0).await;
    rig.cluster.members()[leader].kill().await?;
    assert_eq!(caller(&two).refused(["a"]).await.len(), 1, "what was granted is still held");
    holder.keep(&held).await;
    holder.free(&held).await;
    let next = caller(&two).take(["a"]).await;
    assert!(next.locks[0].granted.fence > held.locks[0].granted.fence);
    rig.cluster.members()[leader].restart().await?;
    Ok(())
}

async fn a_member_behind_a_black_hole_is_passed_over(rig: Rig) -> TestResult {
    let (one, two) = (rig.dao().await, rig.dao().await);
    let before = caller(&one).take(["b"]).await;
    for proxy in &rig.proxies {
        proxy.set(Mode::DropRequests).await;
        let begun = Instant::now();
        let held = caller(&one).take(["a"]).await;
        if begun.elapsed() > 2 * ANSWERS {
            late(format_args!("another member answered after {:?}", begun.elapsed()));
        }
        assert_eq!(caller(&two).refused(["a"]).await.len(), 1);
        caller(&one).free(&held).await;
        proxy.set(Mode::Pass).await;
    }
    caller(&one).free(&before).await;
    caller(&two).take(["a", "b"]).await;
    Ok(())
}

async fn a_response_that_is_lost_on_its_way_is_no_refusal(rig: Rig) -> TestResult {
    let (one, two) = (rig.dao().await, rig.dao().await);
    let before = caller(&one).take(["b"]).await;
    for proxy in &rig.proxies {
        proxy.set(Mode::DropReplies).await;
        let held = caller(&one).take(["a"]).await;
        proxy.set(Mode::Pass).await;
        assert_eq!(caller(&two).refused(["a"]).await.len(), 1);
        caller(&one).free(&held).await;
    }
    caller(&one).free(&before).await;
    caller(&two).take(["a", "b"]).await;
    Ok(())
}

/// It accepts connections: each process that starts would wait for it.
async fn a_frozen_member_hinders_no_opening(rig: Rig) -> TestResult {
    let frozen = &rig.cluster.members()[0];
    frozen.pause().await?;
    eventually("the others have a leader", async || rig.leader_of(&[1, 2]).await).await;
    let opened = eventually("it is opened", async || {
        let opened = rig.builder().open().await;
        match opened {
            Ok(dao) => Some(dao),
            Err(error) if error.is_retryable() => None,
            Err(error) => panic!("{error}"),
        }
    });
    let dao = Arc::new(opened.await);
    let held = caller(&dao).take(["a"]).await;
    frozen.resume().await?;
    caller(&dao).free(&held).await;
    Ok(())
}

/// A member that is cut off from the others answers neither reads nor writes; others are asked instead.
async fn a_minority_grants_nothing(rig: Rig) -> TestResult {
    let dao = rig.dao().await;
    let held = caller(&dao).take(["a"]).await;
    let minority = rig.place.by(format!("etcd://{}", rig.address(0))).builder();
    let minority = minority.request_timeout(Duration::from_secs(3)).timeout(Duration::from_secs(5));
    let minority = Arc::new(minority.open().await?);
    for member in &rig.cluster.members()[1..] {
        member.pause().await?;
    }
    // A process stops some time after it was told to. Once the member knows that it has no leader, it says so at once.
    eventually("the member knows that it is alone", async || {
        let failed = minority.acquire(&caller(&minority).request(["b"])).await.err()?;
        assert!(failed.is_retryable(), "{failed}");
        failed.to_string().contains("no leader").then_some(())
    })
    .await;
    let failed = minority.acquire(&caller(&minority).request(["c"])).await.expect_err("there is no majority");
    assert!(failed.is_retryable() && !failed.in_doubt(), "{failed:?}");
    for member in &rig.cluster.members()[1..] {
        member.resume().await?;
    }
    eventually("there is a majority", async || {
        let asked = minority.acquire(&caller(&minority).request(["a"])).await;
        asked.is_ok_and(|asked| matches!(asked, Acquired::Refused { .. })).then_some(())
    })
    .await;
    caller(&dao).free(&held).await;
    caller(&minority).take(["a", "c"]).await;
    Ok(())
}

/// The old leader takes requests, and never gets them done; they do not arrive late either.
async fn a_leader_that_is_cut_off_grants_nothing(rig: Rig) -> TestResult {
    let dao = rig.dao().await;
    let held = caller(&dao).take(["a"]).await;
    let leader = rig.leader(0).await;
    let old = rig.place.by(format!("etcd://{}", rig.address(leader))).builder();
    let old = old.request_timeout(Duration::from_secs(3)).timeout(Duration::from_secs(5));
    let old = Arc::new(old.open().await?);
    // The table is known there, so that the next request is a write.
    let known = caller(&old).take(["known"]).await;
    rig.cluster.cut_off(leader).await?;
    let late = caller(&old);
    let request = late.request(["b"]);
    let failed = old.acquire(&request).await.expect_err("it has no majority");
    assert!(failed.is_retryable(), "{failed}");
    eventually("the others have a leader", async || {
        let others = (0..rig.proxies.len()).find(|position| *position != leader)?;
        (rig.leader(others).await != leader).then_some(())
    })
    .await;
    // Through all members, of which the old leader may be the first.
    assert_eq!(caller(&dao).refused(["a"]).await.len(), 1, "what was granted is still held");
    late.through(&dao).withdraw(&request, Withdraw::Undo).await;
    let taken = caller(&dao).take(["b"]).await;
    rig.cluster.heal();
    eventually("the old leader follows", async || {
        let asked = old.acquire(&caller(&old).request(["b"])).await.ok()?;
        assert!(matches!(asked, Acquired::Refused { .. }), "{asked:?}");
        Some(())
    })
    .await;
    caller(&dao).free(&taken).await;
    caller(&dao).free(&held).await;
    caller(&old).free(&known).await;
    caller(&old).take(["a", "b", "known"]).await;
    Ok(())
}

/// Versions that are known, and what a watch goes on from, may be compacted.
async fn compaction_harms_no_waiter(rig: Rig) -> TestResult {
    let (one, two) = (rig.dao().await, rig.dao().await);
    let held = caller(&one).take(["a"]).await;
    // The table stays at its revision, while others write and all before is compacted.
    for _ in 0..10 {
        put(&rig.address(0), 1).await;
    }
    let compact = async || {
        let status = post(&rig.address(0), "/v3/maintenance/status", json!({})).await;
        let revision = number(&status["header"]["revision"]);
        post(&rig.address(0), "/v3/kv/compaction", json!({ "revision": revision.to_string() })).await;
    };
    compact().await;
    let mut place = caller(&two).queue(["a"]).await;
    put(&rig.address(0), 1).await;
    compact().await;
    place.still_waits().await;
    caller(&one).free(&held).await;
    place.served().await;
    Ok(())
}

async fn waiters_share_one_watch(rig: Rig) -> TestResult {
    const STREAMS: &str = "etcd_debugging_mvcc_watch_stream_total";
    let (one, two) = (rig.dao().await, rig.dao().await);
    let held = caller(&one).take(["a"]).await;
    let streams = async || {
        let mut sum = 0.0;
        for member in 0..rig.proxies.len() {
            sum += metric(&rig.address(member), STREAMS).await.expect("each member tells it");
        }
        sum
    };
    let mut places = Vec::new();
    for _ in 0..8 {
        places.push(caller(&two).queue(["a"]).await);
    }
    eventually("the process has a stream", async || (streams().await == 1.0).then_some(())).await;
    caller(&one).free(&held).await;
    for mut place in places {
        let served = place.served().await;
        eventually("one is left", async || (streams().await <= 1.0).then_some(())).await;
        place.caller.free(&served).await;
    }
    eventually("it ends", async || (streams().await == 0.0).then_some(())).await;
    Ok(())
}

/// Several processes add to a number under a lock, while members are killed and cut off.
async fn an_increment_is_lost_by_no_failure(rig: Rig) -> TestResult {
    const PROCESSES: usize = 4;
    const TIMES: usize = 10;
    let mut services = Vec::new();
    for _ in 0..PROCESSES {
        services.push(LockingService::new(rig.builder().open().await?));
    }
    let (sum, times) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (services, is_over) = (Arc::new(services), Arc::new(AtomicBool::new(false)));
    let work = race(PROCESSES, {
        let (sum, times, is_over) = (sum.clone(), times.clone(), is_over.clone());
        move |number| {
            let (services, sum) = (services.clone(), sum.clone());
            let (times, is_over) = (times.clone(), is_over.clone());
            async move {
                // Until each fault was met.
                for time in 0.. {
                    if time >= TIMES && is_over.load(SeqCst) {
                        break;
                    }
                    let add = async || {
                        let seen = sum.load(SeqCst);
                        tokio::time::sleep(Duration::from_millis(2)).await;
                        sum.store(seen + 1, SeqCst);
                        Ok::<_, std::io::Error>(())
                    };
                    let added =
                        services[number].wait(Wait::up_to(4 * ANSWERS)).with_locks(["sum"], add).await;
                    added.expect("the lock is had in time, and not lost");
                    times.fetch_add(1, SeqCst);
                }
            }
        }
    });
    let came = || -> u64 {
        rig.proxies.iter().map(Proxy::counts).map(|counts| counts.connections + counts.requests).sum()
    };
    let faults = async {
        for (number, proxy) in rig.proxies.iter().enumerate() {
            let member = &rig.cluster.members()[number];
            for mode in [Mode::DropReplies, Mode::Reset] {
                // By which member a request goes is not known.
                for proxy in &rig.proxies {
                    proxy.set(mode).await;
                }
                let before = came();
                eventually("a request meets it", async || (came() > before).then_some(())).await;
                for proxy in &rig.proxies {
                    proxy.set(Mode::Pass).await;
                }
            }
            let leader = rig.leader(number).await;
            rig.cluster.members()[leader].kill().await.expect("it runs");
            rig.cluster.members()[leader].restart().await.expect("it starts again");
            proxy.redirect(member.address());
        }
        is_over.store(true, SeqCst);
    };
    tokio::join!(work, faults);
    assert_eq!(sum.load(SeqCst), times.load(SeqCst));
    Ok(())
}

async fn without_room_nothing_is_granted(rig: Rig) -> TestResult {
    let (one, two) = (rig.dao().await, rig.dao().await);
    let held = caller(&one).take(["a"]).await;
    while put(&rig.address(0), 1_000_000).await {}
    for _ in 0..2 {
        let second = Duration::from_secs(1);
        let hasty = Arc::new(rig.builder().timeout(3 * second).open().await?);
        let failed = hasty.acquire(&caller(&hasty).request(["b"])).await.expect_err("there is no room");
        assert_eq!(failed.kind(), BackendErrorKind::Unavailable, "{failed}");
        assert!(failed.to_string().contains("space exceeded"), "{failed}");
    }
    let findings = rig.builder().keys().await?.findings();
    assert!(findings.iter().any(|found| found.detail.contains("NOSPACE")), "{findings:?}");
    // As the pages of etcd say.
    let status = post(&rig.address(0), "/v3/maintenance/status", json!({})).await;
    let revision = number(&status["header"]["revision"]);
    post(&rig.address(0), "/v3/kv/compaction", json!({ "revision": revision.to_string(), "physical": true }))
        .await;
    for member in 0..rig.proxies.len() {
        post(&rig.address(member), "/v3/maintenance/defragment", json!({})).await;
    }
    let alarms = post(&rig.address(0), "/v3/maintenance/alarm", json!({ "action": "GET" })).await;
    for alarm in alarms["alarms"].as_array().expect("there is one") {
        let disarm =
            json!({ "action": "DEACTIVATE", "memberID": alarm["memberID"], "alarm": alarm["alarm"] });
        let disarmed = try_post(&rig.address(0), "/v3/maintenance/alarm", &disarm, None).await?;
        assert_eq!(disarmed.0, 200, "{}", disarmed.1);
    }
    assert_eq!(caller(&two).refused(["a"]).await.len(), 1, "it is still held");
    caller(&one).free(&held).await;
    caller(&two).take_soon(["a", "b"]).await;
    Ok(())
}
