//! Every way in which a Redis can be reached and set up: the same promises on all of them.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use lockcore::{BackendErrorKind, BreakMode, LockDao, Severity};
use lockcore_conformance::{
    Store, eventually,
    servers::{Cluster, Kind, Server, ServerError, TestResult, Watched, certificates},
    store::{exclusive, id, shared, slot},
};

use lockcore_redis::TlsVerify;

use super::{
    place::{Failure, Place},
    topology::{Authority, Raw, node_of, old_server, server, socket_server, tls_server, tls_server_with},
};

/// A bit of everything, by two processes' eyes.
async fn tour(place: &Place) -> TestResult {
    let (here, there) = (place.store().await, place.store().await);
    let (us, them) = (here.caller(), there.caller());
    let held = us.take(["a", "b", "c"]).await;
    assert_eq!(them.refused(["b", "d"]).await.len(), 1);
    let mut waiting = them.queue(["c"]).await;
    us.keep(&held).await;
    us.free(&held).await;
    let turn = waiting.offered().await;
    assert!(turn.locks[0].granted.fence > held.locks[2].granted.fence);
    let units = us.take([slot("pool", 2), shared("table")]).await;
    let more = them.take([slot("pool", 2), shared("table")]).await;
    assert_eq!(here.caller().refused([slot("pool", 2)]).await.len(), 1);
    let seen = there.dao().inspect(&id("pool")).await?;
    assert_eq!(seen.holders.len(), 2);
    us.free(&units).await;
    them.free(&more).await;
    them.free(&turn).await;
    assert!(here.dao().list(&lockcore::Page::default()).await?.ids.is_empty());
    no_error_found(&here).await
}

/// The doctor has nothing against this set-up.
async fn no_error_found(store: &Store<Place>) -> TestResult {
    for finding in store.dao().doctor().await? {
        assert!(finding.severity < Severity::Error, "{finding:?}");
    }
    Ok(())
}

pub(crate) async fn one_plain_node() -> TestResult {
    tour(&Place::shared().await?).await
}

pub(crate) async fn databases_are_apart() -> TestResult {
    let zero = Place::shared().await?;
    let three = zero.through(format!("{}/3", zero.url.trim_end_matches('/')));
    tour(&three).await?;
    let (in_zero, in_three) = (zero.store().await, three.store().await);
    let [us, we_wait] = in_zero.callers();
    let [them, they_wait] = in_three.callers();
    let (ours, theirs) = (us.take(["a"]).await, them.take(["a"]).await);
    assert_eq!(three.raw().await?.send::<i64>(&["EXISTS", &three.key("a")]).await?, 1);
    // Channels know no databases: a message of one must not be taken for the other's.
    let (mut our_turn, mut their_turn) = (we_wait.queue(["a"]).await, they_wait.queue(["a"]).await);
    us.free(&ours).await;
    we_wait.free(&our_turn.offered().await).await;
    their_turn.still_waits().await;
    them.free(&theirs).await;
    they_wait.free(&their_turn.offered().await).await;
    Ok(())
}

pub(crate) async fn a_unix_socket() -> TestResult {
    let (_server, path) = socket_server().await?;
    tour(&Place::at(format!("redis+unix://{path}"))).await?;
    tour(&Place::at(format!("redis+unix://{path}?db=2"))).await
}

pub(crate) async fn tls_and_a_user_of_an_access_list() -> TestResult {
    let authority = Authority::new()?;
    let acl = "user default off\n\
               user locks on >s3cret ~{test-*}* &* +@all -@admin +info +config|get\n\
               user reader on >s3cret ~* &* +@read +@connection +info\n";
    let (_server, port) = tls_server(&authority, acl, "no").await?;
    let place =
        |user: &str| Place::at(format!("rediss://{user}@127.0.0.1:{port}/")).trusting(&authority.certificate);
    tour(&place("locks:s3cret")).await?;

    for user in ["locks:wrong", "nobody:s3cret", "reader:s3cret"] {
        let error = match place(user).open().await {
            Ok(dao) => {
                assert_eq!(user, "reader:s3cret");
                let caller = Store::new(Arc::new(place("locks:s3cret"))).await.caller();
                dao.acquire(&caller.request(["a"])).await.expect_err("it may only read")
            }
            Err(error) => error,
        };
        assert_eq!(error.kind(), BackendErrorKind::Denied, "{user}: {error}");
        let shown = format!("{error} {error:?} {:?}", place(user).builder());
        assert!(!shown.contains("s3cret") && !shown.contains("wrong"), "{shown}");
    }
    let unknown = Place::at(format!("rediss://locks:s3cret@127.0.0.1:{port}/"));
    let error = unknown.open().await.expect_err("its certificate is unknown");
    assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
    Ok(())
}

