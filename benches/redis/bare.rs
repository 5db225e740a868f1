//! The floors: the same scripts, minimal scripts and a bare message, over the same client without anything of ours.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lockcore::Wait;
use lockcore_benches::Times;
use redis::{
    AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind, Value,
    aio::MultiplexedConnection, io::tcp::TcpSettings,
};
use tokio::sync::mpsc;

use crate::Locks;

/// A client as the backend sets it up.
pub(crate) fn client(url: &str) -> Client {
    let info = url.into_connection_info().expect("a URL");
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let tcp = TcpSettings::default().set_nodelay(true);
    Client::open(info.set_redis_settings(settings).set_tcp_settings(tcp)).expect("a client")
}

pub(crate) async fn connect(url: &str) -> MultiplexedConnection {
    client(url).get_multiplexed_async_connection().await.expect("the server answers")
}

/// Where an id stands in the words of a command.
#[derive(Clone)]
struct Place {
    id: usize,
    word: usize,
    at: usize,
}

/// The two commands that a `with_locks` sends, sent again without it.
#[derive(Clone)]
pub(crate) struct Bare {
    connection: MultiplexedConnection,
    take: Vec<Vec<u8>>,
    acquire: Cmd,
    /// The words of the release, and the fence that stands in them.
    free: Vec<Vec<u8>>,
    /// Where the ids stand in the words of both.
    places: [Vec<Place>; 2],
    captured: Vec<u8>,
    fence: Vec<u8>,
}

impl Bare {
    /// Has the server tell what `locks` sends for these ids.
    pub(crate) async fn of(url: &str, locks: &Locks, names: &[String]) -> Self {
        let ([take, free], fence) = sent(url, locks, Wait::never(), names).await;
        let (acquire, captured) = (command(&take), fence.to_string().into_bytes());
        let (connection, fence) = (connect(url).await, captured.clone());
        let places = [&take, &free].map(|words| places(words, names));
        let bare = Bare { connection, take, acquire, free, places, captured, fence };
        let named = bare.free.iter().any(|word| find(word, &bare.captured).is_some());
        assert!(named, "a release names its fence: {:?}", bare.free);
        bare
    }

    /// The same over the connection of another.
    pub(crate) fn over(mut self, other: Option<&Bare>) -> Self {
        if let Some(other) = other {
            self.connection = other.connection.clone();
        }
        self
    }

    /// The same on other ids, as many and as long.
    pub(crate) fn with_ids(mut self, names: &[String]) -> Self {
        for (words, places) in [&mut self.take, &mut self.free].into_iter().zip(&self.places) {
            for &Place { id, word, at } in places {
                let name = names[id].as_bytes();
                words[word][at..at + name.len()].copy_from_slice(name);
            }
        }
        self.acquire = command(&self.take);
        self
    }

    pub(crate) async fn take(&mut self) {
        let reply: Value = self.acquire.query_async(&mut self.connection).await.expect("an answer");
        self.fence = fence(&reply).unwrap_or_else(|| panic!("granted: {reply:?}"));
    }

    pub(crate) async fn free(&mut self) {
        let mut command = Cmd::new();
        for word in &self.free {
            match find(word, &self.captured) {
                None => command.arg(word),
                Some(at) => {
                    let (before, behind) = (&word[..at], &word[at + self.captured.len()..]);
                    command.arg([before, &self.fence, behind].concat())
                }
            };
        }
        let reply: Value = command.query_async(&mut self.connection).await.expect("an answer");
        debug_assert!(!matches!(reply, Value::Nil));
    }

    /// Adds what the server says that one round of `work` costs in scripts.
    pub(crate) async fn server_time(&mut self, times: &mut Times, work: impl AsyncFn(&mut Self)) {
        const ROUNDS: u32 = 100;
        self.forget_time().await;
        for _ in 0..ROUNDS {
            work(self).await;
        }
        times.add(self.time_spent().await, ROUNDS);
    }

    pub(crate) async fn forget_time(&mut self) {
        reset(&mut self.connection).await;
    }

