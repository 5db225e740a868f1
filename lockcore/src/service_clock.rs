//! An estimate of the clock of a service that dates its responses: an interval, from the `Date` of HTTP.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{clock::Moment, store_clock::Bound};

/// The most that the clocks of the service's own hosts are taken to differ, in microseconds.
const SPREAD: u64 = 100_000;

/// Wider bounds are narrowed before a lease or a fence is derived from them: those of a process without a response for a
/// quarter of an hour, or with contradictory responses.
const WIDE: u64 = 3 * SECOND;

/// The time that responses which contradict the bounds must span to replace them: longer than one operation repeats its
/// requests by default, so that the responses to one operation never do.
const AGREEMENT: Duration = Duration::from_secs(6);

/// An answer is relied on for so long: a step of the clock is then known well within the shortest lease, also where the next
/// answer takes long.
const FRESH: Duration = Duration::from_secs(3);

/// One second in microseconds.
const SECOND: u64 = 1_000_000;

/// The service's time, in microseconds since 1970: it is between the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServiceTime {
    /// The lower bound.
    pub lo: u64,
    /// The upper bound.
    pub hi: u64,
}

impl ServiceTime {
    /// Returns whether there was no response for long, or responses contradict each other. Then ask the service again before a
    /// lease or a fence is derived from it.
    pub fn is_wide(self) -> bool {
        self.hi - self.lo > WIDE
    }
}

/// An interval estimate of the service's clock.
///
/// An answer whose `Date` says `D` was written when the service's clock was at least `D` and less than `D` + 1 s, at some
/// local moment between the sending of the request and the receipt of the answer. Every answer thus bounds the
/// difference between that clock and the local one from both sides, and the bounds of many are intersected (as Marzullo
/// and Owicki do with many clocks, 1983); within some answers across a change of second what is left is the time of a
/// round trip. Bounds widen as they age, by the rates that may differ.
///
/// Invariant C1: a lease is written to end at the upper bound and taken over after the lower one, so that an estimate
/// that is too wide delays a take-over and never hastens one.
///
/// Invariant C2: an answer that contradicts the bounds - the service's clock was set, or one of its hosts is off - does
/// not replace them but widens them. The next answer that agrees with the old bounds narrows them again. They are given
/// up only for answers that agree with each other and lie six seconds apart, without one in between that agrees with
/// the old bounds: a burst of wrong answers moves neither bound inwards.
///
/// Invariant C3: bounds say nothing of a clock that was set since the last answer. A lease is derived only from an answer of the
/// last three seconds ([`fresh`](Self::fresh)), or from one that was asked for to this end ([`since`](Self::since)).
///
/// No wall clock of this machine goes into it, and no answer but the service's own.
#[derive(Debug)]
pub struct ServiceClock {
    known: Mutex<Option<Known>>,
    last_fence: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    bounds: Bounds,
    rival: Option<Rival>,
    /// The moment at which the last request was sent that was answered.
    sent: Moment,
}

/// The bounds by responses that contradict the known ones, and agree with each other.
#[derive(Clone, Copy, Debug)]
struct Rival {
    bounds: Bounds,
    /// The moment at which the first of them was received.
    since: Moment,
}

#[derive(Clone, Copy, Debug)]
struct Bounds {
    lower: Bound,
    upper: Bound,
}

impl Default for ServiceClock {
    fn default() -> Self {
        Self::new()
    }
}

impl ServiceClock {
    /// Creates an estimate that knows nothing yet.
    pub fn new() -> Self {
        ServiceClock { known: Mutex::new(None), last_fence: AtomicU64::new(0) }
    }

    /// Returns the clock of an endpoint, which all DAOs of this process share.
    pub fn of(endpoint: &str) -> Arc<Self> {
        static KNOWN: Mutex<Option<HashMap<String, Weak<ServiceClock>>>> = Mutex::new(None);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_with(HashMap::new);
        if let Some(clock) = known.get(endpoint).and_then(Weak::upgrade) {
            return clock;
        }
        known.retain(|_, clock| clock.strong_count() > 0);
        let clock = Arc::new(ServiceClock::new());
        known.insert(endpoint.to_owned(), Arc::downgrade(&clock));
        clock
    }

