//! The adapter: a cell is a key, a version its `mod_revision`.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use lockcore::{
    BackendError, Finding, Severity,
    backend::{Moment, ServiceClock, ServiceTime},
};
use lockcore_cell::{Cell, CellPage, Change, Found, Written};
use serde_json::{Value, json};

use crate::{
    client::Client,
    config::Settings,
    error::{Failure, Next, apart, corrupt, no_time},
    message::{Deleted, Range, Status, Txn, Within, path},
    watch::Watch,
};

/// The most keys of a page: their values travel with them.
const PAGE: usize = 100;

/// The most keys of a transaction, as `--max-txn-ops` is by default.
pub(crate) const MOST: usize = 128;

/// The keys of a namespace.
#[cfg_attr(not(feature = "testing"), expect(unreachable_pub, reason = "only tests name it"))]
pub struct Keys {
    client: Arc<Client>,
    watch: Arc<Watch>,
    /// All keys begin with it.
    base: String,
    /// For messages.
    pub(crate) place: String,
    /// The most that the clock of a member is off the store's time, in microseconds (E3).
    spread: u64,
    /// Set if what is sent can be read on its way.
    is_plain: bool,
    /// The version of the member that was asked first, and its alarms.
    status: Mutex<(String, Vec<String>)>,
    /// The time by which a test sets the members' time forward, in microseconds.
    #[cfg(feature = "testing")]
    ahead: Arc<std::sync::atomic::AtomicU64>,
}

impl Keys {
    pub(crate) fn new(settings: &Settings) -> Result<Self, BackendError> {
        let address = settings.address()?;
        let (prefix, namespace) = (&address.prefix, &settings.namespace);
        let is_local =
            |host: &String| ["localhost:", "127.", "[::1]:"].iter().any(|local| host.starts_with(local));
        let base = format!("{prefix}/{namespace}/");
        let encoded = |name: &str| BASE64_STANDARD.encode(format!("{base}{name}"));
        // The table, and all in a folder. Sessions are not waited for.
        let followed = [
            json!({ "create_request": { "key": encoded("table") } }),
            json!({ "create_request": { "key": encoded("id/"), "range_end": encoded("id0") } }),
        ];
        let followed = followed.map(|request| request.to_string()).concat();
        let place = format!("etcd: {}/{prefix}: {namespace}", address.members.join(","));
        let is_plain = !address.is_tls && !address.members.iter().all(is_local);
        let client = Arc::new(Client::new(settings, address)?);
        Ok(Keys {
            watch: Arc::new(Watch::new(client.clone(), followed.into())),
            client,
            base,
            place,
            spread: u64::try_from(settings.clock_difference.as_micros() / 2).unwrap_or(u64::MAX),
            is_plain,
            status: Mutex::default(),
            #[cfg(feature = "testing")]
            ahead: settings.ahead.clone(),
        })
    }

    /// Asks a member for its state, for [`findings`](Cell::findings), and so for the time.
    pub(crate) async fn look(&self) -> Result<(), BackendError> {
        let Status { version, errors, .. } = self.client.ask_to_read(path::STATUS, &json!({})).await?;
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = (version, errors);
        self.client.look_at_others();
        Ok(())
    }

    fn ahead(&self) -> u64 {
        #[cfg(feature = "testing")]
        return self.ahead.load(Relaxed);
        #[cfg(not(feature = "testing"))]
        0
    }

    /// Returns the key of a cell, as it is sent.
    fn key(&self, name: &str) -> String {
        BASE64_STANDARD.encode(format!("{}{name}", self.base))
    }

    /// Asks for cells as they are at one time, for so many in a request.
    async fn ranges(&self, cells: &[(String, Option<u64>)], at_once: usize) -> Result<Vec<Within>, Failure> {
        let (mut all, mut revision) = (Vec::new(), 0);
        for chunk in cells.chunks(at_once) {
            let ranges = chunk.iter().map(|(name, known)| {
                json!({
                    "key": self.key(name),
                    // A cell of a known version is counted and not sent.
                    "min_mod_revision": known.map_or(0, |known| known + 1).to_string(),
                    "revision": revision.to_string(),
                })
            });
            let (answered, within) = self.ask_for(ranges.collect()).await?;
            if revision == 0 {
                revision = answered;
            }
            all.extend(within);
        }
        Ok(all)
    }

