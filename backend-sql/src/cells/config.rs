//! Settings, and what follows from them.

#[cfg(feature = "testing")]
use std::sync::{Arc, atomic::AtomicU64};
use std::time::Duration;

use lockcore::{Capabilities, protocol};
use lockcore_cell::CellSettings;

use super::{SqlCells, Statements};
use crate::server::{ServerError, Settings, column};

/// The longest name of a namespace as it stands in the tables: with the longest name of a cell it has to fit into a key.
const NAMESPACE: usize = 255;

/// The shortest lease, where there is one clock.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// The longest time for one statement with all its tries.
const LONGEST: Duration = Duration::from_secs(3);

/// The settings that only this form of locking has.
#[derive(Clone, Debug, Default)]
pub(crate) struct CellOptions {
    /// The most that the clocks of two nodes differ.
    pub(crate) clock_difference: Duration,
    /// Every statement is serializable: the server has nothing else.
    pub(crate) serializable: bool,
    #[cfg(feature = "testing")]
    pub(crate) ahead: Arc<AtomicU64>,
}

impl CellOptions {
    /// Refuses what has no meaning where routines decide.
    pub(crate) fn refuse(&self, backend: &'static str) -> Result<(), ServerError> {
        let expected = "it is for locking without routines";
        let refuse = |key, value| Err(ServerError::Setting { backend, key, value, expected });
        match self {
            CellOptions { serializable: true, .. } => refuse("isolation", "serializable".to_owned()),
            CellOptions { clock_difference, .. } if !clock_difference.is_zero() => {
                refuse("clock_difference", format!("{clock_difference:?}"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what is out of bounds.
    fn check(&self, backend: &'static str) -> Result<(), ServerError> {
        if self.clock_difference <= Duration::from_secs(60) {
            return Ok(());
        }
        let (key, value) = ("clock_difference", format!("{:?}", self.clock_difference));
        Err(ServerError::Setting { backend, key, value, expected: "it must be 1 min at most" })
    }
}

/// Checks the settings, and lets them be those of one statement with all its tries: the server gives up a little before that, too.
/// Returns the time for a step.
pub(crate) fn prepare(
    backend: &'static str,
    settings: &mut Settings,
    options: &CellOptions,
) -> Result<Duration, ServerError> {
    settings.check(backend)?;
    options.check(backend)?;
    if column(&settings.namespace).len() > NAMESPACE {
        let value = settings.namespace.chars().take(64).collect();
        let expected = "without routines it may have 255 bytes, as in a URL with %20 for a blank";
        return Err(ServerError::Setting { backend, key: "namespace", value, expected });
    }
    let step = settings.timeout;
    settings.timeout = step.min(LONGEST);
    Ok(step)
}

/// Returns the settings of the DAO over these cells, of which a step may take so long.
pub(crate) fn dao_settings<S: Statements>(cells: &SqlCells<S>, step: Duration) -> CellSettings {
    let (server, shared) = (&cells.0.pool.engine, &cells.0);
    let (address, location, namespace) = (server.address(), server.location(), &server.settings().namespace);
    let settings = CellSettings::new(S::NAME, format!("{} at {address}, {location}: {namespace}", S::NAME));
    let capabilities = Capabilities {
        // The time is known to some tenths of a second; renewals are durable commits.
        min_lease: SHORTEST_LEASE.max(Duration::from_micros(shared.spread.saturating_mul(8))),
        default_lease: Some(protocol::DEFAULT_LEASE),
        ..settings.capabilities
    };
    CellSettings { timeout: step, capabilities, ..settings }
}
