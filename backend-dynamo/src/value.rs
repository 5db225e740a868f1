//! Values of attributes, in the service's JSON.

use aws_smithy_json::serialize::{JsonObjectWriter, JsonValueWriter};
use lockcore::Mode;

use crate::row::{Break, Entry, SECOND};

/// A value that an attribute is set to, or compared with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    Text(&'a str),
    Number(u64),
    /// Microseconds, as seconds with a fraction.
    Seconds(u64),
    True,
    /// A number as it was read.
    Digits(&'a str),
    Entry(&'a Entry),
    /// One holder by context.
    Holder(&'a str, &'a Entry),
    /// Holders by context.
    Holders(&'a [(String, Entry)]),
    /// Taken permits, each an attribute, so that conditions can test and count them.
    Permits(&'a [u32]),
    /// The permits of all of these.
    PermitsOf(&'a [(String, Entry)]),
    /// Withdrawn attempts and the ends of their tombstones.
    Tombstones(&'a [(u64, u64)]),
    Breaks(&'a [Break]),
}

impl Value<'_> {
    pub(crate) fn write(self, to: JsonValueWriter<'_>) {
        let mut typed = to.start_object();
        match self {
            Value::Text(text) => typed.key("S").string(text),
            Value::Number(number) => typed.key("N").string_unchecked(&number.to_string()),
            Value::Seconds(micros) => {
                let seconds = format!("{}.{:06}", micros / SECOND, micros % SECOND);
                typed.key("N").string_unchecked(&seconds);
            }
            Value::True => typed.key("BOOL").boolean(true),
            Value::Digits(number) => typed.key("N").string(number),
            Value::Entry(entry) => entry.write(typed.key("M").start_object()),
            Value::Holder(context, entry) => map(&mut typed, [(context, Value::Entry(entry))]),
            Value::Holders(holders) => {
                map(&mut typed, holders.iter().map(|(context, entry)| (context, Value::Entry(entry))));
            }
            Value::Permits(permits) => write_permits(&mut typed, permits),
            Value::PermitsOf(holders) => {
                write_permits(&mut typed, holders.iter().flat_map(|(_, entry)| &entry.permits));
            }
            Value::Tombstones(tombstones) => {
                let named =
                    tombstones.iter().map(|(attempt, end)| (tombstone(*attempt), Value::Number(*end)));
                map(&mut typed, named);
            }
            Value::Breaks(breaks) => {
                let mut list = typed.key("L").start_array();
                for broken in breaks {
                    let mut typed = list.value().start_object();
                    broken.write(&mut typed);
                    typed.finish();
                }
                list.finish();
            }
        }
        typed.finish();
    }
}

/// Names an attempt's tombstone, as a word that expressions can contain.
pub(crate) fn tombstone(attempt: u64) -> String {
    format!("x{attempt:016x}")
}

/// Names a taken permit, as a word that expressions can contain.
pub(crate) fn permit_name(permit: u32) -> String {
    format!("p{permit}")
}

/// Lists the indexes of permits, as a holder's entry has them.
pub(crate) fn listed(permits: &[u32]) -> String {
    permits.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Rounds up to whole seconds: other clients' unit.
pub(crate) fn up(micros: u64) -> u64 {
    micros.div_ceil(SECOND)
}

fn map<'v, K: AsRef<str>>(
    typed: &mut JsonObjectWriter<'_>,
    values: impl IntoIterator<Item = (K, Value<'v>)>,
) {
    let mut map = typed.key("M").start_object();
    for (key, value) in values {
        value.write(map.key(key.as_ref()));
    }
    map.finish();
}

fn write_permits<'p>(typed: &mut JsonObjectWriter<'_>, permits: impl IntoIterator<Item = &'p u32>) {
    map(typed, permits.into_iter().map(|permit| (permit_name(*permit), Value::True)));
}

impl Entry {
    /// Attributes that conditions name are separate, the rest is one text: an entry is written with every take.
    fn write(&self, mut map: JsonObjectWriter<'_>) {
        let mode = match self.mode {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
            Mode::Slots { .. } => "slots",
        };
        let is = format!("{mode} {} {} {}", self.attempt, self.since, &*self.owner);
        Value::Text(&is).write(map.key("is"));
        Value::Number(self.fence).write(map.key("fence"));
        Value::Number(self.lease).write(map.key("lease"));
        Value::Number(self.until).write(map.key("ends"));
        if let Mode::Slots { limit, .. } = self.mode {
            Value::Number(u64::from(limit)).write(map.key("limit"));
            Value::Text(&listed(&self.permits)).write(map.key("permits"));
        }
        if self.broken {
            Value::True.write(map.key("broken"));
        }
        if let Some(prior) = &self.prior {
            Value::Entry(prior).write(map.key("prior"));
        }
        map.finish();
    }
}

impl Break {
    fn write(&self, typed: &mut JsonObjectWriter<'_>) {
        let by = self.by.to_string();
        let mut of = vec![
            ("context", Value::Text(&self.context)),
            ("fence", Value::Number(self.fence)),
            ("by", Value::Text(&by)),
            ("at", Value::Number(self.at)),
        ];
        if self.now {
            of.push(("now", Value::True));
        }
        map(typed, of);
    }
}