    /// What the server has spent on scripts since then.
    pub(crate) async fn time_spent(&mut self) -> Duration {
        spent(&mut self.connection).await
    }
}

/// The words of the two commands that `locks` sends to take and free these ids, and the fence in them.
pub(crate) async fn sent(url: &str, locks: &Locks, wait: Wait, names: &[String]) -> ([Vec<Vec<u8>>; 2], u64) {
    locks.wait(wait.clone()).with_locks(names, || async {}).await.expect("free");
    let mut monitor = client(url).get_async_monitor().await.expect("the server answers");
    let mut lines = monitor.on_message::<String>();
    let fence = locks
        .wait(wait)
        .with_held_locks(names, |held| async move { Ok::<_, std::fmt::Error>(held.locks()[0].granted.fence) })
        .await
        .expect("free");
    let mut commands = Vec::new();
    while commands.len() < 2 {
        let words = words(&lines.next().await.expect("the server goes on telling"));
        if words[0] == b"EVALSHA" {
            commands.push(words);
        }
    }
    (commands.try_into().expect("two"), fence)
}

/// The least that takes and frees a set: look at all, set all; compare and delete each.
pub(crate) struct Minimal {
    connection: MultiplexedConnection,
    take: Cmd,
    free: Cmd,
}

impl Minimal {
    pub(crate) async fn new(url: &str, names: &[String]) -> Self {
        const TAKE: &str = "for i = 1, #KEYS do if redis.call('EXISTS', KEYS[i]) == 1 then return 0 end end \
                            for i = 1, #KEYS do redis.call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2]) end return 1";
        const FREE: &str = "local n = 0 for i = 1, #KEYS do \
                            if redis.call('GET', KEYS[i]) == ARGV[1] then n = n + redis.call('DEL', KEYS[i]) end \
                            end return n";
        let mut connection = connect(url).await;
        let mut commands = Vec::new();
        for script in [TAKE, FREE] {
            let sha: String = redis::cmd("SCRIPT")
                .arg("LOAD")
                .arg(script)
                .query_async(&mut connection)
                .await
                .expect("loaded");
            let mut command = redis::cmd("EVALSHA");
            command.arg(sha).arg(names.len());
            for name in names {
                command.arg(format!("{{minimal}}:{name}"));
            }
            command.arg("01234567-89ab-cdef-0123-456789abcdef").arg(30_000);
            commands.push(command);
        }
        let free = commands.pop().expect("two");
        Minimal { connection, take: commands.pop().expect("two"), free }
    }

    pub(crate) async fn server_time(&mut self, times: &mut Times) {
        const ROUNDS: u32 = 100;
        reset(&mut self.connection).await;
        for _ in 0..ROUNDS {
            let taken: u32 = self.take.query_async(&mut self.connection).await.expect("an answer");
            let freed: u32 = self.free.query_async(&mut self.connection).await.expect("an answer");
            assert!(taken == 1 && freed > 0);
        }
        times.add(spent(&mut self.connection).await, ROUNDS);
    }
}

/// What the server says that scripts cost.
pub(crate) struct Meter(MultiplexedConnection);

impl Meter {
    pub(crate) async fn new(url: &str) -> Self {
        Meter(connect(url).await)
    }

    /// Adds what the scripts of `work` cost.
    pub(crate) async fn once<T>(&mut self, times: &mut Times, work: impl Future<Output = T>) -> T {
        reset(&mut self.0).await;
        let done = work.await;
        times.add(spent(&mut self.0).await, 1);
        done
    }
}

async fn reset(connection: &mut MultiplexedConnection) {
    redis::cmd("CONFIG").arg("RESETSTAT").exec_async(connection).await.expect("an answer");
}

/// What the server has spent on scripts since the reset.
async fn spent(connection: &mut MultiplexedConnection) -> Duration {
    let info: String =
        redis::cmd("INFO").arg("commandstats").query_async(connection).await.expect("an answer");
    let scripts = info.lines().filter(|line| line.starts_with("cmdstat_eval"));
    let micros =
        scripts.filter_map(|line| line.split("usec=").nth(1)?.split(',').next()?.parse::<u64>().ok());
    Duration::from_micros(micros.sum())
}