    /// Asks for ranges at once; returns the revision of the store, too.
    async fn ask_for(&self, ranges: Vec<Value>) -> Result<(u64, Vec<Within>), Failure> {
        if let [range] = &ranges[..] {
            let Range { header, kvs, count, .. } = self.client.ask_to_read(path::RANGE, range).await?;
            return Ok((header.revision, vec![Within { kvs, count }]));
        }
        let ranges: Vec<Value> = ranges.into_iter().map(|range| json!({ "request_range": range })).collect();
        let txn: Txn = self.client.ask_to_read(path::TXN, &json!({ "success": ranges })).await?;
        let within: Vec<Within> =
            txn.responses.into_iter().filter_map(|response| response.response_range).collect();
        match within.len() == ranges.len() {
            true => Ok((txn.header.revision, within)),
            false => Err(Failure::of_body("a response_range is missing").before_request()),
        }
    }

    /// Replaces cells if each is of its version; returns the version that all of them have then.
    async fn write(&self, changes: &[Change<u64>]) -> Result<Written<u64>, BackendError> {
        let written = self.now().await?.lo;
        let is_unchanged = |change: &Change<u64>| is_at(self.key(&change.name), change.at);
        let put = |change: &Change<u64>| {
            let value = value(written, &change.content);
            json!({ "request_put": { "key": self.key(&change.name), "value": value } })
        };
        let request = json!({
            "compare": changes.iter().map(is_unchanged).collect::<Vec<_>>(),
            "success": changes.iter().map(put).collect::<Vec<_>>(),
        });
        let txn: Txn = self.client.ask(path::TXN, &request).await?;
        Ok(if txn.succeeded { Written::Done(txn.header.revision) } else { Written::Refused })
    }
}

