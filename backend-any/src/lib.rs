//! Distributed locks in the store that a URL, a file, the environment or code names: add `lockcore` and `lockcore-any`, with a feature for
//! each backend besides memory and SQLite: `redis`, `postgres`, `mysql`, `dynamodb`, `etcd`, `s3` or `share`.
//!
//! ```
//! # async fn example() -> Result<(), lockcore_any::ConnectError> {
//! // only the backend
//! let locks = lockcore::LockingService::new(lockcore_any::connect("sqlite::memory:").await?);
//!
//! // the backend and the service's defaults: `lockcore.toml`, then LOCKCORE_URL, LOCKCORE_LEASE and so on,
//! // then what the code says
//! let overrides = lockcore_any::Config { namespace: Some("billing".to_owned()), ..Default::default() };
//! let locks = lockcore_any::Config::load(None, overrides)?.service().await?;
//! # Ok(())
//! # }
//! ```
//!
//! `lockcore.toml`, every key optional but the URL:
//!
//! ```toml
//! url = "sqlite:/var/lib/billing/locks.db"
//! namespace = "billing"
//! owner = "worker-7"
//! lease = "30s"
//! wait = "1m"             # or "never", or "forever"; longer than the lease, to outlast a crash
//!
//! [sqlite]                # options of one backend; the same may stand behind the URL, as ?busy_timeout=5s
//! busy_timeout = "5s"
//! ```
//!
//! Relative paths in a file count from its folder. `lockcore.toml` in the current directory is used only if it belongs to root or
//! the caller and no other user may write it, and an unknown variable that begins with `LOCKCORE_` is refused.
//!
//! A backend is one file of `backends/` and one cargo feature; `backends/mod.rs` says where else it is named.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backends;
mod config;
mod duration;
mod enclosing;
mod error;
mod option;
mod schemes;
mod source;
mod table;
mod text;
mod url;

pub use config::{Config, connect, connect_as};
pub use duration::{Waiting, parse_duration};
pub use error::{ConfigError, ConnectError};
pub use option::BackendOptions;
#[doc(hidden)]
pub use schemes::WITHHELD;
pub use table::{Backend, backends, markdown_table};
pub use text::trimmed;
pub use url::BackendUrl;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// Compiles the examples of the book.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/getting-started.md")]
#[doc = include_str!("../../docs/src/election.md")]
struct Book;
