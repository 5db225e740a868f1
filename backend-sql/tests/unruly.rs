//! Locks by statements through a proxy that answers in the server's place that it gave a statement up, and loses answers.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

use bytes::Bytes;
use lockcore::{LockDao, LockingService};
use lockcore_cell::{Cell, Change, Found, Written};
use lockcore_conformance::{
    eventually,
    servers::{self, ANSWERS, Kind, TestResult, Trial, trial},
};
use lockcore_sql::{MysqlBuilder, MysqlLockDao, PostgresBuilder, PostgresLockDao};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use uuid::Uuid;

pub(crate) fn trials() -> Vec<Trial> {
    let kinds = [Kind::Postgres, Kind::MySql, Kind::MariaDb];
    let each = kinds.into_iter().flat_map(|kind| {
        [
            trial(kind, "unruly::each_outcome_is_true", move || each_outcome_is_true(kind)),
            trial(kind, "unruly::one_holds_a_lock", move || one_holds_a_lock(kind)),
        ]
    });
    each.collect()
}

/// One of so many statements is answered as given up, and one of so many is carried out without an answer.
const GIVEN_UP: u64 = 8;
const LOST: u64 = 23;

/// The server's message for a statement that it gave up.
const GIVEN_UP_TEXT: &str = "given up by the server";

/// The proxy.
struct Unruly {
    address: String,
    faults: Arc<Faults>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Faults {
    /// Set once it is to make faults.
    armed: AtomicBool,
    statements: AtomicU64,
    given_up: AtomicU64,
    lost: AtomicU64,
}

impl Drop for Unruly {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What becomes of what a client sends.
enum Fate {
    Passes,
    IsGivenUp,
    LosesAnswer,
}

impl Faults {
    fn fate(&self, is_statement: bool) -> Fate {
        if !is_statement || !self.armed.load(SeqCst) {
            return Fate::Passes;
        }
        // Whose it is is by chance.
        let number = self.statements.fetch_add(1, Relaxed);
        if number % LOST == 11 {
            self.lost.fetch_add(1, Relaxed);
            Fate::LosesAnswer
        } else if number % GIVEN_UP == 3 {
            self.given_up.fetch_add(1, Relaxed);
            Fate::IsGivenUp
        } else {
            Fate::Passes
        }
    }
}

impl Unruly {
    async fn before(kind: Kind, upstream: String) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let (address, faults) = (listener.local_addr()?.to_string(), Arc::new(Faults::default()));
        let of_all = faults.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (upstream, faults) = (upstream.clone(), of_all.clone());
                tokio::spawn(async move {
                    let server = TcpStream::connect(upstream).await?;
                    carry(kind, client, server, &faults).await
                });
            }
        });
        Ok(Unruly { address, faults, task })
    }
}

/// Carries what the two send, until one of them ends or an answer is lost.
async fn carry(kind: Kind, client: TcpStream, server: TcpStream, faults: &Faults) -> io::Result<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let mut buffer = vec![0; 1 << 16];
    let mut sent = Vec::new();
    let (mut begun, mut loses) = (false, false);
    let mut input = vec![0; 1 << 16];
    loop {
        tokio::select! {
            read = from_server.read(&mut buffer) => match read? {
                0 => return Ok(()),
                // It is answered, and no answer arrives.
                _ if loses => return Ok(()),
                count => to_client.write_all(&buffer[..count]).await?,
            },
            read = from_client.read(&mut input) => match read? {
                0 => return Ok(()),
                count => {
                    sent.extend_from_slice(&input[..count]);
                    while let Some((length, is_statement)) = message(kind, &sent, begun) {
                        let whole: Vec<u8> = sent.drain(..length).collect();
                        begun = true;
                        match faults.fate(is_statement) {
                            Fate::Passes => to_server.write_all(&whole).await?,
                            Fate::IsGivenUp => to_client.write_all(&given_up(kind)).await?,
                            Fate::LosesAnswer => {
                                loses = true;
                                to_server.write_all(&whole).await?;
                            }
                        }
                    }
                }
            },
        }
    }
}

