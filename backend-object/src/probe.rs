//! The look at a store before it is used: whether it has conditional writes.

use bytes::Bytes;

use crate::{
    cell::{Cell, Written},
    error::StoreError,
};

/// Writes an object four times, of which two writes have to be refused.
pub(crate) async fn has_conditional_writes(cell: &impl Cell, session: &str) -> Result<(), StoreError> {
    let name = format!("probe/{session}");
    let write = async |at, content: &'static str| {
        cell.replace(&name, at, Bytes::from_static(content.as_bytes())).await
    };
    let Written::Done(first) = write(None, "1").await? else {
        return Err(StoreError::Corrupt("the object of a probe"));
    };
    if let Written::Done(_) = write(None, "2").await? {
        return Err(StoreError::Unconditional("it creates an object that is there"));
    }
    let Written::Done(_) = write(Some(&first), "3").await? else {
        return Err(StoreError::Unconditional("it does not replace the version that it named itself"));
    };
    if let Written::Done(_) = write(Some(&first), "4").await? {
        return Err(StoreError::Unconditional("it replaces a version that is not there any more"));
    }
    cell.remove(&name).await
}
