//! Processes of their own for tests: this test binary, started again in a role.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use lockcore::{
    ClaimSet, Grant, Granted, LockDao, Mode,
    backend::{AcquireRequest, Acquired, AttemptId, Wake},
};
use lockcore_sql::SqliteLockDao;
use rusqlite::Connection;
use rustix::{
    process::{Pid, Signal, WaitOptions, kill_process, waitpid},
    time::{ClockId, clock_gettime},
};
use uuid::Uuid;

pub(crate) type Dao = SqliteLockDao<String, Uuid>;

/// How long a test waits for what has to come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

const ROLE: &str = "LOCKCORE_SQLITE_TEST_ROLE";
const FILE: &str = "LOCKCORE_SQLITE_TEST_FILE";

/// A process in a role.
pub(crate) struct Child {
    process: std::process::Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Child {
    /// Starts this binary again, which then plays `role` with the database at `file`.
    pub(crate) fn start(role: &str, file: &Path) -> Self {
        Self::of(Command::new(std::env::current_exe().expect("this binary")), role, file)
    }

    /// Starts it in a mount namespace of its own, where `name` is another name of `of`, by a mount.
    pub(crate) fn start_beside_mount(of: &Path, name: &Path, role: &str, file: &Path) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", r#"mount --bind "$1" "$2" && exec "$0""#]);
        command.arg(std::env::current_exe().expect("this binary")).args([of, name]);
        Self::of(command, role, file)
    }

    fn of(mut command: Command, role: &str, file: &Path) -> Self {
        let mut process = command
            .env(ROLE, role)
            .env(FILE, file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this binary can be started again");
        let output = BufReader::new(process.stdout.take().expect("it is piped"));
        let input = process.stdin.take().expect("it is piped");
        let (sender, lines) = channel();
        thread::spawn(move || {
            let said = output.lines().map_while(Result::ok);
            for line in said.filter_map(|line| line.split_once("@ ").map(|(_, said)| said.to_owned())) {
                let _ = sender.send(line);
            }
        });
        Child { process, input, lines }
    }

    /// The next thing it says.
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("it says something")
    }

    /// The next thing it says, which has to begin with `word`; gives the rest.
    pub(crate) fn says(&self, word: &str) -> String {
        let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("it never says {word:?}"));
        let rest = line.strip_prefix(word).unwrap_or_else(|| panic!("it says {line:?}, not {word:?}"));
        rest.trim().to_owned()
    }

    /// Lets it go on to its next step.
    pub(crate) fn go_on(&mut self) {
        writeln!(self.input).expect("it listens");
    }

    /// Waits until it has ended by itself.
    pub(crate) fn ends(mut self) {
        self.process.wait().expect("it ends");
    }

    /// Stops it between two steps: one that is stopped within a step keeps the write lock of the database at `file`.
    pub(crate) fn stop(&self, file: &Path) {
        let pid = Pid::from_child(&self.process);
        let database = Connection::open(file).expect("it can be opened");
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            kill_process(pid, Signal::STOP).expect("it is there");
            // The signal is only sent by now: some of its threads may run on.
            let status = waitpid(Some(pid), WaitOptions::UNTRACED).expect("it is a child");
            assert!(status.is_some_and(|(_, status)| status.stopped()));
            if database.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok() {
                return;
            }
            self.resume();
        }
        panic!("it is never between two steps");
    }

    /// Lets it go on after a [`stop`](Self::stop).
    pub(crate) fn resume(&self) {
        kill_process(Pid::from_child(&self.process), Signal::CONT).expect("it is there");
    }

    /// Kills it and waits until it is gone.
    pub(crate) fn kill(mut self) {
        self.process.kill().expect("it is there");
        self.process.wait().expect("it ends");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Plays the role that this process was started in; `false` if it is to run tests.
pub(crate) fn play() -> bool {
    let (Ok(role), Ok(file)) = (std::env::var(ROLE), std::env::var(FILE)) else {
        return false;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let mut words = role.split(' ');
        let what = words.next().expect("a role");
        let words: Vec<&str> = words.collect();
        if what == "try" {
            return say(&tried(Path::new(&file), words[0]).await);
        }
        let dao = open(Path::new(&file)).await;
        match what {
            "open" => say("open"),
            "hold" => hold(&dao, words[0], words[1].parse().expect("seconds"), words[2] == "detached").await,
            "wait" => wait(&dao, words[0]).await,
            "crowd" => crowd(&dao, words[0]).await,
            "count" => count(&dao, Path::new(words[0]), words[1].parse().expect("a number")).await,
            other => panic!("no role is called {other:?}"),
        }
    });
    true
}