/// The list of the crate's front page, on every release that has another idea of the commands' categories, and in every set-up.
pub(crate) async fn the_documented_access_list_is_enough_and_no_more() -> TestResult {
    let rules = documented_rules();
    for server in [server("").await?, old_server("").await?] {
        let raw = Raw::to(&server.url()).await?;
        grant_rules(&raw, &rules).await?;
        let place = Place::at(format!("redis://locks:s3cret@{}", server.address()));
        tour(&place).await?;
        let (store, locks) = (place.store().await, place.locks().await?);
        let us = store.caller();
        let held = us.take([exclusive("a"), shared("b")]).await;
        let fence = held.locks[0].granted.fence;
        store.dao().break_lock(&id("a"), fence, BreakMode::Now, "a test").await?;
        store.dao().freeze(&id("f"), true).await?;
        store.dao().freeze(&id("f"), false).await?;
        assert_eq!(store.dao().release_context(&us.context).await?, [id("b")]);
        locks.with_locks(["c"], async || ()).await?;
        let replicated = place.builder().replicas(1, Duration::from_millis(10)).open().await?;
        let error = replicated.acquire(&us.request(["d"])).await.expect_err("there are no replicas");
        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "it may wait for them: {error}");
        let looked_at = store.dao().doctor().await?;
        // These servers write no append-only file, which is told.
        assert!(
            looked_at
                .iter()
                .all(|finding| finding.severity == Severity::Ok || finding.check == "persistence"),
            "{looked_at:?}"
        );

        raw.ask::<()>("SET theirs precious").await?;
        let as_locks = place.raw().await?;
        for words in [
            "FLUSHALL",
            "FLUSHDB",
            "KEYS *",
            "SWAPDB 0 1",
            "SCRIPT FLUSH",
            "CLIENT KILL TYPE normal",
            "CLIENT PAUSE 1",
            "CLIENT LIST",
            "CONFIG GET dir",
            "CONFIG SET maxmemory 1",
            "SHUTDOWN NOSAVE",
            "REPLICAOF NO ONE",
            "ACL LIST",
            "MONITOR",
            "GET theirs",
            "DEL theirs",
            "PUBLISH theirs something",
        ] {
            let error = as_locks.ask::<redis::Value>(words).await.expect_err(words);
            assert_eq!(error.code(), Some("NOPERM"), "{words}: {error}");
        }
        for step in ["redis.call('FLUSHALL')", "redis.call('DEL', 'theirs')", "redis.call('KEYS', '*')"] {
            as_locks.send::<redis::Value>(&["EVAL", step, "0"]).await.expect_err(step);
        }
        as_locks.ask::<redis::Value>("FUNCTION FLUSH").await.expect_err("functions are of others");
        assert_eq!(raw.ask::<String>("GET theirs").await?, "precious");
    }
    let cluster = Cluster::start().await?;
    for node in cluster.nodes() {
        grant_rules(&Raw::to(&node.url()).await?, &rules).await?;
    }
    tour(&Place::at(format!("redis+cluster://locks:s3cret@{}", cluster.addresses()))).await?;
    let watched = Watched::start().await?;
    grant_rules(&Raw::to(&watched.master.url()).await?, &rules).await?;
    let url = watched.url().replace("sentinel://", "sentinel://locks:s3cret@");
    tour(&Place::at(url)).await
}

/// What the front page says behind `user locks on`, for the namespaces of tests.
fn documented_rules() -> Vec<String> {
    let page = include_str!("../../src/lib.rs");
    let (_, behind) = page.split_once("//! user locks on ").expect("the page shows a user");
    let (rules, _) = behind.split_once("//! ```").expect("it is a block of its own");
    let rules = rules.replace("//!", "").replace("PASSWORD", "s3cret").replace("{NAMESPACE}", "{test-*}");
    rules.split_whitespace().map(str::to_owned).collect()
}

async fn grant_rules(raw: &Raw, rules: &[String]) -> TestResult {
    let words = ["ACL", "SETUSER", "locks", "on"].into_iter().chain(rules.iter().map(String::as_str));
    Ok(raw.send::<()>(&words.collect::<Vec<_>>()).await?)
}

