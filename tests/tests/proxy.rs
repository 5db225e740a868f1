//! The fault proxy, each of its modes against an echo server on the loopback.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use lockcore_conformance::servers::{Counts, Mode, Proxy, Trial};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

/// The tests of this file.
pub(crate) fn tests() -> Vec<Trial> {
    lockcore_conformance::tests![
        "proxy", async;
        passes_and_counts_each_way,
        delays_each_way_by_its_own_pause,
        a_change_of_mode_ends_a_delay,
        dropped_requests_never_arrive,
        a_black_hole_swallows_the_goodbye,
        an_untouched_connection_survives_a_black_hole,
        dropped_replies_follow_requests_that_arrived,
        silenced_connections_carry_nothing_for_good_and_stay_open,
        resets_open_and_new_connections,
        refuses_and_opens_the_same_port_again,
        cuts_once_after_the_request,
        cuts_after_several_chunks,
        resets_what_it_forgot_when_the_client_sends,
        redirects_new_connections,
        a_server_that_is_gone_resets_the_client,
        dropping_the_proxy_resets_and_closes,
    ]
}

/// Long enough for anything that is going to happen on a loaded machine.
const SOON: Duration = Duration::from_secs(20);
/// Long enough to call an answer missing: an echo takes well below a millisecond.
const SILENCE: Duration = Duration::from_millis(150);

/// An echo server; what it received is passed on, an empty message being a client's goodbye.
async fn echo() -> (SocketAddr, mpsc::UnboundedReceiver<Vec<u8>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let tell = tell.clone();
            tokio::spawn(async move {
                let mut chunk = [0; 1024];
                while let Ok(read) = client.read(&mut chunk).await {
                    let _ = tell.send(chunk[..read].to_vec());
                    if read == 0 || client.write_all(&chunk[..read]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, told)
}

async fn proxied_echo() -> (Proxy, TcpStream, mpsc::UnboundedReceiver<Vec<u8>>) {
    let (address, told) = echo().await;
    let proxy = Proxy::start(address.to_string()).await.unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut client, b"hello").await.unwrap(), b"hello");
    (proxy, client, told)
}

/// Sends `message` and returns what comes back: nothing is the end of the stream.
async fn ask(client: &mut TcpStream, message: &[u8]) -> io::Result<Vec<u8>> {
    client.write_all(message).await?;
    answer(client).await
}

async fn answer(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut reply = vec![0; 1024];
    let read = tokio::time::timeout(SOON, client.read(&mut reply)).await??;
    reply.truncate(read);
    Ok(reply)
}

async fn is_silent(client: &mut TcpStream) -> bool {
    let mut byte = [0];
    tokio::time::timeout(SILENCE, client.read(&mut byte)).await.is_err()
}

fn is_reset(result: io::Result<Vec<u8>>) -> bool {
    matches!(result, Err(error) if error.kind() == io::ErrorKind::ConnectionReset)
}

async fn passes_and_counts_each_way() {
    let (proxy, mut client, mut told) = proxied_echo().await;
    assert_eq!(ask(&mut client, b"again").await.unwrap(), b"again");
    let Counts { connections, requests, replies, turns, .. } = proxy.counts();
    assert_eq!((connections, requests, replies, turns), (1, 2, 2, 1));
    drop(client);
    assert_eq!(told.recv().await.unwrap(), b"hello");
    assert_eq!(told.recv().await.unwrap(), b"again");
    assert_eq!(told.recv().await.unwrap(), b"", "the goodbye passes too");
}

async fn delays_each_way_by_its_own_pause() {
    let (proxy, mut client, mut told) = proxied_echo().await;
    told.recv().await.unwrap();
    let (requests, replies) = (Duration::from_millis(60), Duration::from_millis(120));
    proxy.set(Mode::Delay { requests, replies }).await;
    let begun = Instant::now();
    client.write_all(b"late").await.unwrap();
    assert_eq!(told.recv().await.unwrap(), b"late");
    assert!(begun.elapsed() >= requests);
    assert_eq!(answer(&mut client).await.unwrap(), b"late");
    assert!(begun.elapsed() >= requests + replies);
}

async fn a_change_of_mode_ends_a_delay() {
    let (proxy, mut client, _told) = proxied_echo().await;
    let (requests, replies) = (Duration::from_secs(3600), Duration::ZERO);
    proxy.set(Mode::Delay { requests, replies }).await;
    client.write_all(b"stuck").await.unwrap();
    proxy.counted(|counts| counts.requests == 2).await;
    proxy.set(Mode::Pass).await;
    assert_eq!(answer(&mut client).await.unwrap(), b"stuck");
}

async fn dropped_requests_never_arrive() {
    let (proxy, mut client, mut told) = proxied_echo().await;
    told.recv().await.unwrap();
    proxy.set(Mode::DropRequests).await;
    client.write_all(b"lost").await.unwrap();
    proxy.counted(|counts| counts.requests == 2).await;
    assert!(is_silent(&mut client).await);
    assert!(told.try_recv().is_err());
    // The stream has a hole now: it is reset, not carried on behind the hole.
    proxy.set(Mode::Pass).await;
    assert!(is_reset(answer(&mut client).await));
    let mut next = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut next, b"next").await.unwrap(), b"next");
}

