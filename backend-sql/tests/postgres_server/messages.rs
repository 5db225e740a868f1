//! What goes over the line: two round trips for a pair, and what happens where it is cut.

use std::time::Duration;

use lockcore::{
    LockDao, LockingService,
    backend::{AcquireRequest, Acquired, Wake, Withdraw},
};
use lockcore_conformance::servers::{Kind, Mode, Proxy, Server, TestResult, Trial};

use super::{
    place::{Dao, Error, PATIENCE, Place, granted, handed, queue, request, take},
    test,
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("messages::a_pair_is_two_round_trips", a_pair_is_two_round_trips),
        test("messages::nothing_need_be_prepared", nothing_need_be_prepared),
        test("messages::cut_at_every_message", cut_at_every_message),
        test("messages::a_server_that_is_killed_and_restarted", a_server_that_is_killed_and_restarted),
        test("messages::an_overtaken_notification_is_waited_for", an_overtaken_notification_is_waited_for),
    ]
}

/// A DAO behind a proxy; what it is told of comes by another way.
async fn proxied(place: &Place, prepared: bool) -> Result<(Proxy, Dao), Error> {
    let proxy = Proxy::start(place.server.address()).await?;
    let builder =
        place.builder().url(place.server.url_through(proxy.address())).listen_url(place.server.url());
    let dao = builder.prepared(prepared).max_connections(1).open().await?;
    Ok((proxy, dao))
}

/// 5, speed: no hidden ping, prepare or rollback once warm, whatever the number of ids.
async fn a_pair_is_two_round_trips() -> TestResult {
    let place = Place::new().await?;
    for prepared in [true, false] {
        let (proxy, dao) = proxied(&place, prepared).await?;
        let locks = LockingService::new(dao);
        for count in [1, 10, 100] {
            let ids: Vec<String> = (0..count).map(|number| format!("id {number}")).collect();
            for _ in 0..2 {
                locks.with_locks(&ids, async || {}).await?;
            }
            let before = proxy.counts();
            locks.with_locks(&ids, async || {}).await?;
            let after = proxy.counts();
            assert_eq!(after.connections, before.connections);
            assert_eq!(after.turns - before.turns, 2, "{count} ids, prepared: {prepared}");
            if count < 100 {
                // A larger message may arrive in pieces.
                assert_eq!(after.requests - before.requests, 2, "{count} ids, prepared: {prepared}");
            }
        }
    }
    Ok(())
}

/// As behind a pooler that hands out another connection for each transaction.
async fn nothing_need_be_prepared() -> TestResult {
    let place = Place::new().await?;
    let dao = place.builder().prepared(false).open().await?;
    let odd = ["it's", "\\", "\0", "ü", "a\nb"].map(str::to_owned);
    let held = take(&dao, odd.clone()).await?;
    let (waits, wakeup) = queue(&dao, odd.clone()).await?;
    assert_eq!(dao.renew(&held).await?.lost, []);
    dao.release(&held).await?;
    let held = handed(&dao, &waits, wakeup).await?;
    let listed = dao.list(&lockcore::Page::default()).await?;
    assert_eq!(listed.ids.len(), odd.len());
    dao.withdraw(&waits, Withdraw::Undo).await?;
    assert_eq!(dao.release(&held).await?.lost.len(), odd.len());
    let mut sql = place.sql().await?;
    assert_eq!(sql.number("SELECT count(*) FROM pg_prepared_statements").await?, 0);
    Ok(())
}

