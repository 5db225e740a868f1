//! Sets that are freed, but stay sets.

use std::sync::{Mutex, PoisonError};

use hashlink::LruCache;

use super::{Ask, Key};

/// How the rows of a set know it: the fence and the attempt with which it was taken first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Set {
    pub(crate) fence: i64,
    pub(crate) attempt: i64,
}

/// The sets that this process takes, and which of them it keeps.
///
/// Who has such a set stands in one row. Where that row is left when the set is freed, taking the same ids again is to change that
/// row, however many they are; but then nobody else finds any of them free by a look at its own row, and has to part the set
/// first, which takes several times as long. So a set is kept if the process took it before, and it shows that nobody
/// else has to do with it: each time that it turns out to be parted, it is left alone for the longer.
pub(crate) struct Kept(Mutex<LruCache<Vec<Key>, Known>>);

struct Known {
    /// What the rows of its ids know, so far as this process does, and the fence under which it was taken last.
    set: Option<(Set, i64)>,
    /// It was freed, and kept.
    free: bool,
    /// How many times it is still to be taken before it is kept.
    wait: u32,
    /// For how long it will be left alone, the next time.
    doubt: u32,
}

impl Known {
    fn held(&self, fence: i64) -> Option<Set> {
        self.set.filter(|(_, now)| *now == fence).map(|(set, _)| set)
    }
}

impl Kept {
    /// How many sets are known at most.
    const SETS: usize = 1024;
    /// How long the ids of one that is known are together at most, in bytes.
    const BYTES: usize = 8192;
    const MOST_DOUBT: u32 = 4096;

    pub(crate) fn new() -> Self {
        Kept(Mutex::new(LruCache::new(Self::SETS)))
    }

    fn with<T>(&self, ids: &[Key], use_it: impl FnOnce(&mut Known) -> T) -> Option<T> {
        // Nothing that is done under the lock panics half way.
        let mut sets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sets.get_mut(ids).map(use_it)
    }

    /// The set of these ids, to be taken again. Nothing is known of it then until it is told what came of that.
    pub(crate) fn take(&self, ids: &[Key]) -> Option<Set> {
        self.with(ids, |known| if std::mem::take(&mut known.free) { known.set.take() } else { None })?
            .map(|(set, _)| set)
    }

    /// What came of an order for several ids, for which `take` gave `kept`: the answer, as `reply` reads it.
    pub(crate) fn granted(&self, ask: &Ask, kept: Option<Set>, answer: String) -> String {
        let fence = |answer: &str| answer.parse().ok();
        match (kept, answer.strip_prefix('K').and_then(fence)) {
            (Some(set), Some(fence)) => {
                self.with(&ask.ids, |known| {
                    known.set = Some((set, fence));
                    known.doubt = known.doubt.saturating_sub(1);
                });
                return format!("G{fence}");
            }
            (Some(_), None) => {
                self.with(&ask.ids, |known| {
                    known.doubt = (known.doubt * 2 + 16).min(Self::MOST_DOUBT);
                    known.wait = known.doubt;
                });
            }
            (None, _) => {}
        }
        if let Some(fence) = answer.strip_prefix('G').and_then(fence) {
            self.taken(&ask.ids, Set { fence, attempt: ask.attempt });
        }
        answer
    }

    /// These ids were taken and are such a set now.
    fn taken(&self, ids: &[Key], set: Set) {
        let now = Some((set, set.fence));
        let again = self.with(ids, |known| {
            known.set = now;
            known.free = false;
            known.wait = known.wait.saturating_sub(1);
        });
        if again.is_none() && ids.iter().map(Vec::len).sum::<usize>() <= Self::BYTES {
            let known = Known { set: now, free: false, wait: 1, doubt: 0 };
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(ids.to_vec(), known);
        }
    }

    /// The set that is held under this fence.
    pub(crate) fn held(&self, ids: &[Key], fence: i64) -> Option<Set> {
        self.with(ids, |known| known.held(fence))?
    }

    /// The same, if it is to be kept when it is freed now.
    pub(crate) fn keep(&self, ids: &[Key], fence: i64) -> Option<Set> {
        self.with(ids, |known| known.held(fence).filter(|_| known.wait == 0))?
    }