pub(crate) async fn tls_with_certificates_on_both_ends() -> TestResult {
    let authority = Authority::new()?;
    let (_server, port) = tls_server(&authority, "user default on nopass ~* &* +@all\n", "yes").await?;
    let place = Place::at(format!("rediss://127.0.0.1:{port}/")).trusting(&authority.certificate);
    place.open().await.expect_err("it shows no certificate");
    let (certificate, key) = authority.issue("a client")?;
    tour(&place.showing(&certificate, &key)).await
}

/// By the name of the host and by an address of IPv6; what is wrong is said in words, and so is what to do.
pub(crate) async fn what_is_verified_of_a_certificate_can_be_set() -> TestResult {
    use certificates::{AUTHORITY, ELSEWHERE, SELF_SIGNED, SERVER, VERSION_1};

    let (_server, port) = tls_server_with(SERVER, "").await?;
    for host in ["127.0.0.1", "localhost", "[::1]"] {
        tour(&Place::at(format!("rediss://{host}:{port}/")).trusting(AUTHORITY)).await?;
    }
    let unknown = Place::at(format!("rediss://127.0.0.1:{port}/"));
    refuses(&unknown, "issued by no authority that is trusted; root_certificate names").await;
    tour(&unknown.verifying(TlsVerify::None)).await?;

    for (pem, root, told, by_authority) in [
        (ELSEWHERE, AUTHORITY, "not valid for name \"127.0.0.1\"", true),
        (
            SELF_SIGNED,
            SELF_SIGNED,
            "is that of an authority (CA:TRUE), as `openssl req -x509` makes it",
            false,
        ),
        (VERSION_1, VERSION_1, "is of X.509 version 1", false),
    ] {
        let (_server, port) = tls_server_with(pem, "").await?;
        let place = Place::at(format!("rediss://127.0.0.1:{port}/")).trusting(root);
        refuses(&place, told).await;
        tour(&place.clone().verifying(TlsVerify::None)).await?;
        let by_its_authority = place.verifying(TlsVerify::Ca);
        if by_authority {
            tour(&by_its_authority).await?;
        } else {
            refuses(&by_its_authority, told).await;
        }
    }

    // The nodes of a cluster announce addresses.
    let (_node, port) = tls_server_with(ELSEWHERE, "--cluster-enabled yes --tls-cluster yes").await?;
    let place = Place::at(format!("rediss+cluster://127.0.0.1:{port}")).trusting(AUTHORITY);
    refuses(&place, "not valid for name \"127.0.0.1\"").await;
    let raw = Raw::to(&_node.url()).await?;
    raw.ask::<()>("CLUSTER ADDSLOTSRANGE 0 16383").await?;
    eventually("the cluster is ready", || async {
        let info: String = raw.ask("CLUSTER INFO").await.ok()?;
        info.contains("cluster_state:ok").then_some(())
    })
    .await;
    tour(&place.clone().verifying(TlsVerify::Ca)).await?;
    tour(&place.verifying(TlsVerify::None)).await
}

async fn refuses(place: &Place, told: &str) {
    let error = place.open().await.expect_err(told);
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
    let text = error.to_string();
    assert!(text.contains(told) && text.contains("tls_verify=") && !text.contains("OtherError"), "{text}");
}

pub(crate) async fn a_cluster_of_three_masters() -> TestResult {
    let cluster = Cluster::start().await?;
    let url = format!("redis+cluster://{}", cluster.addresses());
    let (mut places, mut nodes) = (Vec::new(), BTreeSet::new());
    // Chance puts a namespace on a node.
    while places.len() < 6 || nodes.len() < 2 {
        let place = Place::at(&*url);
        nodes.insert(node_of(&cluster, &place.key("")).await?.address());
        places.push(place);
    }
    let tours = places.into_iter().map(|place| tokio::spawn(async move { tour(&place).await }));
    for tour in tours.collect::<Vec<_>>() {
        tour.await??;
    }
    Ok(())
}

