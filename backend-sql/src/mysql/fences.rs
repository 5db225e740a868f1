//! Fences that are proposed to the server.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use lockcore::{Moment, StoreClock};

/// Which fences this process proposes.
///
/// Where one that was proposed is good, the server has nothing to tell. It is if it is above the last one of each id, at least
/// the server's clock, and no more than 10 ms ahead of it. Else the routine chooses, and tells the time with the fence.
#[derive(Default)]
pub(super) struct Fences {
    clock: StoreClock,
    last: AtomicI64,
}

impl Fences {
    /// How much later than the fastest an order may reach the server, for its proposal to be good, in microseconds.
    const WAY: u64 = 1000;
    /// How far ahead of what is needed proposals get that are made at the same time, in microseconds.
    const AHEAD: i64 = 8000;

    /// One that was not proposed just before; 0, which is no good, while nothing is known of the server's clock.
    pub(super) fn propose(&self, now: Moment) -> i64 {
        let least = self.clock.at_most(now).map(|clock| clock.saturating_add(Self::WAY));
        let Some(least) = least.and_then(|least| i64::try_from(least).ok()) else {
            return 0;
        };
        let next = |last: i64| if (least..least + Self::AHEAD).contains(&last) { last + 1 } else { least };
        let last = self.last.fetch_update(Relaxed, Relaxed, |last| Some(next(last)));
        last.map_or(least, next)
    }

    /// What was granted, as `reply` reads it, by the answer to an order that was sent with a proposal.
    pub(super) fn granted(&self, proposed: i64, sent: Moment, answer: String) -> String {
        if answer.is_empty() {
            return format!("G{proposed}");
        }
        let Some((granted, clock)) = answer.split_once('@') else {
            return answer;
        };
        if let Ok(clock) = clock.parse() {
            self.clock.sample(sent, Moment::now(), clock);
        }
        granted.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The server answers by itself when its clock shows `clock`.
    fn ask(fences: &Fences, sent: Moment, clock: i64) {
        assert_eq!(fences.granted(0, sent, format!("G17@{clock}")), "G17");
    }

    #[tokio::test(start_paused = true)]
    async fn a_proposal_is_a_little_ahead_of_the_clock() {
        let fences = Fences::default();
        let sent = Moment::now();
        assert_eq!(fences.propose(sent), 0);
        let mut clock = 1_795_000_000_000_000;
        ask(&fences, sent, clock);
        // For as long as ours may be a thousandth faster.
        for _ in 0..8 {
            tokio::time::advance(Duration::from_secs(1)).await;
            clock += 1_000_000;
            let ahead = fences.propose(Moment::now()) - clock;
            assert!((1000..10_000).contains(&ahead), "{ahead}");
        }
    }

    #[test]
    fn none_is_proposed_twice() {
        let fences = Fences::default();
        let now = Moment::now();
        ask(&fences, now, 1000);
        let proposed: Vec<_> = (0..5).map(|_| fences.propose(now)).collect();
        assert_eq!(proposed, [2000, 2001, 2002, 2003, 2004]);
        assert_eq!(fences.granted(2003, now, String::new()), "G2003");
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_either_way_is_followed() {
        let fences = Fences::default();
        for clock in [5_000_000, 900_000_000, 5_000_000] {
            tokio::time::advance(Duration::from_millis(20)).await;
            let now = Moment::now();
            ask(&fences, now, clock);
            assert_eq!(fences.propose(now), clock + 1000);
        }
    }

    #[test]
    fn what_tells_no_time_is_left_as_it_is() {
        let fences = Fences::default();
        for answer in ["G5,6", r#"{"q":1}"#] {
            assert_eq!(fences.granted(3, Moment::now(), answer.to_owned()), answer);
        }
        assert_eq!(fences.propose(Moment::now()), 0);
    }
}
