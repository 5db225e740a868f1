//! Why an id cannot be had: its holders, what these wait for in turn, and cycles among them.

use std::{
    collections::HashMap,
    fmt::{self, Write},
};

use lockcore::{HeldBy, Inspection, StoredContext, Uuid, WaitingFor};

type Seen = Inspection<String, Uuid>;

/// The most waits that [`Why`] lists.
const MAX_WAITS_LISTED: usize = 1000;

/// The reason why an id cannot be had.
///
/// A holder waits for another id if a waiter there has its context. Each call of a process has a context of its own, so that the
/// owner label counts too, where one context alone holds with it and one alone waits with it: give each worker a label of its own.
/// What several calls of a process share, as they do the default label, shows nothing. Nothing is changed, and no holder is
/// stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Why {
    /// The id that was asked for, and then each id that a holder of an earlier one waits for.
    pub(crate) ids: Vec<Seen>,
    /// The waits of holders for ids; those nearest to the first id, if there are more than [`MAX_WAITS_LISTED`].
    pub(crate) waits: Vec<HolderWaits>,
    /// Set if there are more waits than are listed, of which a cycle may be one.
    pub(crate) is_cut_off: bool,
}

/// A holder of one id that waits for another. All numbers are positions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct HolderWaits {
    /// The id that is held, in [`Why::ids`].
    pub(crate) id: usize,
    /// The holder, in [`Inspection::holders`] of that id.
    pub(crate) holder: usize,
    /// The id that the holder waits for, in [`Why::ids`].
    pub(crate) waits_for: usize,
}

impl Why {
    /// Follows the holders of `asked` through `all` that is locked.
    pub(crate) fn follow(asked: Seen, all: &[Seen]) -> Self {
        let waiting = Waiting::among(all);
        let mut known = HashMap::from([(asked.target.clone(), 0)]);
        let mut why = Why { ids: vec![asked], waits: Vec::new(), is_cut_off: false };
        let mut id = 0;
        while let Some(seen) = why.ids.get(id) {
            for (holder, held) in seen.holders.clone().iter().enumerate() {
                for &other in waiting.of(held) {
                    if why.waits.len() == MAX_WAITS_LISTED {
                        why.is_cut_off = true;
                        return why;
                    }
                    let waits_for = *known.entry(all[other].target.clone()).or_insert_with(|| {
                        why.ids.push(all[other].clone());
                        why.ids.len() - 1
                    });
                    why.waits.push(HolderWaits { id, holder, waits_for });
                }
            }
            id += 1;
        }
        why
    }

    /// Returns the ids of a cycle, each of whose holders waits for the next: they wait for ever, or until a lease ends or a
    /// wait is over. Positions in [`ids`](Self::ids).
    pub(crate) fn cycle(&self) -> Option<Vec<usize>> {
        // For each id what its holders wait for and was not followed yet; `None` before it is reached.
        let mut left: Vec<Option<Vec<usize>>> = vec![None; self.ids.len()];
        for start in 0..self.ids.len() {
            let mut path: Vec<usize> = Vec::new();
            let mut next = left[start].is_none().then_some(start);
            loop {
                if let Some(id) = next {
                    if let Some(start) = path.iter().position(|before| *before == id) {
                        return Some(path[start..].to_vec());
                    }
                    if left[id].is_none() {
                        let waits = self.waits.iter().rev().filter(|waits| waits.id == id);
                        left[id] = Some(waits.map(|waits| waits.waits_for).collect());
                        path.push(id);
                    }
                }
                let Some(&last) = path.last() else { break };
                next = left[last].as_mut().and_then(Vec::pop);
                if next.is_none() {
                    path.pop();
                }
            }
        }
        None
    }

    /// Writes the graph in the DOT language of Graphviz: an arrow leads from each id to its holders, and from a holder to
    /// what it waits for.
    pub(crate) fn to_dot(&self) -> String {
        let mut dot = "digraph why {\n".to_owned();
        for (id, seen) in self.ids.iter().enumerate() {
            let _ = writeln!(dot, "  id{id} [shape=box, label={}];", quoted(&name(seen)));
            for (number, holder) in seen.holders.iter().enumerate() {
                let _ = writeln!(dot, "  id{id}h{number} [label={}];", quoted(&label(holder)));
                let _ = writeln!(dot, "  id{id} -> id{id}h{number} [label=\"held by\"];");
            }
        }
        for HolderWaits { id, holder, waits_for } in &self.waits {
            let _ = writeln!(dot, "  id{id}h{holder} -> id{waits_for} [label=\"waits for\"];");
        }
        dot.push_str("}\n");
        dot
    }
}

