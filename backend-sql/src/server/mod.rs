//! The code that the database servers share on this side: a DAO over routines that decide, connections, retries,
//! notifications.
//!
//! A database implements [`Engine`]: it sends a request in stored form as one call of a routine, and reads the text with
//! which the routine answers as an [`Answer`]. Everything else is here, and the same for all of them: the DAO calls
//! `batch`, which sends most requests on to `exchange`, which takes a connection from `pool`.

pub(crate) mod background;
mod batch;
mod dao;
mod engine;
mod error;
mod exchange;
mod form;
mod pool;
pub(crate) mod reply;
mod request;
mod settings;
pub(crate) mod template;
mod watch;

pub(crate) use dao::{ServerLockDao, fit, patience, store_version};
pub(crate) use engine::{Engine, Order, Outcome, Server};
pub(crate) use error::{Certificate, Meaning, ServerError, is_unusable};
pub(crate) use exchange::exchange;
pub(crate) use form::{Form, column};
pub(crate) use pool::{Pool, UNUSED};
pub(crate) use reply::{Answer, Notification};
#[cfg(feature = "postgres")]
pub(crate) use request::Modes;
pub(crate) use request::{Key, Place, StoredGrant, StoredRequest, micros};
#[cfg(feature = "postgres")]
pub(crate) use settings::check_name;
pub(crate) use settings::{Settings, in_server, names_user, tried, without_brackets};
