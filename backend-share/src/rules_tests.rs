//! The rules S1 to S4, judged by what simulated processes were told while their clients remembered, stood still, died and lost answers.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use fastrand::Rng;
use lockcore_cell::Found;

use crate::{
    file::Version,
    folder::{Folder, POLLS},
    simulated::{Client, Memory, ROOT, World, as_client},
};

const NAME: &str = "session/a";
const CLIENTS: usize = 4;
const STEPS: u64 = 90;

/// An answer to a client.
enum Told {
    /// A version was written; `at` is the one that it replaced.
    Written { at: Option<Version>, version: Version },
    /// A read, of the version that is known if that is what it says.
    Seen(Option<Version>),
    /// A removal was asked for.
    Removed,
}

/// An answer, and between which calls it was asked for and given.
struct Event {
    client: usize,
    begun: u64,
    ended: u64,
    told: Told,
}

/// A process: opens the folder, and reads, replaces and removes a cell. When it dies another takes its place.
fn process(client: &Client, mut rng: Rng, events: &Mutex<Vec<Event>>) {
    let calls = || client.world.lock().calls;
    let (mut folder, mut known): (Option<Folder>, Option<Version>) = (None, None);
    for step in 0..STEPS {
        {
            let mut state = client.world.lock();
            if std::mem::take(&mut state.clients[client.number].is_dead) {
                state.clients[client.number].folders.clear();
                (folder, known) = (None, None);
            }
        }
        if folder.is_none() {
            folder = Folder::simulated(Path::new(ROOT)).ok();
        }
        let Some(folder) = &folder else { continue };
        let begun = calls();
        // In the end nothing changes any more, and what is remembered is of no use.
        let told = match if step + 4 * POLLS > STEPS { 2 } else { rng.u8(..20) } {
            0 => {
                // Though it is not known to be done.
                let _ = folder.remove(NAME);
                Told::Removed
            }
            1 => {
                // A page of nothing is no error, and what is left behind goes.
                let far = Instant::now() + Duration::from_secs(3600);
                let now = client.world.lock().now;
                let _ = folder.list("session", None, u64::try_from(now).expect("it is after 1970"), far);
                continue;
            }
            2..10 => match folder.read(NAME, known.as_ref()) {
                Ok(Found::Unchanged) => Told::Seen(known.clone()),
                Ok(Found::Absent) => {
                    known = None;
                    Told::Seen(None)
                }
                Ok(Found::Changed(version, _)) => {
                    known = Some(version);
                    Told::Seen(known.clone())
                }
                Err(_) => continue,
            },
            _ => match folder.replace(NAME, known.as_ref(), b"content") {
                Ok(Some(version)) => {
                    let at = known.replace(version.clone());
                    Told::Written { at, version }
                }
                Ok(None) | Err(_) => continue,
            },
        };
        let client = client.number;
        events.lock().expect("no panic").push(Event { client, begun, ended: calls(), told });
    }
}

/// Runs a seed; returns what was told, and the world as it was then.
fn run(seed: u64) -> (Vec<Event>, Arc<World>) {
    let (world, events) = (World::new(seed, CLIENTS), Mutex::default());
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (world, events) = (world.clone(), &events);
            scope.spawn(move || {
                let client = Client { world: world.clone(), number };
                let rng = Rng::with_seed(seed * CLIENTS as u64 + number as u64);
                as_client(&client, || process(&client, rng, events));
            });
        }
    });
    let mut events = events.into_inner().expect("no panic");
    events.push(last(seed, &world));
    (events, world)
}

