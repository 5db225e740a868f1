//! A simulated server of files, and clients of it that remember what they saw, stand still, die, and lose answers.
//!
//! A client is a thread. Only one runs at a time: at each call to the file system the next one is chosen by the seed, which decides all
//! but the order of random names. What a client remembers of a folder counts until it changes something in it, or asks the server and sees
//! another time: a change within one tick of the server's clock goes unseen.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, HashSet},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fastrand::Rng;
use rustix::io::Errno;

/// The time for which a client remembers a folder, in seconds.
const REMEMBERED: i64 = 30;

/// The share.
pub(crate) const ROOT: &str = "/share";

thread_local! {
    static CLIENT: RefCell<Option<Client>> = const { RefCell::new(None) };
}

/// Makes this thread a client while `work` runs. Then the others go on without it, also after a panic.
pub(crate) fn as_client<T>(client: &Client, work: impl FnOnce() -> T) -> T {
    struct Ends<'c>(&'c Client);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            CLIENT.set(None);
            let mut state = self.0.world.lock();
            state.clients[self.0.number].is_done = true;
            state.choose();
            self.0.world.turns.notify_all();
        }
    }
    CLIENT.set(Some(client.clone()));
    let _ends = Ends(client);
    work()
}

/// Returns what this thread is a client of, if it is simulated.
pub(crate) fn client() -> Option<Client> {
    CLIENT.with_borrow(Clone::clone)
}

/// One client, whose calls wait for their turn.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) world: Arc<World>,
    pub(crate) number: usize,
}

pub(crate) struct World {
    state: Mutex<State>,
    turns: Condvar,
}

pub(crate) struct State {
    rng: Rng,
    /// The server's clock, in seconds.
    pub(crate) now: i64,
    /// One in so many calls is a second later than the one before.
    pace: u16,
    /// Nothing fails any more.
    pub(crate) is_calm: bool,
    /// The number of calls so far.
    pub(crate) calls: u64,
    nodes: BTreeMap<PathBuf, Node>,
    /// The time at which each name was given first: a late writer may give it again.
    pub(crate) named: HashMap<PathBuf, i64>,
    pub(crate) clients: Vec<Memory>,
    /// The client that may make its call.
    turn: Option<usize>,
}

#[derive(Clone)]
struct Node {
    modified: i64,
    /// `None`: a folder.
    content: Option<Arc<Vec<u8>>>,
}

/// A client, as the server sees it, and its memory.
#[derive(Default)]
pub(crate) struct Memory {
    is_waiting: bool,
    is_done: bool,
    /// The process died: no call of it does anything until it begins again.
    pub(crate) is_dead: bool,
    /// The times since when it remembered folders.
    pub(crate) looked: HashSet<i64>,
    /// It stands still up to this call.
    stands_until: u64,
    pub(crate) folders: HashMap<PathBuf, Remembered>,
}

/// The memory of a folder.
#[derive(Default)]
pub(crate) struct Remembered {
    modified: i64,
    /// The time since when it is remembered.
    since: i64,
    files: HashMap<PathBuf, Option<Arc<Vec<u8>>>>,
    names: Option<Vec<String>>,
}

/// The fate of a call.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Answered,
    /// It is done, and its answer is lost.
    Lost,
    /// It is not done: the handle of the folder is stale.
    Stale,
}

