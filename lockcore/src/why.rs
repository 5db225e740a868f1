//! Why an id cannot be had: its holders, what these wait for in turn, and cycles among them.

use std::{
    collections::HashMap,
    fmt::{self, Write},
};

use crate::{ContextId, HeldBy, Ident, Inspection, StoredContext, Uuid, WaitingFor};

/// The most waits that [`Why`] lists.
pub const MAX_WAITS_LISTED: usize = 1000;

/// Why an id cannot be had, as [`Admin::why`](crate::Admin::why) found it.
///
/// A holder waits for another id if a waiter there has its context. Each call of a process has a context of its own, so that the
/// owner label counts too, where one context alone holds with it and one alone waits with it: give each worker a label of its own.
/// What several calls of a process share, as they do the default label, shows nothing. Nothing is changed, and no holder is
/// stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Why<I = String, C = Uuid> {
    /// The id that was asked for, and then each id that a holder of an earlier one waits for.
    pub ids: Vec<Inspection<I, C>>,
    /// Which holders wait for what; those nearest to the first id, if there are more than [`MAX_WAITS_LISTED`].
    pub waits: Vec<HolderWaits>,
    /// Whether there are more waits than are listed, of which a cycle may be one.
    pub is_cut_off: bool,
}

/// A holder of one id that waits for another. All numbers are positions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HolderWaits {
    /// The id that is held, in [`Why::ids`].
    pub id: usize,
    /// The holder, in [`Inspection::holders`] of that id.
    pub holder: usize,
    /// The id that the holder waits for, in [`Why::ids`].
    pub waits_for: usize,
}

impl<I: Ident, C: ContextId> Why<I, C> {
    /// Follows the holders of `asked` through `all` that is locked.
    pub(crate) fn follow(asked: Inspection<I, C>, all: &[Inspection<I, C>]) -> Self {
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
    pub fn cycle(&self) -> Option<Vec<usize>> {
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
    pub fn to_dot(&self) -> String {
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

impl<I: Ident, C: ContextId> fmt::Display for Why<I, C> {
    /// Writes one line for each fact.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (id, seen) in self.ids.iter().enumerate() {
            let name = name(seen);
            if id > 0 {
                f.write_char('\n')?;
            }
            match (seen.is_free(), seen.frozen) {
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

/// Who waits for which ids, as positions in what was listed.
struct Waiting<'a, C> {
    by_context: HashMap<&'a StoredContext<C>, Vec<usize>>,
    /// Those who wait with a label, and those who hold with it.
    by_label: HashMap<&'a str, [Users<'a, C>; 2]>,
}

/// The contexts that use a label in one way.
enum Users<'a, C> {
    None,
    One(&'a StoredContext<C>),
    Several,
}

impl<'a, C: ContextId> Waiting<'a, C> {
    fn among<I>(all: &'a [Inspection<I, C>]) -> Self {
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

    fn users(&mut self, label: &'a str) -> &mut [Users<'a, C>; 2] {
        self.by_label.entry(label).or_insert([Users::None, Users::None])
    }

    /// What a holder waits for, as far as can be known.
    fn of(&self, held: &HeldBy<C>) -> &[usize] {
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

impl<'a, C: PartialEq> Users<'a, C> {
    fn add(&mut self, context: &'a StoredContext<C>) {
        *self = match self {
            Users::None => Users::One(context),
            Users::One(known) if *known == context => return,
            _ => Users::Several,
        };
    }
}

fn name<I: Ident, C>(seen: &Inspection<I, C>) -> String {
    match &seen.target {
        Ok(target) => target.to_string(),
        Err(stored) => format!("{stored:?}"),
    }
}

/// The owner label, or the context where there is none; escaped, since another program wrote it.
fn label<C: ContextId>(holder: &HeldBy<C>) -> String {
    match holder.owner.label() {
        "" => holder.context.to_string(),
        _ => holder.owner.to_string(),
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
