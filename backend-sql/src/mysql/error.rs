//! The meaning of a failure of MySQL or MariaDB, or of the way to it.

use lockcore::BackendErrorKind;
use sqlx::{Error, error::DatabaseError, mysql::MySqlDatabaseError};

use crate::server::{Certificate, Meaning, ServerError};

const CERTIFICATE: Certificate = Certificate {
    backend: "mysql",
    roots: "ssl-ca",
    any_name: "ssl-mode=verify_ca",
    any: "ssl-mode=required",
    plain: "ssl-mode=disabled",
};

/// A failure of an exchange that had begun: whatever broke the connection may have been after the commit.
pub(super) fn failed(source: Error) -> ServerError {
    ServerError::classify("mysql", source, true, |error| of_number(number_of(error)))
}

/// A failure to connect: nothing was asked for yet.
pub(super) fn unconnected(source: Error) -> ServerError {
    if let Some(refused) = CERTIFICATE.refused(&source) {
        return refused;
    }
    // The driver has no sound code to encrypt a password by itself, and asks for a feature that it should not have.
    if matches!(&source, Error::Configuration(what) if what.to_string().starts_with("RSA ")) {
        let what = "this account needs TLS, by which alone its password is sent: leave ssl-mode out, and let the server have TLS";
        return ServerError::Misconfigured { backend: "mysql", what: what.to_owned() };
    }
    ServerError::classify("mysql", source, false, |error| of_number(number_of(error)))
}

/// The statement was interrupted by `KILL QUERY`.
pub(super) fn is_interrupted(error: &ServerError) -> bool {
    number(error) == Some(1317)
}

/// The server ended a statement because it has a bound for how long one may take.
pub(super) fn is_statement_timeout(error: &ServerError) -> bool {
    matches!(number(error), Some(1969 | 3024))
}

/// Returns whether there is no such routine, or none that this user may call.
pub(super) fn is_missing_routine(error: &ServerError) -> bool {
    matches!(number(error), Some(1305 | 1370))
}

/// Returns whether there is no such table, or none that this user may read.
pub(super) fn is_missing_table(error: &ServerError) -> bool {
    matches!(number(error), Some(1146 | 1142))
}

/// Returns whether a number is out of the range of its type: nothing was done.
pub(super) fn is_out_of_range(error: &ServerError) -> bool {
    number(error) == Some(1690)
}

/// Returns whether there is a row with that key already.
pub(super) fn is_duplicate(error: &ServerError) -> bool {
    number(error) == Some(1062)
}

fn number(error: &ServerError) -> Option<u16> {
    match error {
        ServerError::Database { source: Error::Database(error), .. } => Some(number_of(&**error)),
        _ => None,
    }
}

fn number_of(error: &dyn DatabaseError) -> u16 {
    error.try_downcast_ref::<MySqlDatabaseError>().map_or(0, MySqlDatabaseError::number)
}

/// By the server's number: every routine rolls back before it returns an error, unless it is stopped from outside.
fn of_number(number: u16) -> Meaning {
    use BackendErrorKind as Kind;

    match number {
        // Deadlock; lock wait timeout; record changed since last read; table definition changed; a conflict that TiDB rolled back.
        1213 | 1205 | 1020 | 1412 | 8022 | 9007 => Meaning { transient: true, ..Meaning::of(Kind::Busy) },
        // Stopped from outside: no handler of the routine runs, and only the end of the connection rolls back.
        1317 | 1969 | 3024 => Meaning { in_doubt: true, broken: true, ..Meaning::of(Kind::Busy) },
        // A row that is there, a number out of range: the statement was undone.
        1062 | 1690 => Meaning::of(Kind::Other),
        // The server goes down, or ends this connection: it may have been after the commit.
        1053 | 1077 | 1079 | 1080 | 1152 | 1153 | 1154..=1161 | 1184 | 1927 | 4031 => {
            Meaning { in_doubt: true, broken: true, ..Meaning::of(Kind::Unavailable) }
        }
        // Too many connections, of all or of this user; too many prepared statements; other limits.
        1040 | 1203 | 1226 | 1461 => Meaning::of(Kind::Busy),
        // Prepared statements that are gone, as behind a proxy that hands connections around.
        1243 | 1615 => Meaning { broken: true, ..Meaning::of(Kind::Busy) },
        1044 | 1045 | 1095 | 1129 | 1130 | 1142 | 1143 | 1227 | 1370 | 1698 | 1820 | 1862 | 3118 | 3955
        | 4151 => Meaning::of(Kind::Denied),
        // Read-only server, engine or transaction, as before and after a fail-over; offline; a node of a cluster that has not
        // joined it, or has no majority. By another connection a server that writes may be reached.
        1047 | 1290 | 1792 | 1836 | 1874 | 3032 | 3100 | 4074 => {
            Meaning { broken: true, ..Meaning::of(Kind::Unavailable) }
        }
        // No such database, table, routine, column; a variable of the session that must not be set; wrong parameters; the
        // routines' owner is gone; binary log in the form of statements.
        1046 | 1049 | 1054 | 1146 | 1231 | 1304 | 1305 | 1318 | 1449 | 1598 | 1665 => {
            Meaning::of(Kind::Misconfigured)
        }
        // Disk full, table full, out of memory, file errors; errors of the storage engine.
        3 | 28 | 1002..=1006 | 1016 | 1021 | 1023..=1026 | 1030 | 1037 | 1038 | 1041 | 1114 | 3675 => {
            Meaning { broken: true, ..Meaning::of(Kind::Unavailable) }
        }
        // While committing.
        1180 | 1593 | 3101 => Meaning { in_doubt: true, broken: true, ..Meaning::of(Kind::Unavailable) },
        // A user's error, raised with SIGNAL by a trigger or the like, and what is not known here.
        _ => Meaning { in_doubt: true, broken: true, ..Meaning::of(Kind::Other) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_server_gave_up_is_tried_again_at_once() {
        for number in [1213, 1205] {
            assert!(of_number(number).transient && !of_number(number).in_doubt && !of_number(number).broken);
        }
        for number in [1317, 1053, 1114, 1370, 1290, 0] {
            assert!(!of_number(number).transient, "{number}");
        }
    }

    #[test]
    fn what_was_stopped_from_outside_is_in_doubt() {
        for number in [1317, 1053, 1927, 1180, 0] {
            assert!(of_number(number).in_doubt && of_number(number).broken, "{number}");
        }
        for number in [1213, 1205, 1114, 1290, 1045, 1305] {
            assert!(!of_number(number).in_doubt, "{number}");
        }
        for number in [1114, 1047, 1290, 1792, 1836, 3032, 3100] {
            assert_eq!(of_number(number).kind, BackendErrorKind::Unavailable, "{number}");
        }
        assert_eq!(of_number(1045).kind, BackendErrorKind::Denied);
        assert_eq!(of_number(1305).kind, BackendErrorKind::Misconfigured);
    }
}
