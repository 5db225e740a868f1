//! Versions of what a backend stores, and which programs may use a store.

use crate::{Finding, Severity};

/// The version of a store's format, and the oldest version of a program that may use it.
///
/// Programs of two versions use one store at the same time while a new release is rolled out or rolled back. So a backend
/// numbers its formats, and a store records two numbers, which never decrease:
/// - `version`: that of the newest program that migrated it,
/// - `oldest_program`: programs of an older version would misread the store, and refuse it.
///
/// A release that older programs can share a store with raises only `version`; one that they cannot raises
/// `oldest_program`, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreVersion {
    /// The version of the format.
    pub version: u32,
    /// The oldest version of a program that may use it.
    pub oldest_program: u32,
}

/// The step that a program has to take before it uses a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreFit {
    /// Nothing: it is of the program's version, or of a newer one that the program may use.
    Ready,
    /// Create it, or migrate it from an older version.
    Migrate,
}

/// A program that may not use a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the store has version {} and is for programs of version {} or later, this program has version {program}: use a newer program",
    store.version, store.oldest_program
)]
pub struct ProgramTooOld {
    /// The program's version.
    pub program: u32,
    /// The store's record.
    pub store: StoreVersion,
}

impl StoreVersion {
    /// Compares a program of this version with what a store records; `None` is a store that does not exist yet.
    ///
    /// # Errors
    /// [`ProgramTooOld`] if the program's version is below the store's `oldest_program`, and for no other reason.
    pub fn fit(self, store: Option<StoreVersion>) -> Result<StoreFit, ProgramTooOld> {
        match store {
            Some(store) if self.version < store.oldest_program => {
                Err(ProgramTooOld { program: self.version, store })
            }
            Some(store) if self.version <= store.version => Ok(StoreFit::Ready),
            _ => Ok(StoreFit::Migrate),
        }
    }

    /// Reports the version of a store to a program of this version, for [`LockDao::doctor`](crate::LockDao::doctor).
    pub fn finding(self, store: StoreVersion) -> Finding {
        let StoreVersion { version, oldest_program } = store;
        let severity = if self.fit(Some(store)).is_ok() { Severity::Ok } else { Severity::Error };
        let program = self.version;
        let detail = format!(
            "{version}, for programs of version {oldest_program} or later; this one has version {program}"
        );
        Finding::new(severity, "schema version", detail)
    }

    /// Returns what a store records once a program of this version has migrated it.
    #[must_use]
    pub fn after_migration(self, store: Option<StoreVersion>) -> StoreVersion {
        let store = store.unwrap_or(self);
        StoreVersion {
            version: self.version.max(store.version),
            oldest_program: self.oldest_program.max(store.oldest_program),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn version(version: u32, oldest_program: u32) -> StoreVersion {
        StoreVersion { version, oldest_program }
    }

    #[test]
    fn only_a_program_below_the_oldest_is_refused() {
        let program = version(2, 1);
        for (store, expected) in [
            (None, StoreFit::Migrate),
            (Some(version(1, 1)), StoreFit::Migrate),
            (Some(version(2, 1)), StoreFit::Ready),
            (Some(version(2, 2)), StoreFit::Ready),
            (Some(version(9, 2)), StoreFit::Ready),
        ] {
            assert_eq!(program.fit(store), Ok(expected), "{store:?}");
        }
        let refused = program.fit(Some(version(9, 3))).expect_err("it is too old");
        let said = refused.to_string();
        assert!(
            ["version 9", "version 3", "version 2", "newer program"].iter().all(|part| said.contains(part)),
            "{said}"
        );
    }

    #[test]
    fn the_numbers_never_decrease() {
        assert_eq!(version(2, 1).after_migration(None), version(2, 1));
        assert_eq!(version(2, 1).after_migration(Some(version(1, 1))), version(2, 1));
        assert_eq!(version(2, 1).after_migration(Some(version(3, 2))), version(3, 2));
        assert_eq!(version(4, 3).after_migration(Some(version(3, 2))), version(4, 3));
    }
}
