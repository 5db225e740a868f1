//! The options of a call, and their bounds.

use std::time::Duration;

use super::Inner;
use crate::{BadRequest, Capabilities, ContextId, Ident, LockDao, MAX_OWNER_BYTES, Mode, Owner, Wait};

/// The longest lease that can be asked for.
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The options of a call.
#[derive(Clone, Debug)]
pub(crate) struct Settings<C> {
    pub(crate) wait: Wait,
    pub(crate) lease: Option<Duration>,
    pub(crate) bare: Mode,
    pub(crate) owner: Owner,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) keep_for: Option<Duration>,
    pub(crate) tell_when_lost: bool,
    pub(crate) nested: bool,
    pub(crate) detached: bool,
    pub(crate) context: Option<C>,
    /// Set for a fire of [`once`](super::Call::once): it is waited for without a place in a queue, and only until it ran.
    pub(crate) once: bool,
}

impl<C> Settings<C> {
    pub(crate) fn new(capabilities: &Capabilities) -> Self {
        Settings {
            wait: Wait::never(),
            lease: capabilities.default_lease,
            bare: Mode::Exclusive,
            owner: if capabilities.shared_store { Owner::this_process() } else { Owner::default() },
            max_hold: None,
            keep_for: None,
            tell_when_lost: false,
            nested: false,
            detached: false,
            context: None,
            once: false,
        }
    }
}

impl<I: Ident, C: ContextId, D: LockDao<I, C>> Inner<I, C, D> {
    pub(crate) fn check_lease(&self, lease: Option<Duration>) -> Result<(), BadRequest> {
        let Capabilities { backend, permanent, min_lease: min, .. } = self.capabilities;
        match lease {
            None if !permanent => {
                Err(BadRequest::Unsupported { what: "lease: none (a permanent lock)", backend })
            }
            Some(lease) if lease < min || lease.is_zero() => {
                Err(BadRequest::LeaseTooShort { lease, min, backend })
            }
            Some(lease) if lease > MAX_LEASE => Err(BadRequest::LeaseTooLong { lease, max: MAX_LEASE }),
            _ => Ok(()),
        }
    }

    /// Checks that the backend can do what the settings ask for.
    pub(crate) fn check_settings(&self, settings: &Settings<C>) -> Result<(), BadRequest> {
        self.check_lease(settings.lease)?;
        if settings.owner.len() > MAX_OWNER_BYTES {
            return Err(BadRequest::OwnerTooLong { bytes: settings.owner.len() });
        }
        if settings.max_hold.is_some_and(|max_hold| max_hold.is_zero()) {
            let expected = "it must be more than zero";
            return Err(BadRequest::out_of_bounds("max_hold", "0s", expected));
        }
        if settings.once {
            // The same again would be granted what is kept.
            if let Some(context) = &settings.context {
                let (value, expected) = (context.stored().into_owned(), "`once` needs a fresh one");
                return Err(BadRequest::out_of_bounds("context", value, expected));
            }
            if let Some(keep_for) = settings.keep_for {
                let (value, expected) = (format!("{keep_for:?}"), "`once` has `keep` instead");
                return Err(BadRequest::out_of_bounds("keep_for", value, expected));
            }
        }
        if let Some(keep_for) = settings.keep_for {
            let expected = match settings.lease {
                None if self.capabilities.shared_store => Some("it needs a lease"),
                // The same again would be granted what is kept.
                _ if settings.context.is_some() => Some("it needs a fresh context, and one is given"),
                _ if keep_for.is_zero() => Some("it must be more than zero"),
                _ if keep_for > MAX_LEASE => Some("it must be at most 365 days"),
                _ => None,
            };
            if let Some(expected) = expected {
                let value = format!("{keep_for:?}");
                return Err(BadRequest::out_of_bounds("keep_for", value, expected));
            }
        }
        Ok(())
    }
}