/// A channel with a client that listens on another connection.
pub(crate) struct Channel {
    publisher: MultiplexedConnection,
    _subscriber: MultiplexedConnection,
    messages: mpsc::UnboundedReceiver<PushInfo>,
}

impl Channel {
    pub(crate) async fn open(url: &str) -> Self {
        let (sender, messages) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new().set_push_sender(sender);
        let client = client(url);
        let mut subscriber =
            client.get_multiplexed_async_connection_with_config(&config).await.expect("the server answers");
        subscriber.subscribe("bare").await.expect("an answer");
        Channel { publisher: connect(url).await, _subscriber: subscriber, messages }
    }

    /// From the PUBLISH to the message, in another task than the one that publishes.
    pub(crate) async fn message(&mut self) -> Duration {
        let mut publisher = self.publisher.clone();
        let published = Instant::now();
        let publish = async { publisher.publish_message().await };
        let arrives = async {
            while let Some(push) = self.messages.recv().await {
                if push.kind == PushKind::Message {
                    return Instant::now();
                }
            }
            panic!("the connection is kept")
        };
        let ((), arrived) = tokio::join!(publish, arrives);
        arrived.duration_since(published)
    }
}

trait Publish {
    async fn publish_message(&mut self);
}

impl Publish for MultiplexedConnection {
    async fn publish_message(&mut self) {
        redis::cmd("PUBLISH").arg("bare").arg("message").exec_async(self).await.expect("an answer");
    }
}

fn command(words: &[Vec<u8>]) -> Cmd {
    let mut command = Cmd::new();
    for word in words {
        command.arg(word);
    }
    command
}

/// The fence in a grant: the one number that is a time in microseconds.
fn fence(reply: &Value) -> Option<Vec<u8>> {
    let is_fence = |text: &str| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_digit());
    match reply {
        Value::Int(number) => Some(number.to_string()).filter(|text| is_fence(text)).map(String::into_bytes),
        Value::BulkString(bytes) => {
            let text = std::str::from_utf8(bytes).ok()?;
            text.split('|').find(|text| is_fence(text)).map(|text| text.as_bytes().to_vec())
        }
        Value::SimpleString(text) => Some(text.clone()).filter(|text| is_fence(text)).map(String::into_bytes),
        Value::Array(values) => values.iter().find_map(fence),
        _ => None,
    }
}

fn places(words: &[Vec<u8>], names: &[String]) -> Vec<Place> {
    let in_word = |(word, text): (usize, &Vec<u8>)| {
        let mut ids = names.iter().enumerate();
        ids.find_map(|(id, name)| Some(Place { id, word, at: find(text, name.as_bytes())? }))
    };
    words.iter().enumerate().filter_map(in_word).collect()
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

/// The words of a line of MONITOR: `time [db address] "word" "word"`, with escapes as in C.
fn words(line: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut rest = line.bytes().skip_while(|&byte| byte != b']').peekable();
    while rest.by_ref().any(|byte| byte == b'"') {
        let mut word = Vec::new();
        while let Some(byte) = rest.next() {
            match byte {
                b'"' => break,
                b'\\' => match rest.next() {
                    Some(b'n') => word.push(b'\n'),
                    Some(b'r') => word.push(b'\r'),
                    Some(b't') => word.push(b'\t'),
                    Some(b'a') => word.push(7),
                    Some(b'b') => word.push(8),
                    Some(b'x') => {
                        let mut digit =
                            || (rest.next().unwrap_or(b'0') as char).to_digit(16).unwrap_or(0) as u8;
                        word.push(digit() * 16 + digit());
                    }
                    Some(other) => word.push(other),
                    None => {}
                },
                other => word.push(other),
            }
        }
        words.push(word);
    }
    if words.is_empty() { vec![Vec::new()] } else { words }
}
