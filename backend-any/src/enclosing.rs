//! The commands of `lockctl run` that this process runs in, as their environment says.

use lockcore::ContextId;

/// The contexts of enclosing commands, from the inside out. Behind each may stand `=` with an id that it holds, and `@` with the name
/// of its lockctl if it leaves its locks locked after the command's end; `lockctl` writes it.
const ENCLOSING: &str = "LOCKCORE_ENCLOSING";

/// Returns the contexts of commands that hold locks until this process ends.
pub(crate) fn contexts<C: ContextId>() -> Vec<C> {
    read(&std::env::var(ENCLOSING).unwrap_or_default())
}

fn read<C: ContextId>(text: &str) -> Vec<C> {
    let mut all: Vec<Option<C>> = Vec::new();
    for word in text.split_whitespace() {
        match (word.split_at_checked(1), all.last_mut()) {
            (Some(("=", _)), _) => {}
            // Once its command has ended it waits for nothing, though its locks last.
            (Some(("@", _)), Some(last)) => *last = None,
            _ => all.push(C::from_stored(word)),
        }
    }
    all.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lockctl_writes_is_read() {
        assert_eq!(read::<u64>("7 =61 8 9 =62 @1/2/3 10"), [7, 8, 10]);
        assert_eq!(read::<u64>("x =61 =62 @1/2/3 7 @1/2/3"), Vec::<u64>::new());
        assert_eq!(read::<String>(""), Vec::<String>::new());
    }
}