/// Returns how long the first of what a client sent is, as far as it is answered at once, and whether it is a statement that is
/// executed.
fn message(kind: Kind, sent: &[u8], begun: bool) -> Option<(usize, bool)> {
    if kind != Kind::Postgres {
        let [a, b, c, sequence, command, ..] = *sent else { return None };
        let length = 4 + usize::from(a) + (usize::from(b) << 8) + (usize::from(c) << 16);
        // Commands begin a sequence: a query as text, or one that was prepared.
        return (sent.len() >= length).then_some((length, sequence == 0 && [3, 0x17].contains(&command)));
    }
    if !begun {
        let length = u32::from_be_bytes(sent.get(..4)?.try_into().ok()?) as usize;
        return (sent.len() >= length).then_some((length, false));
    }
    let (mut at, mut executes) = (0, false);
    loop {
        let letter = *sent.get(at)?;
        let length = u32::from_be_bytes(sent.get(at + 1..at + 5)?.try_into().ok()?) as usize;
        at += 1 + length;
        if sent.len() < at {
            return None;
        }
        executes |= matches!(letter, b'Q' | b'E');
        // A batch goes up to a Sync.
        if !matches!(letter, b'P' | b'D' | b'B' | b'E' | b'C' | b'H') {
            return Some((at, executes));
        }
    }
}

/// Returns the answer that the statement was given up in favour of another.
fn given_up(kind: Kind) -> Vec<u8> {
    if kind == Kind::Postgres {
        let fields = format!("SERROR\0VERROR\0C40001\0M{GIVEN_UP_TEXT}\0\0");
        let length = u32::try_from(fields.len() + 4).expect("short").to_be_bytes();
        return [&b"E"[..], &length, fields.as_bytes(), b"Z\0\0\0\x05I"].concat();
    }
    let error = [&b"\xff"[..], &1213_u16.to_le_bytes(), b"#40001", GIVEN_UP_TEXT.as_bytes()].concat();
    let length = u8::try_from(error.len()).expect("short");
    [&[length, 0, 0, 1][..], &error].concat()
}

/// A namespace of a server behind the proxy, and past it.
struct Place {
    namespace: String,
    by: Unruly,
    direct: String,
    through: String,
}

impl Place {
    async fn new(kind: Kind) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let server = servers::shared(kind).await?;
        let by = Unruly::before(kind, server.address()).await?;
        let plain = if kind == Kind::Postgres { "sslmode=disable" } else { "ssl-mode=disabled" };
        let through = format!("{}?{plain}", server.url().replace(&server.address(), &by.address));
        Ok(Place { namespace: format!("unruly {}", Uuid::new_v4()), by, direct: server.url(), through })
    }

    fn postgres(&self, url: &str) -> PostgresBuilder<String, Uuid> {
        let builder = PostgresLockDao::builder().url(url).namespace(&*self.namespace);
        builder.timeout(2 * ANSWERS).max_connections(3).listen(false)
    }

    fn mysql(&self, url: &str) -> MysqlBuilder<String, Uuid> {
        let builder = MysqlLockDao::builder().url(url).namespace(&*self.namespace);
        builder.timeout(2 * ANSWERS).max_connections(3)
    }

    fn arm(&self) {
        self.by.faults.armed.store(true, SeqCst);
    }

    fn made_faults(&self) {
        let Faults { given_up, lost, .. } = &*self.by.faults;
        let (given_up, lost) = (given_up.load(Relaxed), lost.load(Relaxed));
        assert!(given_up > 0 && lost > 0, "{given_up} given up, {lost} lost");
    }
}

async fn each_outcome_is_true(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    match kind {
        Kind::Postgres => {
            let direct = place.postgres(&place.direct).cells().await?;
            let through = [
                place.postgres(&place.through).cells().await?,
                place.postgres(&place.through).prepared(false).cells().await?,
            ];
            outcomes(&place, direct, through).await;
        }
        _ => {
            // With MySQL, this one also lets the server know the password without TLS.
            let direct = place.mysql(&place.direct).cells().await?;
            let through =
                [place.mysql(&place.through).cells().await?, place.mysql(&place.through).cells().await?];
            outcomes(&place, direct, through).await;
        }
    }
    place.made_faults();
    Ok(())
}

/// What became of a write, as its caller is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    Done,
    Nothing,
    Doubt,
}