    /// It was freed, and kept.
    pub(crate) fn freed(&self, ids: &[Key], set: Set) {
        self.with(ids, |known| known.free = known.set.is_some_and(|(now, _)| now == set));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(ids: &[&str], attempt: i64) -> Ask {
        Ask {
            context: "c".into(),
            attempt,
            ids: ids.iter().map(|id| id.as_bytes().to_vec()).collect(),
            modes: None,
            lease: 1,
            owner: Vec::new(),
            queue: false,
            nested: false,
        }
    }

    /// Takes and frees the ids of `ask` under these fences, and tells which of them were kept.
    fn turns(kept: &Kept, ask: &Ask, fences: impl IntoIterator<Item = i64>) -> Vec<bool> {
        let turn = |fence| {
            let again = kept.take(&ask.ids);
            let letter = if again.is_some() { "K" } else { "G" };
            assert_eq!(kept.granted(ask, again, format!("{letter}{fence}")), format!("G{fence}"));
            let keep = kept.keep(&ask.ids, fence);
            if let Some(set) = keep {
                kept.freed(&ask.ids, set);
            }
            keep.is_some()
        };
        fences.into_iter().map(turn).collect()
    }

    /// Somebody else had to do with it.
    fn is_parted(kept: &Kept, ask: &Ask) {
        let again = kept.take(&ask.ids);
        assert!(again.is_some());
        assert_eq!(kept.granted(ask, again, "{}".to_owned()), "{}");
        assert_eq!(kept.take(&ask.ids), None);
    }

    #[test]
    fn what_is_taken_for_the_second_time_is_kept() {
        let kept = Kept::new();
        let asks = ask(&["a", "b"], 7);
        assert_eq!(kept.take(&asks.ids), None);
        assert_eq!(turns(&kept, &asks, [10, 20]), [false, true]);
        let set = Set { fence: 20, attempt: 7 };
        assert_eq!(kept.take(&asks.ids), Some(set));
        assert_eq!(kept.granted(&ask(&["a", "b"], 8), Some(set), "K30".to_owned()), "G30");
        assert_eq!(kept.held(&asks.ids, 30), Some(set));
        for other in [10, 20, 31] {
            assert_eq!(kept.held(&asks.ids, other), None);
            assert_eq!(kept.keep(&asks.ids, other), None);
        }
        assert_eq!(kept.take(&asks.ids), None, "it is held");
        assert_eq!(kept.keep(&asks.ids, 30), Some(set));
        kept.freed(&asks.ids, set);
        assert_eq!(kept.take(&ask(&["a"], 7).ids), None);
        assert_eq!(kept.take(&asks.ids), Some(set));
        assert_eq!(kept.take(&asks.ids), None, "until it is told what came of that");
    }

    #[test]
    fn what_others_want_is_left_alone_for_longer_each_time() {
        let kept = Kept::new();
        let ask = ask(&["a", "b"], 7);
        turns(&kept, &ask, 1..=2);
        for times in [16, 48, 112] {
            is_parted(&kept, &ask);
            let turns = turns(&kept, &ask, 3..=2 + times);
            assert_eq!(turns.iter().position(|keeps| *keeps), Some(turns.len() - 1), "of {times}");
        }
        // And for less, the longer nobody did.
        turns(&kept, &ask, 200..300);
        is_parted(&kept, &ask);
        assert_eq!(turns(&kept, &ask, 300..400).iter().position(|keeps| *keeps), Some(39));
    }

    #[test]
    fn not_too_much_is_known() {
        let kept = Kept::new();
        let long = "x".repeat(Kept::BYTES);
        assert_eq!(turns(&kept, &ask(&["a", &long], 7), 1..=9), [false; 9]);
        let many: Vec<_> = (0..=Kept::SETS).map(|number| ask(&["a", &number.to_string()], 7)).collect();
        for _ in 0..3 {
            for ask in &many {
                assert_eq!(turns(&kept, ask, [1]), [false]);
            }
        }
        assert_eq!(turns(&kept, &many[0], [2]), [false]);
        assert_eq!(turns(&kept, &many[0], [3]), [true]);
    }
}