async fn a_black_hole_swallows_the_goodbye() {
    let (proxy, client, mut told) = proxied_echo().await;
    told.recv().await.unwrap();
    proxy.set(Mode::DropRequests).await;
    drop(client);
    let goodbye = tokio::time::timeout(SILENCE, told.recv()).await;
    assert!(goodbye.is_err(), "the server still holds the session");
}

async fn an_untouched_connection_survives_a_black_hole() {
    let (proxy, mut client, _told) = proxied_echo().await;
    proxy.set(Mode::DropRequests).await;
    proxy.set(Mode::Pass).await;
    assert_eq!(ask(&mut client, b"still").await.unwrap(), b"still");
}

async fn dropped_replies_follow_requests_that_arrived() {
    let (proxy, mut client, mut told) = proxied_echo().await;
    told.recv().await.unwrap();
    proxy.set(Mode::DropReplies).await;
    client.write_all(b"done").await.unwrap();
    assert_eq!(told.recv().await.unwrap(), b"done");
    proxy.counted(|counts| counts.replies == 2).await;
    assert!(is_silent(&mut client).await);
    proxy.set(Mode::Pass).await;
    assert!(is_reset(answer(&mut client).await));
}

async fn silenced_connections_carry_nothing_for_good_and_stay_open() {
    let (proxy, mut client, mut told) = proxied_echo().await;
    told.recv().await.unwrap();
    proxy.silence();
    client.write_all(b"lost").await.unwrap();
    assert!(is_silent(&mut client).await);
    // Nor does any change of the mode end them.
    for mode in [Mode::Reset, Mode::Pass, Mode::Refuse, Mode::Pass] {
        proxy.set(mode).await;
        assert!(is_silent(&mut client).await, "{mode:?}");
    }
    assert!(told.try_recv().is_err(), "neither a message nor a goodbye arrived");
    let mut next = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut next, b"next").await.unwrap(), b"next");
    drop(proxy);
    assert!(is_reset(answer(&mut client).await));
}

async fn resets_open_and_new_connections() {
    let (proxy, mut client, _told) = proxied_echo().await;
    proxy.set(Mode::Reset).await;
    assert!(is_reset(answer(&mut client).await));
    // The handshake is the kernel's, so that the reset may come as early as within connect.
    let next = match TcpStream::connect(proxy.address()).await {
        Ok(mut next) => answer(&mut next).await,
        Err(error) => Err(error),
    };
    assert!(is_reset(next));
}

async fn refuses_and_opens_the_same_port_again() {
    let (proxy, mut client, _told) = proxied_echo().await;
    for _ in 0..3 {
        proxy.set(Mode::Refuse).await;
        assert!(is_reset(answer(&mut client).await));
        let refused = TcpStream::connect(proxy.address()).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        proxy.set(Mode::Pass).await;
        client = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(ask(&mut client, b"back").await.unwrap(), b"back");
    }
}

async fn cuts_once_after_the_request() {
    let (proxy, mut client, mut told) = proxied_echo().await;
    told.recv().await.unwrap();
    proxy.set(Mode::CutAfter(1)).await;
    let lost = ask(&mut client, b"done").await;
    assert!(is_reset(lost), "the answer is lost");
    assert_eq!(told.recv().await.unwrap(), b"done");
    assert_eq!(proxy.mode(), Mode::Pass);
    let mut next = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut next, b"retry").await.unwrap(), b"retry");
}

async fn cuts_after_several_chunks() {
    let (proxy, mut client, _told) = proxied_echo().await;
    proxy.set(Mode::CutAfter(4)).await;
    for _ in 0..2 {
        assert_eq!(ask(&mut client, b"ok").await.unwrap(), b"ok");
    }
    assert!(is_reset(answer(&mut client).await));
}

async fn resets_what_it_forgot_when_the_client_sends() {
    let (proxy, mut client, mut told) = proxied_echo().await;
    told.recv().await.unwrap();
    proxy.forget();
    let mut next = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut next, b"new").await.unwrap(), b"new");
    assert!(is_reset(ask(&mut client, b"old").await));
    assert_eq!(told.recv().await.unwrap(), b"new", "nothing else arrived");
}

async fn redirects_new_connections() {
    let (proxy, mut client, _told) = proxied_echo().await;
    let (other, mut told) = echo().await;
    proxy.redirect(other.to_string());
    assert_eq!(ask(&mut client, b"old").await.unwrap(), b"old");
    let mut next = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut next, b"new").await.unwrap(), b"new");
    assert_eq!(told.recv().await.unwrap(), b"new");
}

async fn a_server_that_is_gone_resets_the_client() {
    let (proxy, _client, _told) = proxied_echo().await;
    let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    proxy.redirect(gone.local_addr().unwrap().to_string());
    drop(gone);
    // The reset may come before the connection was looked at.
    let asked = async {
        let mut next = TcpStream::connect(proxy.address()).await?;
        answer(&mut next).await
    };
    assert!(is_reset(asked.await));
}

async fn dropping_the_proxy_resets_and_closes() {
    let (proxy, mut client, _told) = proxied_echo().await;
    let address = proxy.address();
    drop(proxy);
    assert!(is_reset(answer(&mut client).await));
    let refused = async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, refused).await.unwrap();
}