/// Looks at the cell when all others have ended, and nothing fails any more: it is one that can be used.
fn last(seed: u64, world: &Arc<World>) -> Event {
    let begun = {
        let mut state = world.lock();
        state.is_calm = true;
        state.clients.push(Memory::default());
        state.calls
    };
    let client = Client { world: world.clone(), number: CLIENTS };
    let seen = as_client(&client, || {
        let folder = Folder::simulated(Path::new(ROOT)).expect("it can be opened");
        let seen = match folder.read(NAME, None) {
            Ok(Found::Changed(version, _)) => Some(version),
            Ok(Found::Absent) => None,
            other => panic!("seed {seed}: {other:?}"),
        };
        let written = folder.replace(NAME, seen.as_ref(), b"last");
        assert!(matches!(written, Ok(Some(_))), "seed {seed}: {written:?}");
        seen
    });
    Event { client: CLIENTS, begun, ended: world.lock().calls, told: Told::Seen(seen) }
}

/// Judges what was told: no version was replaced twice, and a read is of the newest version at some time between its call and its end -
/// or, for some reads, of one that was replaced within the second in which the client had looked.
fn judge(events: &[Event], world: &World) -> Result<(), String> {
    let mut writes: HashMap<(&str, u64), &str> = HashMap::new();
    for event in events {
        let (Told::Written { version, .. } | Told::Seen(Some(version))) = &event.told else { continue };
        let known = writes.entry((&version.life, version.number)).or_insert(&version.write);
        if *known != version.write {
            return Err(format!("two versions {} of {}", version.number, version.life));
        }
    }
    let written = || {
        let written = |event: &'_ Event| matches!(event.told, Told::Written { .. });
        events.iter().filter(move |event| written(event))
    };
    let is_removed = |after: &Event, before: &Event| {
        let between = |event: &Event| event.ended > after.begun && event.begun < before.ended;
        events.iter().any(|event| matches!(event.told, Told::Removed) && between(event))
    };
    let mut created: Option<&Event> = None;
    for event in written().filter(|event| matches!(event.told, Told::Written { at: None, .. })) {
        if let Some(before) = created.filter(|other| !is_removed(other, event) && !is_removed(event, other)) {
            // The first of them may have been removed long before it ended.
            return Err(format!("created by call {} and again by call {}", before.ended, event.ended));
        }
        created = Some(event);
    }
    let state = world.lock();
    let looked = |event: &Event, before: &Event| {
        let Told::Written { version, .. } = &before.told else { return false };
        let path = Path::new(ROOT).join("n").join(NAME).join(version.file_name());
        state.named.get(&path).is_some_and(|named| state.clients[event.client].looked.contains(named))
    };
    // The number of reads in a row of each client that missed a change.
    let mut missed = [0_u64; CLIENTS + 1];
    for event in events {
        let Told::Seen(seen) = &event.told else { continue };
        let misses = |before: &&Event| {
            let Told::Written { version, .. } = &before.told else { return false };
            match seen {
                Some(seen) if seen.life == version.life => seen.number < version.number,
                _ => !is_removed(before, event),
            }
        };
        match written().filter(|before| before.ended < event.begun).find(misses) {
            None => missed[event.client] = 0,
            Some(before)
                if seen.is_some()
                    // A client forgets what it knew of a folder that it changes itself.
                    && before.client != event.client
                    && missed[event.client] < 2 * POLLS
                    && looked(event, before) =>
            {
                missed[event.client] += 1;
            }
            Some(before) => {
                return Err(format!("call {} did not see what was written by {}", event.ended, before.ended));
            }
        }
    }
    Ok(())
}

/// `LOCKCORE_SHARE_SEEDS` says how many seeds there are.
#[test]
fn no_version_is_replaced_twice() {
    let seeds =
        std::env::var("LOCKCORE_SHARE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(100);
    let (mut written, mut seen) = (0, 0);
    for seed in 0..seeds {
        let (events, world) = run(seed);
        written +=
            events.iter().filter(|event| matches!(event.told, Told::Written { at: Some(_), .. })).count();
        seen += events.iter().filter(|event| matches!(event.told, Told::Seen(Some(_)))).count();
        judge(&events, &world).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
    println!("{written} replacements and {seen} reads by {seeds} seeds");
    assert!(written as u64 > seeds * 10 && seen as u64 > seeds * 10, "{written} {seen}");
}
