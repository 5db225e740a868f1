//! A TCP proxy that delays, swallows, cuts and refuses on command, to stand between a client and a server.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

/// What a [`Proxy`] does with what passes through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Passes everything on at once.
    Pass,
    /// Passes everything on, each chunk after a pause.
    Delay {
        /// The pause before a chunk goes on to the server.
        requests: Duration,
        /// The pause before a chunk goes on to the client.
        replies: Duration,
    },
    /// Swallows what the client sends, its goodbye included: a black hole.
    DropRequests,
    /// Lets requests reach the server and swallows what it answers.
    DropReplies,
    /// Resets the open connections, and each new one as soon as it is accepted.
    Reset,
    /// Resets the open connections and refuses new ones, as when the server's process is gone.
    Refuse,
    /// Passes this many more chunks, both ways together, resets the connection that carried the
    /// last one, and is [`Mode::Pass`] from then on.
    ///
    /// With 1, an idle client's next request reaches the server and the answer is lost.
    CutAfter(u64),
}

/// What has come through a [`Proxy`] so far.
///
/// A chunk is what one read returned: for small messages that wait for their answer, one message.
/// Chunks that were swallowed count too, for they did arrive at the proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections accepted.
    pub connections: u64,
    /// Chunks that came from clients.
    pub requests: u64,
    /// Chunks that came from the server.
    pub replies: u64,
    /// How often a client sent something after an answer: the round trips of a client that is alone, in however many
    /// chunks a message arrives.
    pub turns: u64,
    answered_last: bool,
}

/// A proxy on a port of this machine's loopback, in front of one server.
///
/// A TCP stream with a hole in it does not exist: a connection of which something was swallowed
/// passes nothing more that way, and is reset at the next change of the mode. Whatever was passed
/// on to the server reaches it: on that side a connection is closed, not reset.
///
/// Dropping the proxy resets its connections and closes its port.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    upstream: watch::Sender<String>,
    mode: watch::Sender<Mode>,
    counts: watch::Sender<Counts>,
    silent: watch::Sender<u64>,
    forgotten: watch::Sender<u64>,
    listening: watch::Receiver<bool>,
    acceptor: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy for the server at `upstream` (`host:port`), in [`Mode::Pass`].
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(upstream: impl Into<String>) -> io::Result<Self> {
        Self::start_on(Ipv4Addr::LOCALHOST, upstream).await
    }

    /// The same on another address of this machine, such as `::1`.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start_on(host: impl Into<IpAddr>, upstream: impl Into<String>) -> io::Result<Self> {
        let listener = TcpListener::bind((host.into(), 0)).await?;
        let address = listener.local_addr()?;
        let upstream = watch::Sender::new(upstream.into());
        let mode = watch::Sender::new(Mode::Pass);
        let counts = watch::Sender::new(Counts::default());
        let (silent, forgotten) = (watch::Sender::new(0), watch::Sender::new(0));
        let (said, listening) = watch::channel(true);
        let switch = Switch {
            seen: mode.subscribe(),
            mode: mode.clone(),
            counts: counts.clone(),
            silent: silent.subscribe(),
            forgotten: forgotten.subscribe(),
        };
        let acceptor = tokio::spawn(accept(listener, upstream.subscribe(), switch, said));
        Ok(Self { address, upstream, mode, counts, silent, forgotten, listening, acceptor })
    }

    /// Where clients connect. It stays the same for the life of the proxy.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the mode; when this returns, the port is open or closed as the new mode has it.
    pub async fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
        let open = mode != Mode::Refuse;
        // The acceptor ends only with the proxy; its end says no more than that.
        let _ = self.listening.clone().wait_for(|&listening| listening == open).await;
    }

    /// Makes the open connections carry nothing from now on, in either direction and whatever the mode, without closing
    /// them: what a router does that has forgotten them. Connections that are opened later are not affected.
    pub fn silence(&self) {
        self.silent.send_replace(self.counts().connections);
    }

    /// Makes the open connections carry nothing from now on, and resets each as soon as its client sends something: what a
    /// router does that has forgotten connections while they were idle. Connections that are opened later are not affected.
    pub fn forget(&self) {
        self.forgotten.send_replace(self.counts().connections);
    }

    /// The mode in force: after [`Mode::CutAfter`] has cut, [`Mode::Pass`].
    #[must_use]
    pub fn mode(&self) -> Mode {
        *self.mode.borrow()
    }

    /// Sends new connections to another server: a restarted one may have a new port.
    pub fn redirect(&self, upstream: impl Into<String>) {
        self.upstream.send_replace(upstream.into());
    }

    /// What has come through so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        *self.counts.borrow()
    }

    /// Waits until the counts satisfy `enough`, and returns them.
    pub async fn counted(&self, enough: impl FnMut(&Counts) -> bool) -> Counts {
        let mut counts = self.counts.subscribe();
        *counts.wait_for(enough).await.expect("the sender of the counts lives in self")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.mode.send_replace(Mode::Reset);
        self.acceptor.abort();
    }
}

/// Waits no longer than it has to: what a line adds is measured, and the runtime's timers are up to two milliseconds late.
async fn exactly(pause: Duration) {
    const LATE: Duration = Duration::from_millis(2);
    let until = Instant::now() + pause;
    tokio::time::sleep(pause.saturating_sub(LATE)).await;
    let rest =
        tokio::task::spawn_blocking(move || thread::sleep(until.saturating_duration_since(Instant::now())));
    // It does not panic, and is dropped only with the runtime.
    let _ = rest.await;
}

