//! The two forms in which a namespace is locked, by routines or by statements, and the mark that keeps them apart.
//!
//! A namespace has one row in a table that both forms know. A program writes its own form there if there is no row yet, and then reads
//! what the row says. The primary key lets one of two writers win, so that both read the same: no order of the steps of two programs
//! lets both forms lock. The row stays.

use super::ServerError;

/// The form in which a namespace is locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    Routines,
    Statements,
}

impl Form {
    /// Returns the word for it in the table.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Form::Routines => "routines",
            Form::Statements => "statements",
        }
    }

    /// Refuses a namespace whose row is not there, though it was just written: what was read is not the server that is written to.
    pub(crate) fn check_written(
        self,
        backend: &'static str,
        namespace: &str,
        found: Option<&str>,
    ) -> Result<(), ServerError> {
        if found.is_none() {
            let what = format!(
                "the row of the namespace {namespace:?} was written and is not read: are reads sent to a replica?"
            );
            return Err(ServerError::Misconfigured { backend, what });
        }
        self.check(backend, namespace, found)
    }

    /// Refuses a namespace whose row, if there is one, says another form.
    pub(crate) fn check(
        self,
        backend: &'static str,
        namespace: &str,
        found: Option<&str>,
    ) -> Result<(), ServerError> {
        match found {
            Some(found) if found != self.word() => {
                let hint = match self {
                    Form::Routines => "set routines=no here, or use another namespace",
                    Form::Statements => "leave routines=no out here, or use another namespace",
                };
                let what = format!(
                    "the namespace {namespace:?} is locked by {found}, and never in two ways: {hint}"
                );
                Err(ServerError::Misconfigured { backend, what })
            }
            _ => Ok(()),
        }
    }
}

/// Returns a namespace as it stands in tables that both forms have: letters of ASCII, digits and a few others, so that no encoding,
/// collation or quoting matters.
pub(crate) fn column(namespace: &str) -> String {
    let mut column = String::with_capacity(namespace.len());
    for byte in namespace.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/' | b':' => {
                column.push(byte.into())
            }
            _ => column.push_str(&format!("%{byte:02X}")),
        }
    }
    column
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_stands_in_a_table_as_plain_ascii() {
        assert_eq!(column("app/7-a_b.c:d"), "app/7-a_b.c:d");
        assert_eq!(column("a b%'\\\0\u{e9}"), "a%20b%25%27%5C%00%C3%A9");
    }

    #[test]
    fn the_other_form_is_refused_by_name() {
        assert!(Form::Statements.check("x", "n", None).is_ok());
        assert!(Form::Statements.check("x", "n", Some("statements")).is_ok());
        assert!(Form::Statements.check_written("x", "n", None).is_err());
        let refused = Form::Statements.check("x", "n", Some("routines")).expect_err("another form");
        assert!(refused.to_string().contains("the namespace \"n\" is locked by routines"), "{refused}");
    }
}
