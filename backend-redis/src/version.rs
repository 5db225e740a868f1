//! The version of a namespace's keys, and of the programs that may use them.

use lockcore::{
    BackendError, BackendErrorKind, Finding,
    backend::{ProgramTooOld, StoreFit, StoreVersion},
};
use redis::{Value, from_redis_value};

use crate::{
    scripts::{Scripts, VERSION},
    session::Session,
};

/// Writes a record if it is still as it was read.
const REPLACE: &str =
    "if (redis.call('GET', KEYS[1]) or '') == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) end";

/// Refuses a namespace that is for newer programs, and migrates one that is older than `program`. Called for every new
/// connection.
pub(crate) async fn admit(
    session: &Session,
    scripts: &Scripts,
    program: StoreVersion,
) -> Result<(), BackendError> {
    loop {
        let record = read(session, scripts).await?;
        let found = parse(&record)?;
        if program.fit(Some(found)).map_err(too_old)? == StoreFit::Ready {
            return Ok(());
        }
        let StoreVersion { version, oldest_program } = program.after_migration(Some(found));
        let mut replace = redis::cmd("EVAL");
        replace
            .arg(REPLACE)
            .arg(1)
            .arg(scripts.key("v"))
            .arg(record)
            .arg(format!("{version} {oldest_program}"));
        session.command(replace).await?;
    }
}

/// Reports the version for `doctor`.
pub(crate) async fn finding(
    session: &Session,
    scripts: &Scripts,
    program: StoreVersion,
) -> Result<Finding, BackendError> {
    Ok(program.finding(parse(&read(session, scripts).await?)?))
}

async fn read(session: &Session, scripts: &Scripts) -> Result<String, BackendError> {
    let mut get = redis::cmd("GET");
    get.arg(scripts.key("v"));
    match session.command(get).await? {
        Value::Nil => Ok(String::new()),
        record => from_redis_value(record).map_err(|error| corrupt(&error.to_string())),
    }
}

fn parse(record: &str) -> Result<StoreVersion, BackendError> {
    if record.is_empty() {
        return Ok(VERSION);
    }
    let numbers = record.split_once(' ').map(|(version, oldest)| (version.parse(), oldest.parse()));
    match numbers {
        Some((Ok(version), Ok(oldest_program))) => Ok(StoreVersion { version, oldest_program }),
        _ => Err(corrupt(record)),
    }
}

fn too_old(error: ProgramTooOld) -> BackendError {
    BackendError::new(BackendErrorKind::Misconfigured, format!("redis: {error}")).with_source(error)
}

fn corrupt(record: &str) -> BackendError {
    BackendError::new(
        BackendErrorKind::Corrupt,
        format!("redis: the namespace's version cannot be read: {record:?}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_two_numbers() {
        assert_eq!(parse("").ok(), Some(VERSION));
        assert_eq!(parse("12 3").ok(), Some(StoreVersion { version: 12, oldest_program: 3 }));
        for record in ["1", "1 2 3", "a 1", "-1 1"] {
            assert!(parse(record).is_err(), "{record}");
        }
    }
}
