//! The declaration of a backend: what it can do beyond lock, release and renew.

use std::time::Duration;

use crate::protocol;

/// The abilities of a backend. What is declared is tested by the conformance suite; what is not is refused
/// with [`BackendErrorKind::Unsupported`](crate::BackendErrorKind::Unsupported).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// The backend's name as in its URL scheme, such as `"sqlite"`.
    pub backend: &'static str,
    /// Locks exclude other processes, and outlive the process that took them.
    pub shared_store: bool,
    /// Waiters are served in order ([`AcquireRequest::queue`](crate::AcquireRequest::queue)).
    pub fifo: bool,
    /// A waiter is notified of its turn without polling. Needs `fifo`.
    pub push: bool,
    /// [`LockDao::shorten`](crate::LockDao::shorten) cuts a longer lease short.
    pub shortening: bool,
    /// A lease of `None` is accepted: a lock that lasts until it is released.
    pub permanent: bool,
    /// Slot claims are accepted.
    pub slots: bool,
    /// Shared claims are accepted.
    pub shared: bool,
    /// [`LockDao::list`](crate::LockDao::list), [`inspect`](crate::LockDao::inspect) and
    /// [`release_context`](crate::LockDao::release_context) work.
    pub listing: bool,
    /// [`LockDao::break_lock`](crate::LockDao::break_lock) and [`freeze`](crate::LockDao::freeze) work.
    pub breaking: bool,
    /// [`LockDao::sweep`](crate::LockDao::sweep) works.
    pub sweeping: bool,
    /// The locks of a process that died on this host are taken over at once, before their lease ends
    /// (unless [`AcquireRequest::detached`](crate::AcquireRequest::detached)).
    pub dead_holders: bool,
    /// The shortest lease that is accepted.
    pub min_lease: Duration,
    /// The lease of a call that names none; `None` is for ever and needs `permanent`.
    pub default_lease: Option<Duration>,
    /// The most ids that can be taken in one atomic step: 100 or more, or 50 on DynamoDB with strict fences.
    pub max_ids: usize,
}

impl Capabilities {
    /// Returns the capabilities of a backend with nothing optional: exclusive locks of up to 100 ids, with leases of
    /// at least 1 s and by default 30 s.
    pub const fn minimal(backend: &'static str) -> Self {
        Capabilities {
            backend,
            shared_store: false,
            fifo: false,
            push: false,
            shortening: false,
            permanent: false,
            slots: false,
            shared: false,
            listing: false,
            breaking: false,
            sweeping: false,
            dead_holders: false,
            min_lease: protocol::MIN_LEASE,
            default_lease: Some(protocol::DEFAULT_LEASE),
            max_ids: protocol::MIN_MAX_IDS,
        }
    }

    /// Returns the capabilities of a store that many processes share and that decides by itself: exclusive, shared and slot
    /// claims, a queue in order of arrival, administration. What it cannot do is set to `false`, what it does better is set
    /// as well.
    pub const fn shared_store(backend: &'static str) -> Self {
        Capabilities {
            shared_store: true,
            fifo: true,
            slots: true,
            shared: true,
            listing: true,
            breaking: true,
            sweeping: true,
            ..Capabilities::minimal(backend)
        }
    }
}