/// 5.8: wherever it is cut, no client holds what another holds, and nothing is left behind.
async fn cut_at_every_message() -> TestResult {
    let place = Place::new().await?;
    let (proxy, dao) = proxied(&place, true).await?;
    let direct = place.open().await?;
    for chunks in 1..=8 {
        for round in 0..2 {
            let ids = || [format!("{chunks} {round} a"), format!("{chunks} {round} b")];
            // Warm, or on a new connection.
            if round == 0 {
                let held = take(&dao, ["warm"]).await?;
                dao.release(&held).await?;
            }
            proxy.set(Mode::CutAfter(chunks)).await;
            let asked = request(ids());
            match dao.acquire(&asked).await {
                Ok(Acquired::Granted(_)) => {
                    let Acquired::Refused(_) = direct.acquire(&request(ids())).await? else {
                        return Err("granted twice".into());
                    };
                    // A release is repeated on another connection, or told as failed.
                    let grant = granted(&dao, &asked).await;
                    if let Ok(grant) = grant
                        && dao.release(&grant).await.is_err()
                    {
                        assert!(dao.release(&grant).await?.failed.is_empty());
                    }
                }
                Ok(other) => return Err(format!("{other:?}").into()),
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
            proxy.set(Mode::Pass).await;
            dao.withdraw(&asked, Withdraw::Undo).await?;
            let free = take(&direct, ids()).await?;
            direct.release(&free).await?;
        }
    }
    Ok(())
}

/// 5.8: what was granted before is still held, what was in doubt is settled, and waiters go on waiting.
async fn a_server_that_is_killed_and_restarted() -> TestResult {
    let server = Server::start(Kind::Postgres).await?;
    let proxy = Proxy::start(server.address()).await?;
    let dao = lockcore_sql::PostgresLockDao::<String>::builder()
        .url(server.url_through(proxy.address()))
        .timeout(Duration::from_secs(2))
        .open()
        .await?;
    let held = take(&dao, ["a"]).await?;
    let (waits, mut wakeup) = queue(&dao, ["a"]).await?;
    server.kill().await?;
    let error = dao.renew(&held).await.expect_err("nothing listens there");
    assert!(error.is_retryable(), "{error}");
    let asked = request(["b"]);
    let error = dao.acquire(&asked).await.expect_err("nothing listens there");
    assert!(error.is_retryable(), "{error}");
    server.restart().await?;
    proxy.redirect(server.address());
    let back = async {
        loop {
            match dao.renew(&held).await {
                Ok(renewed) => return Ok::<_, Error>(renewed),
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(error.into()),
            }
        }
    };
    assert_eq!(tokio::time::timeout(PATIENCE, back).await??.lost, [], "a grant survives");
    dao.withdraw(&asked, Withdraw::Undo).await?;
    // A client that waited is told to ask again; its place may have been lost, and is taken again.
    tokio::time::timeout(PATIENCE, wakeup.recv()).await?;
    let Acquired::Queued { wakeup, .. } = dao.acquire(&waits).await? else { return Err("it is held".into()) };
    dao.release(&held).await?;
    let held = handed(&dao, &waits, wakeup).await?;
    assert_eq!(dao.release(&held).await?.lost, []);
    Ok(())
}

/// A heartbeat that hands over returns before the notification comes, which is late here. The waiter gets its offer all the same.
async fn an_overtaken_notification_is_waited_for() -> TestResult {
    const LATE: Duration = Duration::from_millis(60);
    let place = Place::new().await?;
    let proxy = Proxy::start(place.server.address()).await?;
    let dao = place.builder().listen_url(place.server.url_through(proxy.address())).open().await?;
    proxy.set(Mode::Delay { requests: Duration::ZERO, replies: LATE }).await;
    // On a busy machine it may be later than what is waited for.
    for _ in 0..20 {
        // The waiter's own heartbeat finds the end of this lease.
        let short = AcquireRequest { lease: Some(Duration::from_millis(500)), ..request(["a"]) };
        granted(&dao, &short).await?;
        let (waits, mut wakeup) = queue(&dao, ["a"]).await?;
        if let Wake::Offer(_) = tokio::time::timeout(PATIENCE, wakeup.recv()).await? {
            return Ok(());
        }
        let held = granted(&dao, &waits).await?;
        dao.release(&held).await?;
    }
    Err("each time the waiter had to ask again".into())
}
