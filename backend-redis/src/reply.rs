//! Parses the script's replies and messages.

use std::time::Duration;

use lockcore::{
    BackendError, Conflict, ConflictReason, ContextId, Granted, Holder, Ident, LossReason, MAX_PERMITS, Mode,
    StoredContext, Target,
};
use redis::Value;

use crate::error::unexpected;

/// A reply, read from its beginning.
#[derive(Debug)]
pub(crate) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    pub(crate) fn of(value: Value) -> Result<Self, BackendError> {
        match value {
            Value::Array(values) => Ok(Reply(values.into_iter())),
            other => Err(unexpected(&format!("{other:?} where a list was expected"))),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    pub(crate) fn text(&mut self) -> Result<String, BackendError> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Some(Value::SimpleString(text)) => Ok(text),
            other => Err(unexpected(&format!("{other:?} where text was expected"))),
        }
    }

    pub(crate) fn int(&mut self) -> Result<i64, BackendError> {
        match self.0.next() {
            Some(Value::Int(number)) => Ok(number),
            other => Err(unexpected(&format!("{other:?} where a number was expected"))),
        }
    }

    pub(crate) fn number(&mut self) -> Result<u64, BackendError> {
        u64::try_from(self.int()?).map_err(|_| unexpected("a negative number"))
    }

    pub(crate) fn small(&mut self) -> Result<u32, BackendError> {
        u32::try_from(self.int()?).map_err(|_| unexpected("too large a number"))
    }

    pub(crate) fn list(&mut self) -> Result<Reply, BackendError> {
        Reply::of(self.0.next().unwrap_or_default())
    }

    /// Reads all remaining values, each of which is a list.
    pub(crate) fn lists<T>(
        mut self,
        mut read: impl FnMut(Reply) -> Result<T, BackendError>,
    ) -> Result<Vec<T>, BackendError> {
        let mut all = Vec::with_capacity(self.0.len());
        while !self.is_empty() {
            all.push(read(self.list()?)?);
        }
        Ok(all)
    }

    /// Reads milliseconds; a negative number means without end.
    pub(crate) fn span(&mut self) -> Result<Option<Duration>, BackendError> {
        Ok(u64::try_from(self.int()?).ok().map(Duration::from_millis))
    }

    /// Reads kind, permits and limit.
    pub(crate) fn mode(&mut self) -> Result<Mode, BackendError> {
        let (kind, permits, limit) = (self.text()?, self.small()?, self.small()?);
        mode(&kind, permits, limit)
    }

    /// Reads a grant: mode with permits, fence, units in use.
    pub(crate) fn granted(mut self) -> Result<Granted, BackendError> {
        granted(&self.text()?, self.number()?, self.small()?)
    }

    /// Reads one conflict of a set.
    pub(crate) fn conflict<I: Ident, C: ContextId>(
        mut self,
        targets: impl Fn(usize) -> Option<Target<I>>,
    ) -> Result<Conflict<I, C>, BackendError> {
        let position = usize::try_from(self.int()?).unwrap_or(usize::MAX);
        let target = targets(position).ok_or_else(|| unexpected("a conflict about no id"))?;
        let reason = match self.text()?.as_str() {
            "held" => {
                let (count, in_use) = (self.small()? as usize, self.small()?);
                ConflictReason::Held { count, in_use, holders: self.lists(Reply::holder)? }
            }
            "queued" => ConflictReason::QueuedBehind {
                head: StoredContext::read(&self.text()?),
                count: self.small()? as usize,
            },
            _ => ConflictReason::Frozen,
        };
        Ok(Conflict { target, reason })
    }

    fn holder<C: ContextId>(mut self) -> Result<Holder<C>, BackendError> {
        Ok(Holder {
            context: StoredContext::read(&self.text()?),
            owner: self.text()?.into(),
            mode: self.mode()?,
            fence: self.number()?,
            remaining: self.span()?,
        })
    }

    /// Reads a lock that the grant no longer holds: its position, and the reason.
    pub(crate) fn loss(mut self) -> Result<(usize, LossReason), BackendError> {
        let position = usize::try_from(self.int()?).unwrap_or(usize::MAX);
        let reason = match self.text()?.as_str() {
            "broken" => LossReason::Broken,
            "expired" => LossReason::Expired,
            _ => LossReason::Vanished,
        };
        Ok((position, reason))
    }
}