/// Compares the version of a key; that of none is 0.
fn is_at(key: String, at: Option<u64>) -> Value {
    let at = at.unwrap_or(0).to_string();
    json!({ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": at })
}

/// The most bytes of the cells of a transaction: a request has 1.5 MiB at most by default, with its keys.
const MOST_BYTES: usize = 1_000_000;

impl Cell for Keys {
    type Version = u64;

    async fn read(&self, name: &str, known: Option<&u64>) -> Result<Found<u64>, BackendError> {
        let mut found = self.read_all(&[(name.to_owned(), known.copied())]).await?;
        Ok(found.remove(0))
    }

    async fn replace(
        &self,
        name: &str,
        at: Option<&u64>,
        content: Bytes,
    ) -> Result<Written<u64>, BackendError> {
        self.write(&[Change { name: name.to_owned(), at: at.copied(), content }]).await
    }

    fn most_bytes(&self) -> usize {
        MOST_BYTES
    }

    fn at_once(&self) -> usize {
        MOST
    }

    async fn read_all(&self, cells: &[(String, Option<u64>)]) -> Result<Vec<Found<u64>>, BackendError> {
        let within = match self.ranges(cells, MOST).await {
            Err(failed) if failed.next == Next::Plainly => self.ranges(cells, 1).await?,
            Err(failed) if failed.next == Next::Again => self.ranges(cells, MOST).await?,
            within => within?,
        };
        let found = within.into_iter().map(|within| match within.kvs.into_iter().next() {
            None if within.count == 0 => Found::Absent,
            None => Found::Unchanged,
            Some(pair) => {
                // The value of another program is passed on in base64, which is none of our forms: it concerns its own ids only.
                let content = content(&pair.value).map(|(_, content)| content);
                Found::Changed(pair.mod_revision, content.unwrap_or_else(|| pair.value.into()))
            }
        });
        Ok(found.collect())
    }

    async fn replace_all(&self, changes: &[Change<u64>]) -> Result<Written<Vec<u64>>, BackendError> {
        Ok(match self.write(changes).await? {
            Written::Done(version) => Written::Done(vec![version; changes.len()]),
            Written::Refused => Written::Refused,
        })
    }

    async fn remove_at(&self, name: &str, at: &u64) -> Result<(), BackendError> {
        let key = self.key(name);
        let request = json!({
            "compare": [is_at(key.clone(), Some(*at))],
            "success": [{ "request_delete_range": { "key": key } }],
        });
        self.client.ask::<Txn>(path::TXN, &request).await?;
        Ok(())
    }

    async fn remove(&self, name: &str) -> Result<(), BackendError> {
        self.client.ask::<Deleted>(path::DELETE, &json!({ "key": self.key(name) })).await?;
        Ok(())
    }

    async fn list(&self, folder: &str, after: Option<&str>) -> Result<CellPage, BackendError> {
        let start = format!("{}{folder}/", self.base);
        // The first key that does not begin so.
        let end = format!("{}{folder}0", self.base);
        let behind = |key: &[u8]| [key, b"\0"].concat();
        let first = |after| behind(format!("{}{after}", self.base).as_bytes());
        let mut from = after.map_or(start.clone().into_bytes(), first);
        loop {
            let request = json!({
                "key": BASE64_STANDARD.encode(&from),
                "range_end": BASE64_STANDARD.encode(&end),
                "limit": PAGE.to_string(),
            });
            let range: Range = self.client.ask_to_read(path::RANGE, &request).await?;
            let mut cells = Vec::new();
            for pair in range.kvs {
                let key = BASE64_STANDARD.decode(&pair.key).map_err(|_| corrupt(folder))?;
                // Another program's may be no text.
                let name = std::str::from_utf8(&key).ok().and_then(|key| key.strip_prefix(&start));
                if let Some(name) = name.filter(|name| !name.contains('/')) {
                    // Another form than ours never counts as old: it is not for us to remove it.
                    let written = content(&pair.value).map_or(u64::MAX, |(written, _)| written);
                    cells.push((format!("{folder}/{name}"), written));
                }
                from = behind(&key);
            }
            // Those of subfolders are skipped, however many there are.
            if !cells.is_empty() || !range.more {
                return Ok(CellPage { cells, more: range.more });
            }
        }
    }

    async fn now(&self) -> Result<ServiceTime, BackendError> {
        let now = match self.client.time() {
            Some(now) => now,
            None => {
                // Each response has it.
                let (asked, request) =
                    (Moment::now(), json!({ "key": self.key("table"), "keys_only": true }));
                self.client.ask_to_read::<Range>(path::RANGE, &request).await?;
                self.client.time_since(asked).ok_or_else(no_time)?
            }
        };
        // Only what was just told is certain: a clock may have been set since.
        let (differ, most) = (self.client.apart(ServiceClock::fresh), 2 * self.spread);
        if differ > most {
            // It is known as long as they are asked.
            self.client.look_at_others();
            return Err(apart(differ, most));
        }
        let (lo, hi) = (now.lo.saturating_sub(self.spread), now.hi.saturating_add(self.spread));
        Ok(ServiceTime { lo: lo + self.ahead(), hi: hi + self.ahead() })
    }

    fn least_fence(&self, now: ServiceTime) -> u64 {
        // The fences of a clock are above each other: those of a namespace whose time is set forward do not count for others.
        let ahead = self.ahead();
        let real = ServiceTime { lo: now.lo.saturating_sub(ahead), hi: now.hi.saturating_sub(ahead) };
        ahead + self.client.fence(real)
    }

    async fn changed(&self, cells: &[(String, Option<u64>)]) {
        let known = cells.iter().map(|(name, known)| (self.key(name), *known));
        self.watch.changed(known.collect()).await;
    }

    fn findings(&self) -> Vec<Finding> {
        let (version, alarms) = self.status.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut all = vec![Finding::new(Severity::Ok, "etcd", version)];
        for alarm in alarms {
            all.push(Finding::new(Severity::Error, "alarm", alarm.trim().to_owned()));
        }
        let (differ, most) = (self.client.apart(ServiceClock::now), 2 * self.spread);
        if differ > most {
            all.push(Finding::new(
                Severity::Error,
                "clocks",
                format!("{}: two processes may hold a lock", apart(differ, most)),
            ));
        }
        if self.client.is_open.load(Relaxed) {
            let what = "is off: all who reach the members can take and break locks";
            all.push(Finding::new(Severity::Warning, "authentication", what.to_owned()));
        }
        if self.is_plain {
            let what = "is off, and a member is on another host: begin the URL with etcds";
            all.push(Finding::new(Severity::Warning, "TLS", what.to_owned()));
        }
        all
    }
}

/// Returns the value of a cell that is written at a time, as it is sent.
fn value(written: u64, content: &[u8]) -> String {
    BASE64_STANDARD.encode([format!("{written}\n").as_bytes(), content].concat())
}

/// Returns when a cell was written, and its content.
fn content(value: &str) -> Option<(u64, Bytes)> {
    let value = Bytes::from(BASE64_STANDARD.decode(value).ok()?);
    let end = value.iter().take(21).position(|byte| *byte == b'\n')?;
    let written = std::str::from_utf8(&value[..end]).ok()?.parse().ok()?;
    Some((written, value.slice(end + 1..)))
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("base", &self.base).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_comes_back() {
        for bytes in [&b""[..], b"\n", b"7\n\n", &[0, 255, 10]] {
            let (written, back) = content(&value(1_795_000_000_000_000, bytes)).expect("our own form");
            assert_eq!((written, &back[..]), (1_795_000_000_000_000, bytes));
        }
        for foreign in ["", "7", "x\n", "-1\n", "99999999999999999999999\n", "\n"] {
            assert_eq!(content(&BASE64_STANDARD.encode(foreign)), None, "{foreign:?}");
        }
        assert_eq!(content("?"), None);
    }
}
