//! Why an id cannot be had: its holders, what these wait for in turn, and cycles among them.

use std::fmt::{self, Write};

use crate::{ContextId, HeldBy, Ident, Inspection, Uuid, WaitingFor};

/// Why an id cannot be had, as [`Admin::why`](crate::Admin::why) found it.
///
/// A holder waits for another id if a waiter there has its context, or the same owner label: each call of a process has a
/// context of its own, so that labels must be different for different workers if this is to be exact. Nothing is changed, and
/// no holder is stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Why<I = String, C = Uuid> {
    /// The id that was asked for, and then each id that a holder of an earlier one waits for.
    pub ids: Vec<Inspection<I, C>>,
    /// Which holders wait for what.
    pub waits: Vec<HolderWaits>,
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
    /// Follows the holders of the first of `all` that has the target of `asked`, through `all` that is locked.
    pub(crate) fn follow(asked: Inspection<I, C>, all: &[Inspection<I, C>]) -> Self {
        let mut why = Why { ids: vec![asked], waits: Vec::new() };
        let mut next = 0;
        while let Some(seen) = why.ids.get(next).cloned() {
            for (holder, held) in seen.holders.iter().enumerate() {
                for other in all.iter().filter(|other| other.waiters.iter().any(|waiter| same(held, waiter)))
                {
                    let known = why.ids.iter().position(|id| id.target == other.target);
                    let waits_for = known.unwrap_or_else(|| {
                        why.ids.push(other.clone());
                        why.ids.len() - 1
                    });
                    why.waits.push(HolderWaits { id: next, holder, waits_for });
                }
            }
            next += 1;
        }
        why
    }

    /// Returns the ids of a cycle, each of whose holders waits for the next: they wait for ever, or until a lease ends or a
    /// wait is over. Positions in [`ids`](Self::ids).
    pub fn cycle(&self) -> Option<Vec<usize>> {
        let (mut path, mut done) = (Vec::new(), vec![false; self.ids.len()]);
        (0..self.ids.len()).find_map(|id| self.cycle_from(id, &mut path, &mut done))
    }

    fn cycle_from(&self, id: usize, path: &mut Vec<usize>, done: &mut [bool]) -> Option<Vec<usize>> {
        if let Some(start) = path.iter().position(|before| *before == id) {
            return Some(path[start..].to_vec());
        }
        if std::mem::replace(&mut done[id], true) {
            return None;
        }
        path.push(id);
        let next = self.waits.iter().filter(|waits| waits.id == id);
        let found = next.map(|waits| waits.waits_for).find_map(|next| self.cycle_from(next, path, done));
        path.pop();
        found
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
            match (seen.holders.is_empty(), seen.frozen) {
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
        Ok(())
    }
}

/// Whether the two are the same worker, as far as can be known.
fn same<C: PartialEq>(held: &HeldBy<C>, waiter: &WaitingFor<C>) -> bool {
    held.context == waiter.context || !held.owner.is_empty() && held.owner == waiter.owner
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
