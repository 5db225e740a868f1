//! The look at a store before it is used: whether it has conditional writes.

use std::time::Duration;

use bytes::Bytes;
use lockcore::{BackendError, BackendErrorKind, backend::unique_name};

use crate::{
    cell::{Cell, Found, Written},
    error::StoreError,
    pause::Pause,
};

/// The time for one write with all its tries. Some stores take one write a second and cell, and turn away the next.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Writes a cell five times, of which two writes have to be refused.
pub(crate) async fn has_conditional_writes(cell: &impl Cell) -> Result<(), StoreError> {
    let name = format!("probe/{}", unique_name());
    let Outcome::Done(first) = write(cell, &name, None, "1").await? else {
        return Err(StoreError::corrupt("the cell of a probe"));
    };
    let Outcome::Refused(read) = write(cell, &name, None, "2").await? else {
        return Err(StoreError::Unconditional("it creates an object that is there"));
    };
    // A proxy may change the entity tags of reads: to weak ones, or to others where it compresses.
    let of_reads =
        "a version that was read is not the one that is replaced: is there a proxy that changes entity tags?";
    let Some(read) = read else {
        return Err(StoreError::corrupt("the cell of a probe"));
    };
    let Outcome::Done(second) = write(cell, &name, Some(&read), "3").await? else {
        return Err(BackendError::new(BackendErrorKind::Misconfigured, of_reads).into());
    };
    if let Outcome::Refused(_) = write(cell, &name, Some(&second), "4").await? {
        return Err(StoreError::Unconditional("it does not replace the version that it named itself"));
    }
    if let Outcome::Done(_) = write(cell, &name, Some(&first), "5").await? {
        return Err(StoreError::Unconditional("it replaces a version that is not there any more"));
    }
    Ok(cell.remove(&name).await?)
}

/// The outcome of a write, and the version of the cell.
enum Outcome<V> {
    Done(V),
    Refused(Option<V>),
}

/// Writes the cell. Reads it if the write was refused: a proxy that sends a write again passes on the refusal of the second.
async fn write<C: Cell>(
    cell: &C,
    name: &str,
    at: Option<&C::Version>,
    content: &'static str,
) -> Result<Outcome<C::Version>, StoreError> {
    let mut pause = Pause::new(TIMEOUT);
    loop {
        match try_write(cell, name, at, content).await.map_err(StoreError::Cell) {
            Err(error) if error.again() => pause.rest(error, false).await?,
            other => return other,
        }
    }
}

async fn try_write<C: Cell>(
    cell: &C,
    name: &str,
    at: Option<&C::Version>,
    content: &'static str,
) -> Result<Outcome<C::Version>, BackendError> {
    if let Written::Done(version) = cell.replace(name, at, Bytes::from_static(content.as_bytes())).await? {
        return Ok(Outcome::Done(version));
    }
    Ok(match cell.read(name, None).await? {
        Found::Changed(version, found) if found == content => Outcome::Done(version),
        Found::Changed(version, _) => Outcome::Refused(Some(version)),
        Found::Absent | Found::Unchanged => Outcome::Refused(None),
    })
}