    /// Returns whether the `Date` of a response is the service's time: the response has one of the headers `ids`, by which the service
    /// names the request, as none has that a proxy makes, and no `Age`, as one has that a cache kept.
    pub fn is_dated_by_service(ids: &[&str], has: impl Fn(&str) -> bool) -> bool {
        ids.iter().any(|id| has(id)) && !has("age")
    }

    /// Adds a response dated `date`, in whole seconds since 1970, to a request that was sent at `sent` and answered at `received`.
    pub fn sample(&self, sent: Moment, received: Moment, date: u64) {
        self.add(
            sent,
            received,
            (date.saturating_mul(SECOND), date.saturating_add(1).saturating_mul(SECOND)),
        );
    }

    /// Adds a response that tells the time to the microsecond, as a database does.
    pub fn sample_micros(&self, sent: Moment, received: Moment, micros: u64) {
        self.add(sent, received, (micros, micros.saturating_add(1)));
    }

    /// Adds a response by which the time was between these two when it was made.
    fn add(&self, sent: Moment, received: Moment, (least, most): (u64, u64)) {
        let sample =
            Bounds { lower: Bound { at: received, micros: least }, upper: Bound { at: sent, micros: most } };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some(match *known {
            None => Known { bounds: sample, rival: None, sent },
            Some(known) => known.with(sample, sent, received),
        });
    }

    /// Returns the service's time by all responses so far, unless its clock was set since the last; `None` before the first one.
    pub fn now(&self) -> Option<ServiceTime> {
        self.known().map(Known::now)
    }

    /// Returns the service's time if a request of the last three seconds told it and the bounds are not wide, so that a lease may be
    /// derived from it (invariant C3). Else ask the service, and take what is known [`since`](Self::since).
    pub fn fresh(&self) -> Option<ServiceTime> {
        let known = self.known().filter(|known| known.sent.elapsed() < FRESH)?;
        Some(known.now()).filter(|now| !now.is_wide())
    }

    /// Returns the service's time if a request told it that was sent at `at` or later. It may be wide.
    pub fn since(&self, at: Moment) -> Option<ServiceTime> {
        self.known().filter(|known| at.since(&known.sent).is_zero()).map(Known::now)
    }

    fn known(&self) -> Option<Known> {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a fence that is at least the service's clock, above `above`, and above every other of this process.
    pub fn fence(&self, now: ServiceTime, above: u64) -> u64 {
        let next = |last: u64| now.hi.max(above.saturating_add(1)).max(last.saturating_add(1));
        let last = self.last_fence.fetch_update(Relaxed, Relaxed, |last| Some(next(last)));
        next(last.unwrap_or_else(|last| last))
    }
}

impl Known {
    fn now(self) -> ServiceTime {
        let Known { bounds, rival, .. } = self;
        let now = Moment::now();
        let (mut lo, mut hi) = (bounds.lower.at_least(now), bounds.upper.at_most(now));
        if let Some(Rival { bounds, .. }) = rival {
            lo = lo.min(bounds.lower.at_least(now));
            hi = hi.max(bounds.upper.at_most(now));
        }
        let lo = lo.saturating_sub(SPREAD);
        ServiceTime { lo, hi: hi.saturating_add(SPREAD).max(lo) }
    }