/// Each writer adds a word of its own to some cells at once. In the end a word is in all cells of its set or in none, once, and as
/// its writer was told.
async fn outcomes<C: Cell>(place: &Place, direct: C, through: [C; 2]) {
    const CELLS: usize = 5;
    const WRITERS: usize = 6;
    const WRITES: usize = 40;
    place.arm();
    let cells = Arc::new(through);
    let writers = (0..WRITERS).map(|writer| {
        let cells = cells.clone();
        tokio::spawn(async move {
            let mut told = Vec::new();
            for write in 0..WRITES {
                let cell = &cells[writer % 2];
                let mut names: Vec<_> = (0..CELLS).map(|number| format!("id/{number}")).collect();
                fastrand::shuffle(&mut names);
                names.truncate(fastrand::usize(1..=3));
                let asked: Vec<_> = names.iter().map(|name| (name.clone(), None)).collect();
                let found = match cell.read_all(&asked).await {
                    Ok(found) => found,
                    Err(error) => {
                        assert!(error.is_retryable() && !error.in_doubt(), "{error}");
                        assert!(!error.to_string().contains(GIVEN_UP_TEXT), "it is sent again: {error}");
                        continue;
                    }
                };
                let word = format!("{writer}.{write} ");
                let change = |(name, found): (&String, Found<C::Version>)| {
                    let (at, before) = match found {
                        Found::Changed(version, content) => (Some(version), content),
                        _ => (None, Bytes::new()),
                    };
                    let content = Bytes::from([&before[..], word.as_bytes()].concat());
                    Change { name: name.clone(), at, content }
                };
                let changes: Vec<_> = names.iter().zip(found).map(change).collect();
                let outcome = match cell.replace_all(&changes).await {
                    Ok(Written::Done(_)) => Told::Done,
                    Ok(Written::Refused) => Told::Nothing,
                    Err(error) if error.in_doubt() => Told::Doubt,
                    Err(error) => {
                        assert!(error.is_retryable(), "{error}");
                        assert!(!error.to_string().contains(GIVEN_UP_TEXT), "it is sent again: {error}");
                        Told::Nothing
                    }
                };
                told.push((word, names, outcome));
            }
            told
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut told = Vec::new();
    for writer in writers {
        told.extend(writer.await.expect("no writer fails"));
    }
    let mut contents = HashMap::new();
    for number in 0..CELLS {
        let name = format!("id/{number}");
        let content = match direct.read(&name, None).await.expect("the server answers") {
            Found::Changed(_, content) => String::from_utf8(content.to_vec()).expect("words"),
            _ => String::new(),
        };
        contents.insert(name, content);
    }
    let count = |outcome| told.iter().filter(|(_, _, told)| *told == outcome).count();
    assert!(count(Told::Done) > WRITES, "{} of {} are done", count(Told::Done), told.len());
    for (word, names, outcome) in &told {
        let times = |name| contents[name].split_inclusive(' ').filter(|found| found == word).count();
        let counts: Vec<_> = contents.keys().map(|name| (names.contains(name), times(name))).collect();
        let is_done = counts.iter().all(|(of_set, count)| *count == usize::from(*of_set));
        let is_nothing = counts.iter().all(|(_, count)| *count == 0);
        let is_true = match outcome {
            Told::Done => is_done,
            Told::Nothing => is_nothing,
            Told::Doubt => is_done || is_nothing,
        };
        assert!(is_true, "{word}of {names:?} was told to be {outcome:?}: {contents:?}");
    }
}

async fn one_holds_a_lock(kind: Kind) -> TestResult {
    let place = Place::new(kind).await?;
    match kind {
        Kind::Postgres => {
            let one = place.postgres(&place.through).open_without_routines().await?;
            let two = place.postgres(&place.through).open_without_routines().await?;
            exclusion(&place, one, two).await;
        }
        _ => {
            let direct = place.mysql(&place.direct).open_without_routines().await?;
            let one = place.mysql(&place.through).open_without_routines().await?;
            let two = place.mysql(&place.through).open_without_routines().await?;
            drop(direct);
            exclusion(&place, one, two).await;
        }
    }
    place.made_faults();
    Ok(())
}

/// Callers of two services take sets that overlap, again and again; each gets its turn, and none beside another.
async fn exclusion<D: LockDao<String, Uuid> + 'static>(place: &Place, one: D, two: D) {
    place.arm();
    let services = [LockingService::new(one), LockingService::new(two)];
    let held: Arc<[AtomicBool; 3]> = Arc::default();
    let callers = (0..4).map(|caller| {
        let (service, held) = (services[caller % 2].clone(), held.clone());
        tokio::spawn(async move {
            for round in 0..6 {
                let ids = [(caller + round) % 3, (caller + round + 1) % 3];
                eventually("a set is taken", async || {
                    let names = ids.map(|id| format!("id {id}"));
                    let locked = service.with_locks(names, async || -> io::Result<()> {
                        for id in ids {
                            assert!(!held[id].swap(true, SeqCst), "two hold {id}");
                        }
                        tokio::task::yield_now().await;
                        for id in ids {
                            held[id].store(false, SeqCst);
                        }
                        Ok(())
                    });
                    locked.await.ok()
                })
                .await;
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    for caller in callers {
        caller.await.expect("each gets its turn");
    }
}