/// The slot of a namespace moves to another node, key by key, while its locks are taken and freed.
pub(crate) async fn a_slot_that_moves_loses_no_lock() -> TestResult {
    let cluster = Cluster::start().await?;
    let place = Place::at(format!("redis+cluster://{}", cluster.addresses()));
    let store = place.store().await;
    let keeper = store.caller();
    let kept = keeper.take(["kept", "kept too"]).await;
    let source = node_of(&cluster, &place.key("")).await?;
    let target = cluster.nodes().iter().find(|node| node.address() != source.address()).expect("three nodes");
    let (from, to) = (Raw::to(&source.url()).await?, Raw::to(&target.url()).await?);
    let slot: u16 = from.send(&["CLUSTER", "KEYSLOT", &place.key("")]).await?;
    let (from_id, to_id): (String, String) = (from.ask("CLUSTER MYID").await?, to.ask("CLUSTER MYID").await?);

    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let work = {
        let (dao, stop) = (place.open().await?, stop.clone());
        let locks = lockcore::LockingService::new(dao);
        tokio::spawn(async move {
            let (mut done, mut failed) = (0, Vec::new());
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                match locks.with_locks(["x", "y", "z"], async || ()).await {
                    Ok(()) => done += 1,
                    Err(error) => failed.push(error),
                }
            }
            (done, failed)
        })
    };
    to.ask::<()>(&format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}")).await?;
    from.ask::<()>(&format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}")).await?;
    let address = target.address().replace(':', " ");
    loop {
        let keys: Vec<String> = from.ask(&format!("CLUSTER GETKEYSINSLOT {slot} 1")).await?;
        let Some(key) = keys.first() else { break };
        let (host, port) = address.split_once(' ').expect("host and port");
        from.send::<()>(&["MIGRATE", host, port, key, "0", "5000"]).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for node in [&to, &from] {
        node.ask::<()>(&format!("CLUSTER SETSLOT {slot} NODE {to_id}")).await?;
    }
    // It goes on at the new place.
    let locks = place.locks().await?;
    locks.with_locks(["x", "y", "z"], async || ()).await.or_else(|_first| Ok::<_, Failure>(()))?;
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let (done, failed) = work.await?;
    assert!(done > 0);
    for error in failed {
        let text = format!("{error:?}");
        assert!(matches!(error, lockcore::LockError::NotLocked { .. }), "{text}");
    }
    keeper.keep(&kept).await;
    keeper.free(&kept).await;
    store.becomes_free(&["kept", "kept too", "x", "y", "z"]).await;
    Ok(())
}

pub(crate) async fn a_cluster_that_misses_a_node_says_so() -> TestResult {
    let cluster = Cluster::start().await?;
    let place =
        Place::at(format!("redis+cluster://{}", cluster.addresses())).patient_for(Duration::from_secs(1));
    let store = place.store().await;
    node_of(&cluster, &place.key("")).await?.kill().await?;
    let error = store.dao().acquire(&store.caller().request(["a"])).await.expect_err("its node is gone");
    assert!(error.is_retryable(), "{error:?}");
    Ok(())
}

pub(crate) async fn a_node_out_of_reach_is_named_with_the_one_that_announced_it() -> TestResult {
    // As behind a NAT or in a container's own network: the node does not listen where it says.
    let node = server("--cluster-enabled yes --cluster-announce-ip 127.0.0.2").await?;
    Raw::to(&node.url()).await?.ask::<()>("CLUSTER ADDSLOTSRANGE 0 16383").await?;
    let (address, port) = (node.address(), node.address().rsplit_once(':').expect("host:port").1.to_owned());
    let error = Place::at(format!("redis+cluster://{address}")).open().await.expect_err("it is not there");
    let named = format!("redis: node 127.0.0.2:{port} (announced by {address}) cannot be reached, ");
    assert!(error.to_string().starts_with(&named), "{error}");
    assert!(error.is_retryable(), "{error:?}");

    let conf = "sentinel monitor locks 127.0.0.1 1 1\n";
    let sentinel = Server::start_with(Kind::Redis, move |folder| {
        let file = folder.join("sentinel.conf");
        std::fs::write(&file, conf)?;
        Ok(vec![file.display().to_string(), "--sentinel".to_owned()])
    })
    .await?;
    let address = sentinel.address();
    let error = Place::at(format!("redis+sentinel://{address}/locks")).open().await;
    let error = error.expect_err("nothing listens there");
    let named = format!("redis: node 127.0.0.1:1 (announced by {address}) cannot be reached, ");
    assert!(error.to_string().starts_with(&named), "{error}");
    Ok(())
}

pub(crate) async fn sentinels() -> TestResult {
    let watched = Watched::start().await?;
    tour(&Place::at(watched.url())).await?;
    let error = Place::at(format!("redis+sentinel://{}/others", watched.sentinel.address())).open().await;
    let error = error.expect_err("no such master");
    assert!(!error.to_string().is_empty(), "{error:?}");
    Ok(())
}

pub(crate) async fn a_server_that_cannot_be_reached_is_unavailable() -> TestResult {
    // Not the port of a server that was killed: another test's may have it by then.
    for url in ["redis://127.0.0.1:1", "redis+cluster://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/locks"] {
        let error = Place::at(url).open().await.expect_err("nothing listens there");
        assert!(error.is_retryable(), "{url}: {error:?}");
    }
    Ok::<_, ServerError>(()).map_err(Into::into)
}