impl World {
    pub(crate) fn new(seed: u64, clients: usize) -> Arc<World> {
        let folder = Node { modified: 1_000, content: None };
        let mut rng = Rng::with_seed(seed);
        let pace = [4, 16, 64, 256][rng.usize(..4)];
        let state = State {
            rng,
            now: 1_000,
            pace,
            is_calm: false,
            calls: 0,
            nodes: BTreeMap::from([(PathBuf::from(ROOT), folder)]),
            named: HashMap::new(),
            clients: (0..clients).map(|_| Memory::default()).collect(),
            turn: None,
        };
        Arc::new(World { state: Mutex::new(state), turns: Condvar::new() })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic within a call is the test's to tell.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Chooses the next client, once all wait.
    fn choose(&mut self) {
        let is_waiting = |client: &Memory| client.is_waiting || client.is_done;
        if self.turn.is_some() || !self.clients.iter().all(is_waiting) {
            return;
        }
        let mut left: Vec<usize> =
            (0..self.clients.len()).filter(|number| !self.clients[*number].is_done).collect();
        let calls = self.calls;
        let awake = |number: &usize| self.clients[*number].stands_until <= calls;
        if left.iter().any(awake) {
            left.retain(awake);
        }
        self.turn = self.rng.choice(left);
    }

    /// Returns the name of the folder of a path.
    fn folder(path: &Path) -> PathBuf {
        path.parent().expect("nothing is done to the root").to_owned()
    }

    /// Changes the names in a folder.
    fn change(&mut self, number: usize, path: &Path, fate: Fate) {
        let (folder, now) = (Self::folder(path), self.now);
        self.nodes.get_mut(&folder).expect("it was looked for").modified = now;
        if fate == Fate::Answered {
            self.clients[number].folders.remove(&folder);
        }
    }

    /// Returns what a client remembers of a folder; `None` if there is none, or it remembers that there is none.
    fn remembered(&mut self, number: usize, folder: PathBuf) -> Option<&mut Remembered> {
        let modified = self.nodes.get(&folder).map(|node| node.modified);
        if folder != *Path::new(ROOT) {
            let around = self.remembered(number, Self::folder(&folder))?;
            let is_there = || modified.map(|_| Arc::default());
            around.files.entry(folder.clone()).or_insert_with(is_there).as_ref()?;
        }
        let modified = modified?;
        let (since, client) = (self.now, &mut self.clients[number]);
        let folders = &mut client.folders;
        if folders.get(&folder).is_some_and(|remembered| since > remembered.since + REMEMBERED) {
            folders.remove(&folder);
        }
        let fresh = || {
            client.looked.insert(since);
            Remembered { modified, since, ..Remembered::default() }
        };
        Some(folders.entry(folder).or_insert_with(fresh))
    }

    fn within(&self, folder: &Path) -> impl Iterator<Item = (&PathBuf, &Node)> {
        self.nodes.iter().filter(move |(path, _)| path.parent() == Some(folder))
    }
}

impl Client {
    /// Makes a call when its turn comes.
    fn call<T>(&self, call: impl FnOnce(&mut State, Fate) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.world.lock();
        state.clients[self.number].is_waiting = true;
        state.choose();
        self.world.turns.notify_all();
        while state.turn != Some(self.number) {
            state = self.world.turns.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.turn = None;
        state.clients[self.number].is_waiting = false;
        state.calls += 1;
        let pace = state.pace;
        if state.rng.u16(..pace) == 0 {
            state.now += 1;
        }
        if state.clients[self.number].is_dead {
            return Err(ErrorKind::Interrupted.into());
        }
        let fate = match state.rng.u16(..500) {
            _ if state.is_calm => Fate::Answered,
            0..8 => Fate::Lost,
            8..12 => Fate::Stale,
            12..16 => {
                // From now on, or from after this call.
                let long = if state.rng.bool() { 1_000 } else { 100 };
                state.clients[self.number].stands_until = state.calls + state.rng.u64(..long);
                Fate::Answered
            }
            16..20 => {
                state.clients[self.number].is_dead = true;
                Fate::Lost
            }
            _ => Fate::Answered,
        };
        if fate == Fate::Stale {
            return Err(Errno::STALE.into());
        }
        let answer = call(&mut state, fate);
        if fate == Fate::Lost { Err(ErrorKind::TimedOut.into()) } else { answer }
    }

    pub(crate) fn read(&self, path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
        self.call(|state, _| {
            let content = state.nodes.get(path).and_then(|node| node.content.clone());
            let Some(folder) = state.remembered(self.number, State::folder(path)) else { return Ok(None) };
            // Opening a file asks the server whether it is still there; that there is none may be remembered.
            let seen = folder.files.get(path).filter(|seen| seen.is_none()).cloned().unwrap_or(content);
            folder.files.insert(path.to_owned(), seen.clone());
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            Ok(seen.map(|content| content[..content.len().min(most)].to_vec()))
        })
    }

    pub(crate) fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.call(|state, fate| {
            if state.remembered(self.number, State::folder(path)).is_none() {
                return Err(ErrorKind::NotFound.into());
            }
            let node = Node { modified: state.now, content: Some(Arc::new(content.to_vec())) };
            if state.nodes.insert(path.to_owned(), node).is_some() {
                panic!("it is written under a name of its own");
            }
            state.change(self.number, path, fate);
            Ok(())
        })
    }