    /// Adds a response at `received` to a request that was sent at `sent` (invariant C2).
    fn with(self, sample: Bounds, sent: Moment, received: Moment) -> Known {
        // Responses may come in another order than the requests were sent.
        let last = if self.sent.since(&sent).is_zero() { sent } else { self.sent };
        if let Some(bounds) = self.bounds.intersected(sample, received) {
            return Known { bounds, rival: None, sent: last };
        }
        let earlier = self.rival.and_then(|rival| {
            let bounds = rival.bounds.intersected(sample, received)?;
            Some(Rival { bounds, ..rival })
        });
        let rival = earlier.unwrap_or(Rival { bounds: sample, since: received });
        match sent.since(&rival.since) >= AGREEMENT {
            true => Known { bounds: rival.bounds, rival: None, sent: last },
            false => Known { rival: Some(rival), sent: last, ..self },
        }
    }
}

impl Bounds {
    /// Returns the intersection; `None` if the two contradict each other at this time.
    fn intersected(self, other: Bounds, at: Moment) -> Option<Bounds> {
        let higher = other.lower.at_least(at) > self.lower.at_least(at);
        let lower = if higher { other.lower } else { self.lower };
        let earlier = other.upper.at_most(at) < self.upper.at_most(at);
        let upper = if earlier { other.upper } else { self.upper };
        (lower.at_least(at) <= upper.at_most(at)).then_some(Bounds { lower, upper })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const EPOCH: u64 = 1_795_000_000;

    /// A service whose clock starts at `EPOCH` and some microseconds.
    struct Service {
        start: Moment,
        micros: u64,
    }

    impl Service {
        fn truly(&self) -> u64 {
            EPOCH * SECOND + self.micros + Moment::now().since(&self.start).as_micros() as u64
        }

        async fn answers(&self, clock: &ServiceClock, there: u64, back: u64) {
            let sent = Moment::now();
            tokio::time::advance(Duration::from_micros(there)).await;
            let date = self.truly() / SECOND;
            tokio::time::advance(Duration::from_micros(back)).await;
            clock.sample(sent, Moment::now(), date);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_in_microseconds_is_known_by_one_response() {
        let (clock, start) = (ServiceClock::new(), Moment::now());
        tokio::time::advance(Duration::from_millis(3)).await;
        let told = EPOCH * SECOND + 123_456;
        tokio::time::advance(Duration::from_millis(4)).await;
        clock.sample_micros(start, Moment::now(), told);
        let now = clock.since(start).expect("a sample");
        assert!(now.lo <= told + 4_000 && told + 4_000 <= now.hi, "{now:?} {told}");
        assert!(now.hi - now.lo < 2 * SPREAD + 10_000, "{now:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_service_is_always_within_the_bounds_which_narrow() {
        let clock = ServiceClock::new();
        assert_eq!(clock.now(), None);
        let service = Service { start: Moment::now(), micros: 123_456 };
        let mut width = u64::MAX;
        for round in 0..200 {
            let (there, back) = (1000 + round * 37 % 5000, 1000 + round * 91 % 9000);
            service.answers(&clock, there, back).await;
            for pause in [0, 17_000] {
                tokio::time::advance(Duration::from_micros(pause)).await;
                let (now, truly) = (clock.now().expect("a sample"), service.truly());
                assert!(now.lo <= truly && truly <= now.hi, "{now:?} {truly}");
                width = width.min(now.hi - now.lo);
            }
        }
        assert!(width < 2 * SPREAD + 30_000, "{width}");
    }

    #[tokio::test(start_paused = true)]
    async fn bounds_widen_as_they_age() {
        let clock = ServiceClock::new();
        let service = Service { start: Moment::now(), micros: 0 };
        service.answers(&clock, 1000, 1000).await;
        let fresh = clock.now().expect("a sample");
        assert!(!fresh.is_wide());
        tokio::time::advance(Duration::from_secs(1000)).await;
        let old = clock.now().expect("a sample");
        assert!(old.is_wide());
        assert_eq!((old.hi - old.lo) - (fresh.hi - fresh.lo), 2 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_was_asked_lately_is_fresh() {
        let clock = ServiceClock::new();
        let before = Moment::now();
        assert_eq!((clock.fresh(), clock.since(before)), (None, None));
        let service = Service { start: Moment::now(), micros: 0 };
        service.answers(&clock, 1000, 1000).await;
        assert_eq!(clock.fresh(), clock.now());
        assert_eq!(clock.since(before), clock.now());
        tokio::time::advance(FRESH / 2).await;
        let later = Moment::now();
        assert!(clock.fresh().is_some() && clock.since(later).is_none());
        tokio::time::advance(FRESH / 2).await;
        // Its clock may have been set, though the bounds are still narrow.
        assert!(clock.fresh().is_none() && clock.now().is_some_and(|now| !now.is_wide()));
        let set = Service { start: service.start, micros: 3600 * SECOND };
        set.answers(&clock, 1000, 1000).await;
        assert!(clock.fresh().is_none(), "the two contradict each other");
        let now = clock.since(later).expect("it was asked for");
        assert!(now.lo <= set.truly() && set.truly() <= now.hi, "{now:?}");
        // One that was sent long ago tells nothing of the time since.
        let slow = ServiceClock::new();
        service.answers(&slow, 1000, FRESH.as_micros() as u64).await;
        assert!(slow.fresh().is_none() && slow.now().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_contradict_widen_and_convince_only_some_seconds_apart() {
        let clock = ServiceClock::new();
        let service = Service { start: Moment::now(), micros: 0 };
        service.answers(&clock, 1000, 1000).await;
        for ahead in [3600 * SECOND, 0] {
            let set = Service { start: service.start, micros: ahead };
            // As many as one operation can get, or many of them at once.
            for _ in 0..50 {
                set.answers(&clock, 1000, 99_000).await;
                let now = clock.now().expect("a sample");
                assert!(now.lo <= service.truly() && now.hi >= service.truly() + 3600 * SECOND, "{now:?}");
                assert!(now.is_wide());
            }
            tokio::time::advance(AGREEMENT - Duration::from_secs(4)).await;
            set.answers(&clock, 1000, 1000).await;
            let now = clock.now().expect("a sample");
            assert!(now.lo <= set.truly() && set.truly() <= now.hi && now.hi - now.lo < 2 * SECOND);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_true_answer_takes_wrong_ones_back() {
        for off in [3600 * SECOND, 0] {
            let clock = ServiceClock::new();
            let service = Service { start: Moment::now(), micros: 3600 * SECOND - off };
            let wrong = Service { start: service.start, micros: off };
            service.answers(&clock, 1000, 1000).await;
            let width = clock.now().map(|now| now.hi - now.lo).expect("a sample");
            for _ in 0..10 {
                wrong.answers(&clock, 1000, 1000).await;
                let now = clock.now().expect("a sample");
                assert!(now.lo <= service.truly() && service.truly() <= now.hi, "{now:?}");
                tokio::time::advance(AGREEMENT).await;
                service.answers(&clock, 1000, 1000).await;
                let now = clock.now().expect("a sample");
                assert!(now.lo <= service.truly() && service.truly() <= now.hi, "{now:?}");
                assert!(now.hi - now.lo <= width + SECOND / 10, "{now:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_contradict_each_other_replace_no_bound() {
        let clock = ServiceClock::new();
        let service = Service { start: Moment::now(), micros: 0 };
        service.answers(&clock, 1000, 1000).await;
        for hours in 1..10 {
            tokio::time::advance(AGREEMENT).await;
            let wrong = Service { start: service.start, micros: hours * 3600 * SECOND };
            wrong.answers(&clock, 1000, 1000).await;
            let now = clock.now().expect("a sample");
            assert!(now.lo <= service.truly() && wrong.truly() <= now.hi, "{now:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn fences_only_grow_though_the_bounds_narrow() {
        let clock = ServiceClock::new();
        let service = Service { start: Moment::now(), micros: 0 };
        service.answers(&clock, 100, 100).await;
        tokio::time::advance(Duration::from_millis(980)).await;
        let first = clock.fence(clock.now().expect("a sample"), 0);
        assert!(first >= service.truly());
        service.answers(&clock, 100, 100).await;
        let now = clock.now().expect("a sample");
        assert!(now.hi < first, "the bounds have narrowed");
        let second = clock.fence(now, 0);
        assert!(second > first);
        assert_eq!(clock.fence(now, second + 10), second + 11);
    }
}