impl fmt::Display for Why {
    /// Writes one line for each fact.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (id, seen) in self.ids.iter().enumerate() {
            let name = name(seen);
            if id > 0 {
                f.write_char('\n')?;
            }
            match (seen.holders.is_empty() && seen.unreadable.is_none(), seen.frozen) {
                (true, true) => write!(f, "{name} is frozen")?,
                (true, false) => write!(f, "{name} is free")?,
                (false, true) => write!(f, "{name} is held, and frozen")?,
                (false, false) => write!(f, "{name} is held")?,
            }
            match seen.waiters.len() {
                0 => {}
                1 => f.write_str(", and 1 waits")?,
                waiters => write!(f, ", and {waiters} wait")?,
            }
            if let Some(unreadable) = &seen.unreadable {
                write!(f, "\n  by what cannot be read: {unreadable}")?;
            }
            for (holder, held) in seen.holders.iter().enumerate() {
                write!(f, "\n  by {}, {}", label(held), held.mode)?;
                if let Ok(since) = held.since.elapsed() {
                    write!(f, ", for {:.1?}", since)?;
                }
                if let Some(remaining) = held.remaining {
                    write!(f, "; its lease ends in {remaining:.1?} unless it is renewed")?;
                }
                let waits = self.waits.iter().filter(|waits| (waits.id, waits.holder) == (id, holder));
                for waits in waits {
                    write!(f, "\n    which waits for {}", self::name(&self.ids[waits.waits_for]))?;
                }
            }
        }
        if let Some(cycle) = self.cycle() {
            let ids: Vec<_> = cycle.iter().chain(cycle.first()).map(|id| name(&self.ids[*id])).collect();
            write!(f, "\ncycle: {}", ids.join(" -> "))?;
        }
        if self.is_cut_off {
            write!(f, "\nonly the first {MAX_WAITS_LISTED} waits are listed")?;
        }
        Ok(())
    }
}

/// The ids that each context waits for, as positions in what was listed.
struct Waiting<'a> {
    by_context: HashMap<&'a StoredContext<Uuid>, Vec<usize>>,
    /// Those who wait with a label, and those who hold with it.
    by_label: HashMap<&'a str, [Users<'a>; 2]>,
}

/// The contexts that use a label in one way.
enum Users<'a> {
    None,
    One(&'a StoredContext<Uuid>),
    Several,
}

impl<'a> Waiting<'a> {
    fn among(all: &'a [Seen]) -> Self {
        let mut waiting = Waiting { by_context: HashMap::new(), by_label: HashMap::new() };
        for (id, seen) in all.iter().enumerate() {
            for WaitingFor { context, owner, .. } in &seen.waiters {
                waiting.by_context.entry(context).or_default().push(id);
                waiting.users(owner)[0].add(context);
            }
            for HeldBy { context, owner, .. } in &seen.holders {
                waiting.users(owner)[1].add(context);
            }
        }
        waiting
    }

    fn users(&mut self, label: &'a str) -> &mut [Users<'a>; 2] {
        self.by_label.entry(label).or_insert([Users::None, Users::None])
    }

    /// Returns what a holder waits for, as far as can be known.
    fn of(&self, held: &HeldBy<Uuid>) -> &[usize] {
        let of_label = || match self.by_label.get(&*held.owner)? {
            [Users::One(context), Users::One(holder)]
                if !held.owner.is_empty() && **holder == held.context =>
            {
                self.by_context.get(context)
            }
            _ => None,
        };
        self.by_context.get(&held.context).or_else(of_label).map_or(&[], Vec::as_slice)
    }
}

impl<'a> Users<'a> {
    fn add(&mut self, context: &'a StoredContext<Uuid>) {
        *self = match self {
            Users::None => Users::One(context),
            Users::One(known) if *known == context => return,
            _ => Users::Several,
        };
    }
}

fn name(seen: &Seen) -> String {
    match &seen.target {
        Ok(target) => target.to_string(),
        Err(stored) => format!("{stored:?}"),
    }
}

