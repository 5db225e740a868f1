//! The pauses between the tries of a step.

use std::time::Duration;

use lockcore::backend::Moment;

use crate::error::StoreError;

const SHORTEST: Duration = Duration::from_millis(15);
const LONGEST: Duration = Duration::from_millis(250);

/// Pauses that grow, until a step has run out of time.
pub(crate) struct Pause {
    begun: Moment,
    timeout: Duration,
    next: Duration,
}

impl Pause {
    pub(crate) fn new(timeout: Duration) -> Self {
        Pause { begun: Moment::now(), timeout, next: SHORTEST }
    }

    /// Waits before the next try, for a time by chance, so that processes that lost a race do not race again.
    ///
    /// # Errors
    /// The error of the last try, if there is no time left for another one.
    pub(crate) async fn rest(&mut self, error: StoreError, in_doubt: bool) -> Result<(), StoreError> {
        if self.begun.elapsed() >= self.timeout {
            return Err(error.or_done_before(in_doubt));
        }
        tokio::time::sleep(self.next.mul_f64(0.3 + 0.7 * fastrand::f64())).await;
        self.next = (self.next * 2).min(LONGEST);
        Ok(())
    }
}
