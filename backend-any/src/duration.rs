//! Durations as people write them: always with a unit.

use std::{
    fmt,
    str::FromStr,
    time::{Duration, Instant},
};

use lockcore::{Backoff, Exponential, Wait, backend::library_runtime};

/// Reads a duration such as `30s`, `1m 30s` or `250ms`.
///
/// # Errors
/// Fails with what is expected instead. A number without a unit is an error: it was once read as milliseconds by one
/// program and as seconds by the next.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    // The one letter that means two things by its case: months here, minutes elsewhere.
    let months = |word: &str| {
        word.strip_suffix('M').is_some_and(|number| number.ends_with(|c: char| c.is_ascii_digit()))
    };
    if text.split_whitespace().any(|word| word == "M" || months(word)) {
        return Err(format!(
            "M may be minutes or months, such as {} or {}",
            text.replace('M', "m"),
            text.replace('M', "months")
        ));
    }
    // `inf` and `nan` are numbers too.
    if text.parse::<f64>().is_ok_and(f64::is_finite) {
        return Err(format!("it needs a unit, such as {text}s or {text}ms"));
    }
    humantime::parse_duration(text).map_err(|_| "it must be a duration with a unit, such as 30s".to_owned())
}

/// The time that a call waits by default, as configured: `never`, a duration, or `forever`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// Not at all.
    Never,
    /// For at most this long.
    UpTo(Duration),
    /// Until the set is locked.
    Forever,
}

/// Pauses between two tries of what is waited for.
const PAUSES: Exponential = Exponential { base: Duration::from_millis(50), max: Duration::from_secs(2) };

impl Waiting {
    /// Tries until `attempt` succeeds, or fails by what does not pass, or this wait is over, which began at `begun`.
    ///
    /// # Errors
    /// The last one of `attempt`.
    pub async fn retry<T, E, F: Future<Output = Result<T, E>>>(
        self,
        begun: Instant,
        may_pass: impl Fn(&E) -> bool,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, E> {
        for tried in 0.. {
            let error = match attempt().await {
                Err(error) if may_pass(&error) => error,
                settled => return settled,
            };
            let left = match self.left(begun) {
                Waiting::Never => return Err(error),
                Waiting::UpTo(left) => left,
                Waiting::Forever => Duration::MAX,
            };
            let pause = {
                let _timers = library_runtime().enter();
                tokio::time::sleep(PAUSES.delay(tried).min(left))
            };
            pause.await;
        }
        unreachable!("the loop ends by returning")
    }

    /// Returns what is left of this wait, which began at `begun`.
    #[must_use]
    pub fn left(self, begun: Instant) -> Waiting {
        match self {
            Waiting::UpTo(limit) => match limit.saturating_sub(begun.elapsed()) {
                Duration::ZERO => Waiting::Never,
                left => Waiting::UpTo(left),
            },
            unlimited => unlimited,
        }
    }
}

impl From<Waiting> for Wait {
    fn from(waiting: Waiting) -> Wait {
        match waiting {
            Waiting::Never => Wait::never(),
            Waiting::UpTo(limit) => Wait::up_to(limit),
            Waiting::Forever => Wait::forever(),
        }
    }
}

impl FromStr for Waiting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "never" => Ok(Waiting::Never),
            "forever" => Ok(Waiting::Forever),
            other => match parse_duration(other) {
                Ok(limit) => Ok(Waiting::UpTo(limit)),
                Err(expected) if !expected.starts_with("it must be") => Err(expected),
                Err(_) => Err("it must be never, forever, or a duration with a unit, such as 30s".to_owned()),
            },
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Waiting::Never => f.write_str("never"),
            Waiting::UpTo(limit) => humantime::format_duration(*limit).fmt(f),
            Waiting::Forever => f.write_str("forever"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_needs_a_unit() {
        assert_eq!(parse_duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
        for number in ["60", "0", "1.5", "-3"] {
            assert_eq!(
                parse_duration(number),
                Err(format!("it needs a unit, such as {number}s or {number}ms"))
            );
        }
        for (ambiguous, one, other) in
            [("5M", "5m", "5months"), ("5 M", "5 m", "5 months"), ("1h 5M", "1h 5m", "1h 5months")]
        {
            let expected = format!("M may be minutes or months, such as {one} or {other}");
            assert_eq!(parse_duration(ambiguous), Err(expected.clone()));
            assert_eq!(ambiguous.parse::<Waiting>(), Err(expected));
        }
        assert_eq!(parse_duration("0.25s"), Ok(Duration::from_millis(250)), "a fraction is exact");
        for nonsense in
            ["", "soon", "5 parsecs", "-3s", "+3s", "1e3s", "5H", "5S", "0.5ns", "inf", "-infinity", "NaN"]
        {
            let expected = "it must be a duration with a unit, such as 30s";
            assert_eq!(parse_duration(nonsense), Err(expected.to_owned()), "{nonsense:?}");
        }
    }

    #[test]
    fn a_wait_reads_what_it_writes() {
        for text in ["never", "forever", "30s", "1m 30s"] {
            assert_eq!(text.parse::<Waiting>().map(|waiting| waiting.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("60".parse::<Waiting>(), Err("it needs a unit, such as 60s or 60ms".to_owned()));
        let expected = "it must be never, forever, or a duration with a unit, such as 30s";
        for nonsense in ["always", "inf"] {
            assert_eq!(nonsense.parse::<Waiting>(), Err(expected.to_owned()));
        }
    }
}