/// The owner label, or the context where there is none; escaped, since another program wrote it.
fn label(holder: &HeldBy<Uuid>) -> String {
    match holder.owner.label() {
        "" => holder.context.to_string(),
        _ => holder.owner.to_string(),
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lockcore::{LockingService, Page, Target, Wait};
    use lockcore_conformance::eventually;
    use lockcore_memory::MemoryLockDao;

    use super::*;

    type Locks = LockingService<String, Uuid, Arc<MemoryLockDao>>;

    fn id(id: &str) -> Target<String> {
        Target::Id(id.to_owned())
    }

    /// Takes `has` and waits for `wants` until the test ends.
    fn hold_and_wait(locks: &Locks, owner: &'static str, has: &'static str, wants: &'static str) {
        let locks = locks.clone();
        tokio::spawn(async move {
            let _guard = locks.owner(owner).lock([has]).await.expect("it is free");
            let _never = locks.owner(owner).wait(Wait::forever()).lock([wants]).await;
        });
    }

    async fn why(locks: &Locks, asked: &Target<String>) -> Why {
        let asked = locks.admin().inspect(asked).await.expect("memory answers");
        Why::follow(
            asked,
            &locks.admin().list(&Page { limit: 1000, ..Page::default() }).await.expect("memory answers").ids,
        )
    }

    async fn one_waits_for(locks: &Locks, wanted: &str) {
        eventually("one waits", || async {
            (locks.admin().inspect(&id(wanted)).await.expect("memory answers").waiters.len() == 1)
                .then_some(())
        })
        .await;
    }

    #[tokio::test]
    async fn holders_are_followed_to_what_they_wait_for() {
        let locks = LockingService::new(Arc::new(MemoryLockDao::new()));
        let _last = locks.owner("worker \"3\"").lock(["c"]).await.expect("it is free");
        hold_and_wait(&locks, "worker 2", "b", "c");
        one_waits_for(&locks, "c").await;
        hold_and_wait(&locks, "worker 1", "a", "b");
        one_waits_for(&locks, "b").await;

        let why = why(&locks, &id("a")).await;
        let ids: Vec<_> = why.ids.iter().map(|seen| seen.target.clone().expect("one of ours")).collect();
        assert_eq!(ids, [id("a"), id("b"), id("c")]);
        assert_eq!(why.cycle(), None);
        let text = why.to_string();
        assert!(text.contains("\"a\" is held\n  by worker 1, exclusive"), "{text}");
        assert!(text.contains("\"b\" is held, and 1 waits\n  by worker 2, exclusive"), "{text}");
        assert!(text.contains("which waits for \"c\""), "{text}");
        let dot = why.to_dot();
        assert!(dot.contains(r#"id2h0 [label="worker \\\"3\\\""]"#), "{dot}");
        assert!(dot.contains(r#"id0h0 -> id1 [label="waits for"]"#), "{dot}");
    }

    #[tokio::test]
    async fn a_cycle_is_shown() {
        let locks = LockingService::new(Arc::new(MemoryLockDao::new()));
        for (owner, has, wants) in [("1", "a", "b"), ("2", "b", "c"), ("3", "c", "a")] {
            let locks = locks.clone();
            let guard = locks.owner(owner).lock([has]).await.expect("it is free");
            tokio::spawn(async move {
                let _held = guard;
                let _never = locks.owner(owner).wait(Wait::forever()).lock([wants]).await;
            });
        }
        for wanted in ["a", "b", "c"] {
            one_waits_for(&locks, wanted).await;
        }
        let why = why(&locks, &id("b")).await;
        assert_eq!(why.cycle().map(|cycle| cycle.len()), Some(3));
        assert!(why.to_string().ends_with("cycle: \"b\" -> \"c\" -> \"a\" -> \"b\""), "{why}");
    }

    #[tokio::test]
    async fn a_free_id_has_no_reason() {
        let locks = LockingService::new(Arc::new(MemoryLockDao::<String>::new()));
        assert_eq!(why(&locks, &id("a")).await.to_string(), "\"a\" is free");
    }

    #[tokio::test]
    async fn a_label_that_several_calls_share_shows_nothing() {
        let locks = LockingService::new(Arc::new(MemoryLockDao::new()));
        let ids: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        for number in 0..ids.len() {
            let (locks, has, wants) =
                (locks.clone(), ids[number].clone(), ids[(number + 1) % ids.len()].clone());
            tokio::spawn(async move {
                let _guard = locks.owner("a process").lock([has]).await.expect("it is free");
                // Others hold all ids by now.
                tokio::task::yield_now().await;
                let _never = locks.owner("a process").wait(Wait::forever()).lock([wants]).await;
            });
        }
        for wanted in &ids {
            one_waits_for(&locks, wanted).await;
        }
        let why = why(&locks, &id("0")).await;
        assert_eq!((why.ids.len(), &why.waits[..], why.cycle()), (1, &[][..], None), "{why}");
        assert!(!why.is_cut_off);
    }

    #[tokio::test]
    async fn the_waits_that_are_listed_are_bounded() {
        let locks = LockingService::new(Arc::new(MemoryLockDao::new()));
        let half = |name: &str| (0..40).map(|number| format!("{name}{number}")).collect::<Vec<_>>();
        for (owner, has, wants) in [("one", half("a"), half("b")), ("other", half("b"), half("a"))] {
            let guard = locks.owner(owner).lock(&has).await.expect("they are free");
            let locks = locks.clone();
            tokio::spawn(async move {
                let _held = guard;
                let _never = locks.owner(owner).wait(Wait::forever()).lock(wants).await;
            });
        }
        for wanted in ["a0", "b0"] {
            one_waits_for(&locks, wanted).await;
        }
        // Each of 40 ids of one is held by a context that waits for each of 40 of the other: 3200 waits.
        let why = why(&locks, &id("a0")).await;
        assert_eq!((why.waits.len(), why.is_cut_off), (MAX_WAITS_LISTED, true));
        assert_eq!(why.cycle().map(|cycle| cycle.len()), Some(2));
        assert!(why.to_string().ends_with("only the first 1000 waits are listed"), "{why}");
    }
}
