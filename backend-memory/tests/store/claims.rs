//! Claims and requests beyond what the model checks ask for.

use std::time::Duration;

use lockcore::{Claim, backend::AcquireRequest};

pub(crate) fn shared(id: &str) -> Claim<String> {
    Claim::shared(id.to_owned())
}

pub(crate) fn slots(id: &str, permits: u32, limit: u32) -> Claim<String> {
    Claim::slots(id.to_owned(), limit).permits(permits)
}

pub(crate) fn leased(
    mut request: AcquireRequest<String, u64>,
    lease: Duration,
) -> AcquireRequest<String, u64> {
    request.lease = Some(lease);
    request
}
