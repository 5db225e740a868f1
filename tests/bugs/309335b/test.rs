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
        let short = lockcore::backend::AcquireRequest { lease: Some(Duration::from_millis(500)), ..request(["a"]) };
        granted(&dao, &short).await?;
        let (waits, mut wakeup) = queue(&dao, ["a"]).await?;
        if let lockcore::backend::Wake::Offer(_) = tokio::time::timeout(PATIENCE, wakeup.recv()).await? {
            return Ok(());
        }
        let held = granted(&dao, &waits).await?;
        dao.release(&held).await?;
    }
    Err("each time the waiter had to ask again".into())
}
