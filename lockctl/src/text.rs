//! Durations and labels as text for people.

use std::time::{Duration, SystemTime};

/// Formats a duration: whole seconds from ten on, else one more digit.
pub(crate) fn people(duration: Duration) -> String {
    let rounded = if duration >= Duration::from_secs(10) {
        Duration::from_secs((duration.as_millis() as u64 + 500) / 1000)
    } else {
        Duration::from_millis((duration.as_millis() as u64 + 50) / 100 * 100)
    };
    humantime::format_duration(rounded).to_string()
}

/// Formats how long ago something was.
pub(crate) fn ago(since: SystemTime) -> String {
    people(since.elapsed().unwrap_or_default())
}

/// Formats a time, to the second.
pub(crate) fn time(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

/// Returns a label that another program wrote with everything escaped that moves the cursor or changes the order of what is
/// shown after it.
pub(crate) fn harmless(label: &str) -> String {
    let escaped = |c: char| if is_harmful(c) { c.escape_default().collect() } else { vec![c] };
    label.chars().flat_map(escaped).collect()
}

/// Returns whether it is one of the control characters, line separators, and the marks and overrides of the bidirectional algorithm (UAX #9).
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_cannot_disturb_the_terminal() {
        assert_eq!(harmless("na\u{ef}ve 漢字 'x'"), "na\u{ef}ve 漢字 'x'");
        assert_eq!(harmless("a\n\u{1b}[31mb"), r"a\n\u{1b}[31mb");
        for mark in ['\u{61c}', '\u{200f}', '\u{2028}', '\u{202e}', '\u{2066}', '\u{2069}'] {
            assert_eq!(harmless(&format!("a{mark}b")), format!("a{}b", mark.escape_default()));
        }
    }
}
