//! The meaning of a failure of Postgres, or of the way to it.

use lockcore::BackendErrorKind;
use sqlx::Error;

use crate::server::{Certificate, Meaning, ServerError};

const CERTIFICATE: Certificate = Certificate {
    backend: "postgres",
    roots: "sslrootcert",
    any_name: "sslmode=verify-ca",
    any: "sslmode=require",
    plain: "sslmode=disable",
};

/// A failure of an exchange that had begun: whatever broke the connection may have been after the commit.
pub(super) fn failed(source: Error) -> ServerError {
    ServerError::classify("postgres", source, true, |error| of_code(error.code().as_deref().unwrap_or("")))
}

/// A failure to connect: nothing was asked for yet.
pub(super) fn unconnected(source: Error) -> ServerError {
    if let Some(refused) = CERTIFICATE.refused(&source) {
        return refused;
    }
    ServerError::classify("postgres", source, false, |error| of_code(error.code().as_deref().unwrap_or("")))
}

/// A number is out of the range of its type: nothing was done.
pub(super) fn is_out_of_range(error: &ServerError) -> bool {
    code_of(error).as_deref() == Some("22003")
}

/// Another program has just made the same.
pub(super) fn is_made(error: &ServerError) -> bool {
    matches!(code_of(error).as_deref(), Some("23505" | "42P06" | "42P07" | "42710"))
}

fn code_of(error: &ServerError) -> Option<String> {
    let ServerError::Database { source: Error::Database(error), .. } = error else { return None };
    error.code().map(|code| code.into_owned())
}

/// By SQLSTATE: an error that the server reports has undone the transaction, unless the server itself goes down.
fn of_code(code: &str) -> Meaning {
    use BackendErrorKind as Kind;

    match (code.get(..2).unwrap_or(""), code) {
        // Serialization failure, deadlock; a conflict of data or of the schema in Aurora DSQL.
        (_, "40001" | "40P01" | "OC000" | "OC001") => Meaning { transient: true, ..Meaning::of(Kind::Busy) },
        // Commit or rollback unknown.
        (_, "40003") => Meaning { in_doubt: true, ..Meaning::of(Kind::Busy) },
        // The server ends the connection: its message may come after the commit.
        (_, "57P01" | "57P02" | "57P05" | "25P03" | "25P04") => {
            Meaning { in_doubt: true, broken: true, ..Meaning::of(Kind::Unavailable) }
        }
        // Starting up, shutting down.
        (_, "57P03") => Meaning { broken: true, ..Meaning::of(Kind::Unavailable) },
        // A statement or lock timeout that was set elsewhere, a cancelled statement.
        (_, "57014" | "55P03") => Meaning::of(Kind::Busy),
        // Read-only transaction: a replica, or default_transaction_read_only, as before and after a fail-over. By another
        // connection the primary may be reached.
        (_, "25006") => Meaning { broken: true, ..Meaning::of(Kind::Unavailable) },
        // A prepared statement of another connection: a pooler that hands connections around.
        (_, "26000" | "42P05") => Meaning { broken: true, ..Meaning::of(Kind::Misconfigured) },
        // Too many connections.
        (_, "53300") => Meaning::of(Kind::Busy),
        // Disk full, out of memory, other resources.
        ("53", _) => Meaning::of(Kind::Unavailable),
        // An I/O error of the server; of a pooler, that the server's answer was lost.
        ("58", _) | (_, "XX000") => {
            Meaning { in_doubt: true, broken: true, ..Meaning::of(Kind::Unavailable) }
        }
        ("08", _) => Meaning { in_doubt: true, broken: true, ..Meaning::of(Kind::Unavailable) },
        ("28", _) | (_, "42501") => Meaning::of(Kind::Denied),
        // Ours: another isolation level than READ COMMITTED.
        (_, "LC002") => Meaning { broken: true, ..Meaning::of(Kind::Misconfigured) },
        // No such database, table, routine, schema, column; wrong object type.
        ("3D" | "3F" | "42", _) => Meaning::of(Kind::Misconfigured),
        ("XX", _) => Meaning { in_doubt: true, broken: true, ..Meaning::of(Kind::Corrupt) },
        _ => Meaning::of(Kind::Other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_server_gave_up_is_tried_again_at_once() {
        for code in ["40001", "40P01", "OC000"] {
            assert!(of_code(code).transient);
        }
        for code in ["57014", "57P01", "53100", "42501", "25006", ""] {
            assert!(!of_code(code).transient);
        }
    }

    #[test]
    fn what_the_server_refused_was_not_done() {
        for code in ["53100", "42P01", "28P01", "25006", "57014", "P0001"] {
            assert!(!of_code(code).in_doubt, "{code}");
        }
        assert_eq!(of_code("25006").kind, BackendErrorKind::Unavailable);
        for code in ["57P01", "58000", "XX000", "XX001", "08006"] {
            assert!(of_code(code).in_doubt, "{code}");
        }
        assert_eq!(of_code("53100").kind, BackendErrorKind::Unavailable);
        assert_eq!(of_code("28P01").kind, BackendErrorKind::Denied);
        assert_eq!(of_code("42883").kind, BackendErrorKind::Misconfigured);
    }
}