    pub(crate) fn link(&self, path: &Path, name: &Path) -> io::Result<()> {
        self.call(|state, fate| {
            let node = state.nodes.get(path).cloned().ok_or(ErrorKind::NotFound)?;
            if state.nodes.contains_key(name) {
                return Err(ErrorKind::AlreadyExists.into());
            }
            state.nodes.insert(name.to_owned(), node);
            let now = state.now;
            state.named.entry(name.to_owned()).or_insert(now);
            state.change(self.number, name, fate);
            Ok(())
        })
    }

    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        self.call(|state, fate| {
            match state.nodes.get(path) {
                None => return Ok(()),
                Some(Node { content: None, .. }) => return Err(ErrorKind::IsADirectory.into()),
                Some(_) => state.nodes.remove(path),
            };
            state.change(self.number, path, fate);
            Ok(())
        })
    }

    pub(crate) fn modified(&self, path: &Path) -> Option<SystemTime> {
        let modified = self.refresh(path).ok()??;
        Some(UNIX_EPOCH + Duration::from_secs(u64::try_from(modified).ok()?))
    }

    pub(crate) fn refresh(&self, path: &Path) -> io::Result<Option<i64>> {
        self.call(|state, _| {
            if path != Path::new(ROOT) && state.remembered(self.number, State::folder(path)).is_none() {
                return Ok(None);
            }
            let modified = state.nodes.get(path).map(|node| node.modified);
            let is_folder = state.nodes.get(path).is_some_and(|node| node.content.is_none());
            if is_folder
                && path != Path::new(ROOT)
                && state.remembered(self.number, path.to_owned()).is_none()
            {
                return Ok(None);
            }
            let folders = &mut state.clients[self.number].folders;
            if folders.get(path).is_some_and(|remembered| Some(remembered.modified) != modified) {
                folders.remove(path);
            }
            Ok(modified)
        })
    }

    pub(crate) fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        self.call(|state, _| {
            let name = |path: &PathBuf| path.file_name()?.to_str().map(str::to_owned);
            let names: Vec<_> = state.within(folder).filter_map(|(path, _)| name(path)).collect();
            let Some(remembered) = state.remembered(self.number, folder.to_owned()) else {
                return Ok(Vec::new());
            };
            let mut seen = remembered.names.get_or_insert(names).clone();
            state.rng.shuffle(&mut seen);
            Ok(seen)
        })
    }

    pub(crate) fn is_folder(&self, path: &Path) -> bool {
        let is_folder = |state: &State| state.nodes.get(path).is_some_and(|node| node.content.is_none());
        self.call(|state, _| Ok(is_folder(state))).unwrap_or(false)
    }

    pub(crate) fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.call(|state, fate| {
            if !state.nodes.contains_key(&State::folder(path)) {
                return Err(ErrorKind::NotFound.into());
            }
            state.nodes.insert(path.to_owned(), Node { modified: state.now, content: None });
            state.change(self.number, path, fate);
            Ok(())
        })
    }

    pub(crate) fn rename_folder(&self, path: &Path, name: &Path) -> io::Result<()> {
        self.call(|state, fate| {
            if state.within(name).next().is_some() {
                return Err(ErrorKind::DirectoryNotEmpty.into());
            }
            let node = state.nodes.remove(path).ok_or(ErrorKind::NotFound)?;
            state.nodes.insert(name.to_owned(), node);
            // Another one than that of which a client may know.
            state.clients.iter_mut().for_each(|client| drop(client.folders.remove(name)));
            state.change(self.number, name, fate);
            Ok(())
        })
    }

    pub(crate) fn remove_folder(&self, path: &Path) -> io::Result<()> {
        self.call(|state, fate| {
            if state.within(path).next().is_some() {
                return Err(ErrorKind::DirectoryNotEmpty.into());
            }
            state.nodes.remove(path).ok_or(ErrorKind::NotFound)?;
            state.change(self.number, path, fate);
            Ok(())
        })
    }
}
