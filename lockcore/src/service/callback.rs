//! The values that a callback may return.

use std::convert::Infallible;

/// The value that a callback may give: a `Result`, or nothing.
#[diagnostic::on_unimplemented(
    message = "the callback of `with_locks` gives `{Self}`, it must give a `Result` or `()`",
    label = "for a callback that cannot fail use `run_locked`, or end it with `Ok::<_, YourError>(..)`"
)]
pub trait CallbackResult {
    /// The value that it gives on success.
    type Ok;
    /// Its own error.
    type Error;

    /// The plain result.
    fn into_result(self) -> Result<Self::Ok, Self::Error>;
}

impl<T, E> CallbackResult for Result<T, E> {
    type Ok = T;
    type Error = E;

    fn into_result(self) -> Result<T, E> {
        self
    }
}

impl CallbackResult for () {
    type Ok = ();
    type Error = Infallible;

    fn into_result(self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// The value that a callback with the future `Fut` gives on success.
pub type OkOf<Fut> = <<Fut as Future>::Output as CallbackResult>::Ok;

/// The own error of a callback with the future `Fut`.
pub type ErrOf<Fut> = <<Fut as Future>::Output as CallbackResult>::Error;
