//! The look at a store before it is used: whether it has conditional writes.

use bytes::Bytes;

use crate::{
    cell::{Cell, Found, Version, Written},
    error::StoreError,
};

/// Writes an object four times, of which two writes have to be refused.
pub(crate) async fn has_conditional_writes(cell: &impl Cell, session: &str) -> Result<(), StoreError> {
    let name = format!("probe/{session}");
    let Some(first) = write(cell, &name, None, "1").await? else {
        return Err(StoreError::Corrupt("the object of a probe"));
    };
    if write(cell, &name, None, "2").await?.is_some() {
        return Err(StoreError::Unconditional("it creates an object that is there"));
    }
    if write(cell, &name, Some(&first), "3").await?.is_none() {
        return Err(StoreError::Unconditional("it does not replace the version that it named itself"));
    }
    if write(cell, &name, Some(&first), "4").await?.is_some() {
        return Err(StoreError::Unconditional("it replaces a version that is not there any more"));
    }
    cell.remove(&name).await
}

/// Returns the version that was written; `None` if the write was refused. Reads the object then: a proxy that sends a write again
/// passes on the refusal of the second.
async fn write(
    cell: &impl Cell,
    name: &str,
    at: Option<&Version>,
    content: &'static str,
) -> Result<Option<Version>, StoreError> {
    if let Written::Done(version) = cell.replace(name, at, Bytes::from_static(content.as_bytes())).await? {
        return Ok(Some(version));
    }
    Ok(match cell.read(name, None).await? {
        Found::Changed(version, found) if found == content => Some(version),
        _ => None,
    })
}
