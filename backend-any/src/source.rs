//! Where configuration comes from: a TOML file and the environment.

use std::{ffi::OsString, fs, io, path::Path};

use serde::{Deserialize, Deserializer, de};
use toml::{Table, Value};

use crate::{
    BackendUrl, Config, ConfigError, backends,
    option::{OptionValue, Options},
    parse_duration,
};

/// The file that is read if none is named and it is there.
const DEFAULT_FILE: &str = "lockcore.toml";

/// The keys beside the backends' tables.
const KEYS: [&str; 5] = ["url", "namespace", "owner", "lease", "wait"];

/// The file named by the caller, else by `LOCKCORE_CONFIG`, else the default one if it is there.
pub(crate) fn find(
    named: Option<&Path>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Config, ConfigError> {
    let by_variable = variable("LOCKCORE_CONFIG").filter(|name| !name.is_empty());
    match (named, by_variable) {
        (Some(named), _) => file(named),
        (None, Some(named)) => file(Path::new(&named)),
        (None, None) => match file(Path::new(DEFAULT_FILE)) {
            Err(ConfigError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(Config::default())
            }
            found => found,
        },
    }
}

/// Reads a file.
pub(crate) fn file(path: &Path) -> Result<Config, ConfigError> {
    match fs::read_to_string(path) {
        Ok(text) => toml(&text, &path.display().to_string()),
        Err(source) => Err(ConfigError::Read { file: path.to_owned(), source }),
    }
}

/// Reads the text of a file that is called `name`.
pub(crate) fn toml(text: &str, name: &str) -> Result<Config, ConfigError> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        // Not the error as a whole: it quotes the line, in which a password may stand.
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        ConfigError::Syntax {
            file: name.to_owned(),
            line: before.matches('\n').count() + 1,
            message: error.message().lines().collect::<Vec<_>>().join(", "),
        }
    })?;
    from_table(table, name)
}

/// Reads the environment.
pub(crate) fn environment(variable: impl Fn(&str) -> Option<OsString>) -> Result<Config, ConfigError> {
    let mut config = Config::default();
    for key in KEYS {
        let name = format!("LOCKCORE_{}", key.to_ascii_uppercase());
        let Some(text) = variable(&name).filter(|text| !text.is_empty()) else { continue };
        let Ok(text) = text.into_string() else {
            // Not shown: it may be the URL, with a password in it.
            let (value, expected) = ("what it holds".to_owned(), "it must be UTF-8".to_owned());
            return Err(ConfigError::Value { field: name, value, expected });
        };
        set(&mut config, key, name, &text)?;
    }
    Ok(config)
}

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_table(Table::deserialize(deserializer)?, "configuration").map_err(de::Error::custom)
    }
}

fn from_table(table: Table, name: &str) -> Result<Config, ConfigError> {
    let mut config = Config::default();
    for (key, value) in table {
        if KEYS.contains(&key.as_str()) {
            let field = format!("{key} in {name}");
            let text = plain(&key, &field, value)?;
            set(&mut config, &key, field, &text)?;
        } else if backends::all_schemes().any(|scheme| scheme == key) {
            let options = backend_table(&key, value, name)?;
            config.options.set(key, options);
        } else {
            let known = KEYS.into_iter().chain(backends::compiled_in()).collect();
            return Err(ConfigError::UnknownKey { place: name.to_owned(), key, known });
        }
    }
    Ok(config)
}

fn backend_table(scheme: &str, value: Value, name: &str) -> Result<Options, ConfigError> {
    let field = format!("{scheme} in {name}");
    let Value::Table(table) = value else {
        let expected = format!("it must be a table, [{scheme}]");
        return Err(ConfigError::Value { field, value: format!("a {}", value.type_str()), expected });
    };
    let mut options = Options::default();
    for (key, value) in table {
        let field = format!("{scheme}.{key} in {name}");
        let text = plain(&key, &field, value)?;
        options.insert(key.clone(), OptionValue::new(&key, field, text));
    }
    // Here too, not only on connecting: so that a mistake does not hide while another backend is in use.
    if let Some(known) = backends::options_of(scheme) {
        options.check_known(known)?;
    }
    Ok(options)
}

/// A single value as text. `key` only tells whether it may be shown.
fn plain(key: &str, field: &str, value: Value) -> Result<String, ConfigError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Boolean(flag) => Ok(flag.to_string()),
        other => Err(ConfigError::Value {
            field: field.to_owned(),
            value: format!("a {}", other.type_str()),
            expected: format!("{key} must be a string"),
        }),
    }
}

/// Sets one of [`KEYS`] to what stands at `field`.
fn set(config: &mut Config, key: &str, field: String, text: &str) -> Result<(), ConfigError> {
    let refuse = |expected| ConfigError::Value { field: field.clone(), value: format!("{text:?}"), expected };
    match key {
        "url" => config.url = Some(BackendUrl::read(text, &field)?),
        "namespace" => config.namespace = Some(text.to_owned()),
        "owner" => config.owner = Some(text.to_owned()),
        "lease" => config.lease = Some(parse_duration(text).map_err(refuse)?),
        "wait" => config.wait = Some(text.parse().map_err(refuse)?),
        other => unreachable!("{other} is none of the keys"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn from(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        environment(|name| find(name).map(|(_, text)| (*text).into()))
    }

    #[test]
    fn the_environment_is_read_and_its_mistakes_named() {
        let config = from(&[("LOCKCORE_URL", "memory:"), ("LOCKCORE_LEASE", "20s"), ("LOCKCORE_OWNER", "")]);
        let config = config.expect("good variables");
        assert_eq!(config.url.map(|url| url.to_string()).as_deref(), Some("memory:"));
        assert_eq!((config.lease, config.owner), (Some(Duration::from_secs(20)), None));

        let error = from(&[("LOCKCORE_LEASE", "60")]).expect_err("no unit").to_string();
        assert_eq!(error, "LOCKCORE_LEASE: \"60\" is not possible, it needs a unit, such as 60s or 60ms");
        let error = from(&[("LOCKCORE_URL", "hunter2")]).expect_err("no scheme").to_string();
        assert_eq!(error, "LOCKCORE_URL: must begin with a scheme, such as sqlite:/var/lib/locks.db");
    }

    #[test]
    #[cfg(unix)]
    fn a_variable_that_is_not_text_is_a_mistake() {
        use std::os::unix::ffi::OsStringExt;
        for key in KEYS {
            let name = format!("LOCKCORE_{}", key.to_uppercase());
            let variable = |asked: &str| (asked == name).then(|| OsString::from_vec(b"memory:\xff".to_vec()));
            let error = environment(variable).expect_err("it is not UTF-8").to_string();
            assert_eq!(error, format!("{name}: what it holds is not possible, it must be UTF-8"));
        }
    }

    #[test]
    fn a_file_named_by_the_environment_must_be_there() {
        let variable = |name: &str| (name == "LOCKCORE_CONFIG").then(|| "/nowhere/x.toml".into());
        let error = find(None, variable).expect_err("no file").to_string();
        assert!(error.starts_with("/nowhere/x.toml: cannot be read: "), "{error}");
        find(None, |_| None).expect("nothing is named");
    }
}
