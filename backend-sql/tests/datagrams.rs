//! The datagrams that notify a session, which any user of the host can send, must not keep the session from its work.

use std::{
    fs,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::MetadataExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use lockcore::{
    ClaimSet, Grant, LockDao, Mode,
    backend::{AcquireRequest, Acquired, AttemptId},
};
use lockcore_conformance::servers::Trial;
use lockcore_sql::SqliteLockDao;
use uuid::Uuid;

type Dao = SqliteLockDao<String, Uuid>;

/// Renewals that have to be answered while datagrams are sent without a pause.
const RENEWALS: usize = 1000;

/// Far more than a step takes here, far less than the work that the datagrams would make.
const SLOW: Duration = Duration::from_secs(1);

pub(crate) fn trials() -> Vec<Trial> {
    tests!["datagrams", notifying_without_a_pause_delays_nothing]
        .into_iter()
        .map(Trial::of_liveness)
        .collect()
}

async fn notifying_without_a_pause_delays_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    let (dao, other) = (open(&file).await, open(&file).await);
    let held = granted(&dao, &request("a", false)).await;
    granted(&other, &request("b", false)).await;
    // A session listens once it has a waiter.
    let Acquired::Queued { wakeup: _wakeup, .. } = dao.acquire(&request("b", true)).await.expect("an answer")
    else {
        panic!("it is held")
    };
    let address = socket_of(fs::metadata(&file).expect("it is there").ino());
    let stop = AtomicBool::new(false);
    let slowest = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let socket = UnixDatagram::unbound().expect("a socket");
                socket.set_write_timeout(Some(Duration::from_millis(10))).expect("it can be set");
                while !stop.load(Ordering::Relaxed) {
                    let _ = socket.send_to_addr(&[], &address);
                }
            });
        }
        let slowest = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let mut slowest = Duration::ZERO;
            for _ in 0..RENEWALS {
                let begun = Instant::now();
                let renewed = runtime.block_on(dao.renew(&held)).expect("an answer");
                assert_eq!(renewed.lost, []);
                slowest = slowest.max(begun.elapsed());
                if slowest >= SLOW {
                    break;
                }
            }
            slowest
        });
        let slowest = slowest.join();
        stop.store(true, Ordering::Relaxed);
        slowest.expect("every renewal is answered")
    });
    assert!(slowest < SLOW, "a renewal took {slowest:?}");
}

/// The address of the session's socket, as every user can read it.
fn socket_of(inode: u64) -> SocketAddr {
    let sockets = fs::read_to_string("/proc/net/unix").expect("it can be read");
    let mut names = sockets.lines().filter_map(|line| line.split_once("@lockcore/").map(|(_, name)| name));
    let file = format!("/{inode:x}/");
    let name = names.find(|name| name.contains(&file)).expect("it listens");
    SocketAddr::from_abstract_name(format!("lockcore/{name}")).expect("a name")
}

async fn open(file: &std::path::Path) -> Dao {
    Dao::open(file).await.expect("the file can be opened")
}

async fn granted(dao: &Dao, request: &AcquireRequest<String, Uuid>) -> Grant<String, Uuid> {
    match dao.acquire(request).await.expect("an answer") {
        Acquired::Granted(granted) => {
            Grant::new(request.context, request.claims.clone(), granted, request.lease)
        }
        other => panic!("not granted: {other:?}"),
    }
}

fn request(id: &str, queue: bool) -> AcquireRequest<String, Uuid> {
    AcquireRequest {
        context: Uuid::new_v4(),
        attempt: AttemptId::fresh(),
        claims: ClaimSet::new([id], Mode::Exclusive).expect("valid"),
        lease: Some(Duration::from_secs(60)),
        owner: "".into(),
        queue,
        nested: false,
        detached: false,
    }
}
