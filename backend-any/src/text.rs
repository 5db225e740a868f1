//! White space around a value: a secret or a file brings a line end along that no person meant.

/// Returns the value without line ends behind it, as `echo` and editors leave them in secrets and variables.
///
/// # Errors
/// Fails with what is wrong if white space is left at an end: with it the value would name another store or another id
/// than without.
pub fn trimmed(text: &str) -> Result<&str, &'static str> {
    let text = without_line_ends(text);
    match text.trim() == text {
        true => Ok(text),
        false => Err("it must not begin or end with white space"),
    }
}

/// Returns the text without line ends behind it.
pub(crate) fn without_line_ends(text: &str) -> &str {
    text.trim_end_matches(['\r', '\n'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_behind_are_dropped_and_other_white_space_is_refused() {
        for text in ["prod", "prod\n", "prod\r\n", "prod\n\n"] {
            assert_eq!(trimmed(text), Ok("prod"), "{text:?}");
        }
        assert_eq!(trimmed("a b"), Ok("a b"));
        assert_eq!(trimmed(""), Ok(""));
        for text in [" prod", "prod ", "prod \n", "\nprod", "\tprod", "prod\u{a0}"] {
            trimmed(text).expect_err(text);
        }
    }
}
