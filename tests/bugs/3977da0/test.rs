/// Each try leaves its LISTEN for a while on a connection that other clients have next.
async fn listening_is_seldom_tried_where_it_cannot_work() -> TestResult {
    let place = Place::new().await?;
    let proxy = Proxy::start(place.pooler.address().to_string()).await?;
    let listens = place.server.url_through(proxy.address());
    let dao = place.builder().listen_url(listens).connect().await?;
    assert!(!dao.capabilities().push, "no notification passes through it");
    // A try takes three seconds.
    let tried = proxy.counts().connections;
    let again = timeout(Duration::from_secs(8), proxy.counted(|counts| counts.connections > tried));
    assert!(again.await.is_err(), "{:?}", proxy.counts());
    Ok(())
}
