//! What attributes hold, in the service's JSON.

use aws_smithy_json::serialize::{JsonObjectWriter, JsonValueWriter};
use lockcore::Mode;

use crate::{
    item::{self, SECOND},
    row::{Break, Entry},
};

/// What an attribute is set to, or compared with.
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
    /// Permits that are taken, each by itself, so that conditions can tell which are and how many.
    Permits(&'a [u32]),
    /// The permits of all of these.
    PermitsOf(&'a [(String, Entry)]),
    /// Withdrawn attempts and until when each is remembered.
    Marks(&'a [(u64, u64)]),
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
            Value::Marks(marks) => {
                map(
                    &mut typed,
                    marks.iter().map(|(attempt, until)| (item::mark(*attempt), Value::Number(*until))),
                );
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
    map(typed, permits.into_iter().map(|permit| (item::permit(*permit), Value::True)));
}

impl Entry {
    /// What conditions name stands by itself, the rest in one word after the other: an entry is written with every take.
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
            Value::Text(&item::listed(&self.permits)).write(map.key("permits"));
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
