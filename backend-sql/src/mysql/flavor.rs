//! The differences between MySQL and MariaDB.

/// The kind of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Flavor {
    /// MySQL 8.0 or later.
    MySql,
    /// MariaDB 10.6 or later.
    MariaDb,
}

impl Flavor {
    /// By what `VERSION()` says, which must be recent enough: `JSON_TABLE`, `SKIP LOCKED` and window functions are needed.
    pub(super) fn of_version(version: &str) -> Option<Self> {
        // MariaDB may pretend to be 5.5.5, for clients that would not know what to make of a 10.
        let numbers = version.strip_prefix("5.5.5-").unwrap_or(version);
        let mut numbers = numbers.split(|byte: char| !byte.is_ascii_digit());
        let mut number = || numbers.next().and_then(|number| number.parse::<u32>().ok());
        let (major, minor) = (number()?, number()?);
        if version.to_ascii_lowercase().contains("mariadb") {
            return ((major, minor) >= (10, 6)).then_some(Flavor::MariaDb);
        }
        (major >= 8).then_some(Flavor::MySql)
    }

    /// Its name, as in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Flavor::MySql => "mysql",
            Flavor::MariaDb => "mariadb",
        }
    }

    /// Locks the rows of the table `i` in a join. MySQL refuses to lock those of a `JSON_TABLE`; MariaDB has no `OF`.
    pub(super) fn for_update_of_i(self) -> &'static str {
        match self {
            Flavor::MySql => "FOR UPDATE OF i",
            Flavor::MariaDb => "FOR UPDATE",
        }
    }

    /// Returns the expression for whether the server accepts no writes.
    pub(super) fn read_only(self) -> &'static str {
        match self {
            Flavor::MySql => "@@GLOBAL.read_only OR @@GLOBAL.super_read_only OR @@GLOBAL.innodb_read_only",
            Flavor::MariaDb => "@@GLOBAL.read_only OR @@GLOBAL.innodb_read_only",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (version, flavor) in [
            ("8.0.36", Some(Flavor::MySql)),
            ("9.7.4-2", Some(Flavor::MySql)),
            ("5.7.44-log", None),
            ("10.11.18-MariaDB-0+deb12u1", Some(Flavor::MariaDb)),
            ("5.5.5-10.11.6-MariaDB", Some(Flavor::MariaDb)),
            ("11.4.2-MariaDB", Some(Flavor::MariaDb)),
            ("10.5.1-MariaDB", None),
            ("5.5.68-MariaDB", None),
            ("", None),
        ] {
            assert_eq!(Flavor::of_version(version), flavor, "{version}");
        }
    }
}