fn mode(kind: &str, permits: u32, limit: u32) -> Result<Mode, BackendError> {
    match kind {
        "x" => Ok(Mode::Exclusive),
        "s" => Ok(Mode::Shared),
        "k" => Ok(Mode::Slots { permits, limit }),
        other => Err(unexpected(&format!("the mode {other:?}"))),
    }
}

/// Parses a held mode as the script writes it: `x`, `s`, or `k2/5/0-0,3-3` for two permits of five, the first and the fourth.
pub(crate) fn granted(written: &str, fence: u64, in_use: u32) -> Result<Granted, BackendError> {
    let (kind, rest) = written.split_at_checked(1).ok_or_else(|| unexpected("an empty mode"))?;
    if kind != "k" {
        return Ok(Granted { mode: mode(kind, 0, 0)?, fence, permits: Vec::new(), in_use });
    }
    let mut parts = rest.splitn(3, '/');
    let mut number = || parts.next().and_then(|part| part.parse().ok());
    let (Some(permits), Some(limit)) = (number(), number()) else {
        return Err(unexpected("slots without numbers"));
    };
    let permits_held = indexes(parts.next().unwrap_or_default())?;
    Ok(Granted { mode: Mode::Slots { permits, limit }, fence, permits: permits_held, in_use })
}

/// Parses ranges of permits, such as `0-2,5-5`.
pub(crate) fn indexes(ranges: &str) -> Result<Vec<u32>, BackendError> {
    let mut indexes = Vec::new();
    for range in ranges.split(',').filter(|range| !range.is_empty()) {
        let ends = range.split_once('-').map(|(first, last)| (first.parse::<u32>(), last.parse::<u32>()));
        let Some((Ok(first), Ok(last))) = ends else { return Err(unexpected("permits that are no range")) };
        // A store that holds something else must not make this process run out of memory.
        if indexes.len() + (last.saturating_sub(first) as usize) >= MAX_PERMITS as usize {
            return Err(unexpected("more permits than a claim can have"));
        }
        indexes.extend(first..=last);
    }
    Ok(indexes)
}

/// Writes the mode of a claim as the script reads it.
pub(crate) fn written(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "x".to_owned(),
        Mode::Shared => "s".to_owned(),
        Mode::Slots { permits, limit } => format!("k{permits}/{limit}"),
    }
}

/// A message of the script: fields as `length:bytes`.
#[derive(Debug)]
pub(crate) struct Message<'m>(pub(crate) &'m [u8]);

impl<'m> Message<'m> {
    /// Reads the next field; `None` at the end, or of a message in another format.
    pub(crate) fn field(&mut self) -> Option<&'m str> {
        let colon = self.0.iter().position(|&byte| byte == b':')?;
        let length: usize = std::str::from_utf8(&self.0[..colon]).ok()?.parse().ok()?;
        let rest = &self.0[colon + 1..];
        let (field, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(field).ok()
    }

    pub(crate) fn number<N: std::str::FromStr>(&mut self) -> Option<N> {
        self.field()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_as_they_are_written() {
        let granted = granted("k3/9/0-1,4-4", 7, 5).expect("it is well formed");
        assert_eq!(granted.mode, Mode::Slots { permits: 3, limit: 9 });
        assert_eq!(granted.permits.as_slice(), [0, 1, 4]);
        assert_eq!(written(granted.mode), "k3/9");
        for bad in ["", "y", "k", "k1", "k1/2/x"] {
            assert!(super::granted(bad, 1, 1).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn whatever_stands_in_the_store_is_read_or_refused() {
        use lockcore_conformance::hostile::feed;
        feed(&["x", "s", "k3/9/0-1,4-4", "k4294967295/4294967295/0-4294967294"], |text| {
            drop(granted(text, 7, 5))
        });
        feed(&["5:offer3:a:b2:17", "0:", "18446744073709551615:x"], |text| {
            let mut message = Message(text.as_bytes());
            while message.field().is_some() {}
            let _ = Message(text.as_bytes()).number::<u64>();
        });
    }

    #[test]
    fn messages_are_read_field_by_field() {
        let mut message = Message(b"5:offer3:a:b2:17");
        assert_eq!(message.field(), Some("offer"));
        assert_eq!(message.field(), Some("a:b"));
        assert_eq!(message.number(), Some(17_u64));
        assert_eq!(message.field(), None);
        assert_eq!(Message(b"9:short").field(), None);
        assert_eq!(Message(b"x:short").field(), None);
    }
}
