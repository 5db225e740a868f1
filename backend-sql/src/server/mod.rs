//! What the database servers share on this side: a DAO over routines that decide, connections, retries, waking.
//!
//! A database implements [`Engine`]: it sends a request in stored form as one call of a routine, and gives the text with
//! which the routine answers ([`reply`]). Everything else is here, and the same for all of them.

mod background;
mod dao;
mod engine;
mod error;
mod kept;
mod pool;
pub(crate) mod reply;
mod request;
mod retry;
mod settings;
pub(crate) mod template;
mod together;
mod watch;

pub use dao::ServerLockDao;
pub(crate) use dao::{fit, store_version};
pub(crate) use engine::{Done, Engine, Order, Outcome, Single};
pub(crate) use error::ServerError;
pub(crate) use kept::Kept;
#[cfg(feature = "postgres")]
pub(crate) use kept::Set;
pub(crate) use pool::Pool;
#[cfg(feature = "postgres")]
pub(crate) use request::Modes;
pub(crate) use request::{Ask, Hold, Key, Place, micros};
pub(crate) use settings::Settings;
#[cfg(feature = "postgres")]
pub(crate) use settings::Word;
