//! A folder, on this host's disk and on a mount by `sshfs`: pairs of sets of 1, 10 and 100 ids that were never locked before, beside
//! two bare compare-and-sets of the same bytes, each a synced file that is linked to the next number, and beside a file for each
//! lock that is made on condition that there is none, and removed, as the `SoftFileLock` of Python's `filelock` does; then how many
//! pairs 32 tasks get done.

use std::{
    convert::Infallible,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use lockcore::LockingService;
use lockcore_benches::{Case, report};
use lockcore_conformance::servers::Mounts;
use lockcore_share::ShareLockDao;
use uuid::Uuid;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
type Locks = LockingService<String, Uuid, ShareLockDao>;

const ROUNDS: u32 = 200;
const TASKS: usize = 32;
/// The time for which each rate is measured.
const TURN: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Outcome<()> {
    // As a task: `block_on` itself would be on a thread of its own.
    tokio::spawn(run()).await?
}

async fn run() -> Outcome<()> {
    // Beside the build: a temporary folder may be in memory.
    let local = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR"))?;
    println!("a local folder");
    folder(local.path()).await?;
    if let Err(reason) = Mounts::can_be_had() {
        println!("no mount by sshfs: {reason}");
        return Ok(());
    }
    Mounts::find()?;
    let mounts = Mounts::start()?;
    println!("a mount by sshfs");
    folder(&mounts.locks(0)).await
}

async fn folder(folder: &Path) -> Outcome<()> {
    let locks = LockingService::new(ShareLockDao::builder().folder(folder).open().await?);
    let mut cases = Vec::new();
    for count in [1, 10, 100] {
        cases.push(pair(&locks, folder, count).await?);
    }
    report(&cases);
    let (alone, together) = (rate(&locks, 1).await?, rate(&locks, TASKS).await?);
    println!(
        "pairs a second: 1 task {alone:.0}; {TASKS} tasks {together:.0}, {:.1} times as many",
        together / alone
    );
    Ok(())
}

fn fresh(count: usize) -> Vec<String> {
    (0..count).map(|_| format!("objects/{:016x}", fastrand::u64(..))).collect()
}

async fn pair(locks: &Locks, folder: &Path, count: usize) -> Outcome<Case> {
    // As much as a table with such a grant has, and one without.
    let (held, free) = (vec![b'x'; 400 + 120 * count], vec![b'x'; 400]);
    let mut bare = Bare { folder: folder.join(format!("bare {count}")), number: 0 };
    fs::create_dir(&bare.folder)?;
    let mut case = Case::new(
        format!("{count} ids, alone"),
        &["lockcore", "two bare compare-and-sets", "O_EXCL for each"],
    );
    for round in 0..ROUNDS {
        let ids = fresh(count);
        case.once(0, locks.with_locks(&ids, async || Ok::<_, Infallible>(()))).await?;
        case.once(1, async { bare.replace(&held).and_then(|()| bare.replace(&free)) }).await?;
        // A hundred files, one by one, take long.
        if count < 100 || round % 10 == 0 {
            case.once(2, async { by_hand(&bare.folder, &ids) }).await?;
        }
    }
    Ok(case)
}

/// Versions without anything of ours.
struct Bare {
    folder: PathBuf,
    number: u64,
}

impl Bare {
    /// Writes the next version, as late as a version counts that others have to find, and removes an old one.
    fn replace(&mut self, content: &[u8]) -> io::Result<()> {
        let path = self.folder.join("writing");
        let mut file = File::create_new(&path)?;
        file.write_all(content)?;
        file.sync_all()?;
        self.number += 1;
        fs::hard_link(&path, self.folder.join(self.number.to_string()))?;
        // Not each server can.
        let _ = File::open(&self.folder).and_then(|folder| folder.sync_all());
        fs::remove_file(&path)?;
        match self.number.checked_sub(8) {
            Some(old) if old > 0 => fs::remove_file(self.folder.join(old.to_string())),
            _ => Ok(()),
        }
    }
}

/// Without lease, fence and queue: what a program does that has nothing else.
fn by_hand(folder: &Path, ids: &[String]) -> io::Result<()> {
    let path = |id: &String| folder.join(id.replace('/', "-"));
    for id in ids {
        File::create_new(path(id))?.write_all(b"me")?;
    }
    ids.iter().try_for_each(|id| fs::remove_file(path(id)))
}

/// Pairs a second of one id each.
async fn rate(locks: &Locks, tasks: usize) -> Outcome<f64> {
    let since = Instant::now();
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move {
                let mut done = 0_u32;
                while since.elapsed() < TURN {
                    locks.with_locks(&fresh(1), async || Ok::<_, Infallible>(())).await?;
                    done += 1;
                }
                Outcome::Ok(done)
            })
        })
        .collect();
    let mut all = 0;
    for task in tasks {
        all += task.await??;
    }
    Ok(f64::from(all) / since.elapsed().as_secs_f64())
}