/// One connection's view of the mode, and the counters.
#[derive(Clone)]
struct Switch {
    seen: watch::Receiver<Mode>,
    mode: watch::Sender<Mode>,
    counts: watch::Sender<Counts>,
    /// The last connection that was silenced; all before it were, too.
    silent: watch::Receiver<u64>,
    /// The same of those that were forgotten.
    forgotten: watch::Receiver<u64>,
}

/// The two directions through a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Requests,
    Replies,
}

/// The connection is broken, or to be broken: the client sees a reset.
struct Broken;

/// How a connection came to carry nothing any more.
enum Ended {
    Closed,
    Broken,
    Silenced,
    Forgotten,
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self
    }
}

async fn accept(
    listener: TcpListener,
    upstream: watch::Receiver<String>,
    mut switch: Switch,
    listening: watch::Sender<bool>,
) {
    let address = listener.local_addr().expect("a bound socket has an address");
    let mut listener = Some(listener);
    loop {
        if *switch.seen.borrow_and_update() == Mode::Refuse {
            listener = None;
        } else if listener.is_none() {
            // Another process may have been given the port meanwhile: tried until it is free.
            listener = TcpListener::bind(address).await.ok();
        }
        listening.send_replace(listener.is_some());
        let Some(open) = &listener else {
            let retry = tokio::time::sleep(Duration::from_millis(10));
            tokio::select! { _ = switch.seen.changed() => {} () = retry => {} }
            continue;
        };
        tokio::select! {
            accepted = open.accept() => if let Ok((client, _)) = accepted {
                let mut number = 0;
                switch.counts.send_modify(|counts| {
                    counts.connections += 1;
                    number = counts.connections;
                });
                tokio::spawn(relay(client, upstream.borrow().clone(), number, switch.clone()));
            },
            _ = switch.seen.changed() => {}
        }
    }
}

async fn relay(mut client: TcpStream, upstream: String, number: u64, switch: Switch) {
    let (mut silent, mut forgotten) = (switch.silent.clone(), switch.forgotten.clone());
    let broken = matches!(*switch.seen.borrow(), Mode::Reset | Mode::Refuse);
    if !broken && let Ok(mut server) = TcpStream::connect(upstream).await {
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let pumps = async {
            tokio::try_join!(
                pump(Direction::Requests, from_client, to_server, switch.clone()),
                pump(Direction::Replies, from_server, to_client, switch),
            )
        };
        let silenced = silent.wait_for(|&last| last >= number);
        let is_forgotten = forgotten.wait_for(|&last| last >= number);
        // Silence first: a change of the mode must not reset a connection that was silenced before it.
        let ended = tokio::select! {
            biased;
            Ok(_) = silenced => Ended::Silenced,
            Ok(_) = is_forgotten => Ended::Forgotten,
            ended = pumps => if ended.is_ok() { Ended::Closed } else { Ended::Broken },
        };
        match ended {
            Ended::Closed => return,
            Ended::Broken => {}
            // Both sides stay open as long as the proxy.
            Ended::Silenced => while silent.changed().await.is_ok() {},
            // Until the client sends something, its goodbye included.
            Ended::Forgotten => drop(client.peek(&mut [0]).await),
        }
    }
    // Makes the drop a reset. Not for the server: a reset could overtake what was passed on.
    let _ = client.set_zero_linger();
}

/// Carries one way of a connection until its end (`Ok`) or until the connection is to be reset.
async fn pump(
    direction: Direction,
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut switch: Switch,
) -> Result<(), Broken> {
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let read = loop {
            if matches!(*switch.seen.borrow_and_update(), Mode::Reset | Mode::Refuse) {
                return Err(Broken);
            }
            tokio::select! {
                read = from.read(&mut chunk) => break read?,
                changed = switch.seen.changed() => changed.map_err(|_| Broken)?,
            }
        };
        if read > 0 {
            switch.counts.send_modify(|counts| match direction {
                Direction::Requests => {
                    counts.requests += 1;
                    counts.turns += u64::from(std::mem::take(&mut counts.answered_last));
                }
                Direction::Replies => {
                    counts.replies += 1;
                    counts.answered_last = true;
                }
            });
        }
        let cut = switch.admit(direction, read > 0).await?;
        if read == 0 {
            return Ok(to.shutdown().await?);
        }
        to.write_all(&chunk[..read]).await?;
        if cut {
            return Err(Broken);
        }
    }
}

impl Switch {
    /// Returns when a chunk (or the end of the stream) may go on, and whether to cut after it.
    async fn admit(&mut self, direction: Direction, is_chunk: bool) -> Result<bool, Broken> {
        let mode = *self.seen.borrow_and_update();
        let pause = match (mode, direction) {
            (Mode::Reset | Mode::Refuse, _) => return Err(Broken),
            (Mode::DropRequests, Direction::Requests) | (Mode::DropReplies, Direction::Replies) => {
                let _ = self.seen.wait_for(|now| *now != mode).await;
                return Err(Broken);
            }
            (Mode::Delay { requests, .. }, Direction::Requests) => requests,
            (Mode::Delay { replies, .. }, Direction::Replies) => replies,
            (Mode::CutAfter(_), _) if is_chunk => return Ok(self.count_down()),
            _ => return Ok(false),
        };
        // A change of mode ends the pause: the chunk was taken on under the old one.
        let changed = self.seen.wait_for(|now| *now != mode);
        tokio::select! { () = exactly(pause) => {} _ = changed => {} }
        Ok(false)
    }

    fn count_down(&self) -> bool {
        let mut cut = false;
        self.mode.send_modify(|mode| {
            if let Mode::CutAfter(left) = mode {
                cut = *left <= 1;
                *mode = if cut { Mode::Pass } else { Mode::CutAfter(*left - 1) };
            }
        });
        cut
    }
}
