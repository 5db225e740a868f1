//! redsync, bsm/redislock and node-redlock, which are Go and JavaScript: the commands that they send, in the same order and
//! with the same arguments, by scripts of our own words.

use std::time::{Duration, Instant};

use lockcore_conformance::{
    servers::TestResult,
    store::{exclusive, shared, slot},
};

use super::{
    interop::{assert_foreign, assert_soon},
    place::{Failure, Place},
    topology::Raw,
};

/// How another library takes, extends and frees: scripts with its keys, its token and milliseconds.
struct Peer {
    name: &'static str,
    take: &'static str,
    extend: &'static str,
    free: &'static str,
}

const PEERS: [Peer; 3] = [
    Peer {
        name: "redsync",
        take: "return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) and 1 or 0",
        extend: "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
                 return redis.call('PEXPIRE', KEYS[1], ARGV[2])",
        free: "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end return redis.call('DEL', KEYS[1])",
    },
    Peer {
        name: "redislock",
        // The first of the token's letters are whose it is: then it takes again what it holds.
        take: "local pairs = {} \
               for _, key in ipairs(KEYS) do pairs[#pairs + 1] = key pairs[#pairs + 1] = ARGV[1] end \
               if redis.call('MSETNX', unpack(pairs)) == 0 then \
                 for _, key in ipairs(KEYS) do \
                   if redis.call('GETRANGE', key, 0, #ARGV[1] - 1) ~= ARGV[1] then return 0 end \
                 end \
                 redis.call('MSET', unpack(pairs)) \
               end \
               for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[2]) end return 1",
        extend: "for _, value in ipairs(redis.call('MGET', unpack(KEYS))) do \
                   if value ~= ARGV[1] then return 0 end \
                 end \
                 for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[2]) end return 1",
        free: "for _, value in ipairs(redis.call('MGET', unpack(KEYS))) do \
                 if value ~= ARGV[1] then return 0 end \
               end \
               for _, key in ipairs(KEYS) do redis.call('DEL', key) end return 1",
    },
    Peer {
        name: "node-redlock",
        take: "for _, key in ipairs(KEYS) do if redis.call('EXISTS', key) == 1 then return 0 end end \
               for _, key in ipairs(KEYS) do redis.call('SET', key, ARGV[1], 'PX', ARGV[2]) end return 1",
        extend: "for _, key in ipairs(KEYS) do if redis.call('GET', key) ~= ARGV[1] then return 0 end end \
                 for _, key in ipairs(KEYS) do redis.call('SET', key, ARGV[1], 'PX', ARGV[2]) end return 1",
        free: "local freed = 0 \
               for _, key in ipairs(KEYS) do \
                 if redis.call('GET', key) == ARGV[1] then freed = freed + redis.call('DEL', key) end \
               end \
               return freed",
    },
];

/// A peer with its token, at work on some keys.
struct Client<'p> {
    peer: &'p Peer,
    raw: Raw,
    keys: Vec<String>,
}

impl Client<'_> {
    async fn call(&self, script: &str, ms: &str) -> Result<bool, Failure> {
        let count = self.keys.len().to_string();
        let keys = self.keys.iter().map(String::as_str);
        let words: Vec<&str> =
            ["EVAL", script, &*count].into_iter().chain(keys).chain(["4f0c1e3a77d2b9", ms]).collect();
        Ok(self.raw.send::<i64>(&words).await? > 0)
    }

    async fn takes(&self) -> Result<bool, Failure> {
        self.call(self.peer.take, "30000").await
    }

    async fn extends(&self) -> Result<bool, Failure> {
        self.call(self.peer.extend, "60000").await
    }

    async fn frees(&self) -> Result<bool, Failure> {
        self.call(self.peer.free, "0").await
    }

    /// It gets nothing, and can do nothing to ours.
    async fn is_kept_out(&self) -> TestResult {
        let name = self.peer.name;
        assert!(!self.takes().await? && !self.extends().await? && !self.frees().await?, "{name}");
        Ok(())
    }
}

/// A peer for the key of `ids`; where it takes sets, several.
fn clients(place: &Place, raw: &Raw, ids: &[&str]) -> impl Iterator<Item = Client<'static>> {
    let (keys, raw) = (ids.iter().map(|id| place.key(id)).collect::<Vec<_>>(), raw.clone());
    PEERS.iter().map(move |peer| {
        let most = if peer.name == "redsync" { 1 } else { keys.len() };
        Client { peer, raw: raw.clone(), keys: keys[..most].to_vec() }
    })
}

pub(crate) async fn what_we_hold_keeps_them_out() -> TestResult {
    let place = Place::shared().await?;
    let (store, raw) = (place.store().await, place.raw().await?);
    for client in clients(&place, &raw, &["a", "b"]) {
        for claim in [exclusive("a"), shared("a"), slot("a", 3)] {
            let [us, other] = store.callers();
            let held = us.take([claim.clone()]).await;
            client.is_kept_out().await?;
            us.keep(&held).await;
            // While a client waits, when it is handed over, and when it is confirmed.
            let mut waiting = other.queue([exclusive("a")]).await;
            client.is_kept_out().await?;
            us.free(&held).await;
            client.is_kept_out().await?;
            let turn = waiting.served().await;
            client.is_kept_out().await?;
            other.free(&turn).await;
            assert_eq!(raw.send::<i64>(&["EXISTS", &place.key("b")]).await?, 0, "half a set");
        }
        assert!(client.takes().await?, "{}: now it is free", client.peer.name);
        assert!(client.frees().await?);
    }
    Ok(())
}

pub(crate) async fn what_they_hold_keeps_us_out() -> TestResult {
    let place = Place::shared().await?;
    let (store, raw) = (place.store().await, place.raw().await?);
    let mut took = Vec::new();
    for client in clients(&place, &raw, &["a", "b"]) {
        for claim in [exclusive("a"), shared("a"), slot("a", 3)] {
            let [us, waiter] = store.callers();
            assert!(client.takes().await?);
            assert_foreign(&us.refused([claim.clone(), exclusive("c")]).await, Some(Duration::from_secs(30)));
            let mut waiting = waiter.queue([claim.clone(), exclusive("c")]).await;
            assert!(client.extends().await?, "{}: though another waits", client.peer.name);
            assert_foreign(&us.refused([claim.clone()]).await, Some(Duration::from_secs(60)));
            waiting.still_waits().await;
            let freed = Instant::now();
            assert!(client.frees().await?);
            let turn = waiting.granted().await;
            took.push(freed.elapsed());
            client.is_kept_out().await?;
            waiter.free(&turn).await;
        }
    }
    assert_soon(took);
    Ok(())
}
