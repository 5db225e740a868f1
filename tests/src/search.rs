//! A search of all schedules of a model, breadth first.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

/// What can happen in a small configuration, one step after the other.
pub trait Model {
    /// All that later steps depend on.
    type State;
    /// Tells states apart. States with the same key have the same future.
    type Key: Copy + Eq + Hash;

    /// Returns all states that can come next, each with what happened.
    fn next(&self, state: &Self::State) -> Vec<(String, Self::State)>;

    /// Returns the promise that is broken by the step from `before` to `state`, if one is.
    fn broken(&self, before: &Self::State, state: &Self::State) -> Option<&'static str>;

    /// Returns the key of a state.
    fn key(&self, state: &Self::State) -> Self::Key;
}

/// What a search found.
#[derive(Debug)]
pub struct Found {
    /// How many states there were.
    pub states: usize,
    /// Whether these are all that can be reached.
    pub is_complete: bool,
    /// How many steps lead to the last state that was searched.
    pub depth: usize,
    /// The first promise that was broken, and the steps that led to it: there is no shorter way.
    pub broken: Option<(&'static str, Vec<String>)>,
}

/// Searches from `begin`, through at most `most` states, until a promise is broken.
pub fn search<M: Model>(model: &M, begin: M::State, most: usize) -> Found {
    let mut seen = HashMap::from([(model.key(&begin), None)]);
    let mut queue = VecDeque::from([(begin, 0)]);
    let (mut is_complete, mut deepest) = (true, 0);
    while let Some((state, depth)) = queue.pop_front() {
        deepest = depth;
        let key = model.key(&state);
        for (step, next) in model.next(&state) {
            if let Some(promise) = model.broken(&state, &next) {
                let mut steps = vec![step];
                let mut at = key;
                while let Some((before, step)) = &seen[&at] {
                    steps.push(String::clone(step));
                    at = *before;
                }
                steps.reverse();
                let broken = Some((promise, steps));
                return Found { states: seen.len(), is_complete, depth: depth + 1, broken };
            }
            let next_key = model.key(&next);
            if seen.contains_key(&next_key) {
                continue;
            }
            if seen.len() >= most {
                is_complete = false;
                continue;
            }
            seen.insert(next_key, Some((key, step)));
            queue.push_back((next, depth + 1));
        }
    }
    Found { states: seen.len(), is_complete, depth: deepest, broken: None }
}

/// Returns how many states to search: `usual`, or what `LOCKCORE_MODEL_STATES` says.
pub fn most(usual: usize) -> usize {
    std::env::var("LOCKCORE_MODEL_STATES").ok().and_then(|most| most.parse().ok()).unwrap_or(usual)
}
