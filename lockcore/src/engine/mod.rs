//! The engine: may this context have this set, and who is next. For backends that decide in this process.
//!
//! Pure: no input or output, no clock of its own. A backend's [`Table`] says what is held and waited for, and notes what becomes of
//! it; [`rules`](crate::rules) say what excludes what. Each function is one atomic step, which the backend makes so: by a mutex, a
//! transaction or a conditional write. What a step makes [room](Table::room) for is to be served before it ends.
//!
//! A table is asked for what a decision needs and no more, and what it has to be asked for does not grow with the queue.

mod grant;
mod queue;
mod serve;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod weigh;

pub use self::{
    queue::Queue,
    serve::serve,
    state::{Back, Held, Look, New, Own, Request, Table, Terms, Turn},
    step::{Losses, Verdict, acquire, leave, release, renew, withdraw},
    weigh::Reasons,
};