/// What becomes of taking an id.
async fn tried(file: &Path, id: &str) -> String {
    let acquired = match Dao::open(file).await {
        Ok(dao) => dao.acquire(&request(id, Duration::from_secs(60), false)).await,
        Err(error) => Err(error),
    };
    match acquired {
        Ok(Acquired::Refused(_)) => "refused".to_owned(),
        Ok(_) => "granted".to_owned(),
        Err(error) => format!("failed {:?}: {error}", error.kind()),
    }
}

/// Takes an id, and releases it when told to go on.
async fn hold(dao: &Dao, id: &str, lease: u64, detached: bool) {
    let mut request = request(id, Duration::from_secs(lease), false);
    request.detached = detached;
    let grant = granted(&request, dao.acquire(&request).await.expect("an answer"));
    say(&format!("held {}", grant.locks[0].granted.fence));
    listen();
    dao.release(&grant).await.expect("an answer");
    say("released");
}

/// Waits for an id, and releases it when told to go on; again and again.
async fn wait(dao: &Dao, id: &str) {
    loop {
        let grant = lock(dao, id, || say("queued")).await;
        say(&format!("granted {}", now()));
        if !listen() {
            return;
        }
        let released = dao.release(&grant).await.expect("an answer");
        say(&format!("released {:?}", released.lost));
        if !listen() {
            return;
        }
    }
}

/// Waits for an id four times over, and never releases it.
async fn crowd(dao: &Dao, id: &str) {
    let waits = || lock(dao, id, || say("queued"));
    tokio::join!(waits(), waits(), waits(), waits());
}

/// Adds to the number in a file, under a lock.
async fn count(dao: &Dao, file: &Path, times: usize) {
    for _ in 0..times {
        let grant = lock(dao, "counter", || ()).await;
        let number: u64 = std::fs::read_to_string(file).expect("a file").parse().expect("a number");
        std::fs::write(file, (number + 1).to_string()).expect("it can be written");
        let released = dao.release(&grant).await.expect("an answer");
        assert!(released.lost.is_empty(), "{:?}", released.lost);
    }
    say("done");
}

/// Locks an id, waiting for it as the service does.
pub(crate) async fn lock(dao: &Dao, id: &str, queued: impl Fn()) -> Grant<String, Uuid> {
    let request = request(id, Duration::from_secs(30), true);
    loop {
        match dao.acquire(&request).await.expect("an answer") {
            Acquired::Queued { mut wakeup, recheck, .. } => {
                queued();
                let recheck = recheck.expect("there is one");
                if let Ok(Wake::Offer(offer)) = tokio::time::timeout(recheck, wakeup.recv()).await {
                    let grant = grant(&request, offer.granted);
                    if dao.renew(&grant).await.expect("an answer").lost.is_empty() {
                        return grant;
                    }
                }
            }
            acquired => return granted(&request, acquired),
        }
    }
}

pub(crate) async fn open(file: &Path) -> Dao {
    SqliteLockDao::open(file).await.expect("the database can be opened")
}

pub(crate) fn request(id: &str, lease: Duration, queue: bool) -> AcquireRequest<String, Uuid> {
    AcquireRequest {
        context: Uuid::new_v4(),
        attempt: AttemptId::fresh(),
        claims: ClaimSet::new([id], Mode::Exclusive).expect("valid"),
        lease: Some(lease),
        owner: "a test".into(),
        queue,
        nested: false,
        detached: false,
    }
}

pub(crate) fn granted(
    request: &AcquireRequest<String, Uuid>,
    acquired: Acquired<String, Uuid>,
) -> Grant<String, Uuid> {
    match acquired {
        Acquired::Granted(granted) => grant(request, granted),
        other => panic!("not granted: {other:?}"),
    }
}

/// Asks again and again until it is granted.
pub(crate) async fn eventually(dao: &Dao, request: &AcquireRequest<String, Uuid>) -> Grant<String, Uuid> {
    let begun = Instant::now();
    loop {
        match dao.acquire(request).await.expect("an answer") {
            Acquired::Refused(conflicts) => assert!(begun.elapsed() < PATIENCE, "{conflicts:?}"),
            acquired => return granted(request, acquired),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Microseconds on a clock that all processes share.
pub(crate) fn now() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

fn grant(request: &AcquireRequest<String, Uuid>, granted: Vec<Granted>) -> Grant<String, Uuid> {
    Grant::new(request.context, request.claims.clone(), granted, request.lease)
}

fn say(what: &str) {
    println!("@ {what}");
}

/// Waits to be told to go on; `false` at the end.
fn listen() -> bool {
    std::io::stdin().read_line(&mut String::new()).is_ok_and(|bytes| bytes > 0)
}
