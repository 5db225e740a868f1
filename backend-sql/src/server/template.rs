//! Texts of SQL with names to be filled in.

use std::borrow::Cow;

/// The text with what `stands_for` gives in place of each `{word}`, filled in turn; what it does not know stays as it is.
pub(crate) fn fill(text: &str, stands_for: &impl Fn(&str) -> Option<Filling>) -> String {
    let mut filled = String::with_capacity(text.len() * 2);
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('{') {
        filled.push_str(before);
        rest = behind;
        match behind.split_once('}').and_then(|(word, behind)| Some((stands_for(word)?, behind))) {
            Some((filling, behind)) => {
                match filling {
                    Filling::Name(name) => filled.push_str(&name),
                    Filling::Piece(piece) => filled.push_str(&fill(&piece, stands_for)),
                }
                rest = behind;
            }
            None => filled.push('{'),
        }
    }
    filled.push_str(rest);
    filled
}

/// The text that replaces a word.
pub(crate) enum Filling {
    /// Text of the user's, in which nothing is filled in.
    Name(String),
    /// A part of the texts, in which there may be words.
    Piece(Cow<'static, str>),
}

/// The text without the lines of comment before it.
pub(crate) fn without_comments(mut text: &str) -> &str {
    while text.starts_with("--") {
        text = text.split_once('\n').map_or("", |(_, behind)| behind);
    }
    text
}
