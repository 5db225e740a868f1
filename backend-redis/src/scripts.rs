//! The one script that holds every step, and the commands that call it.

#[cfg(feature = "testing")]
use std::time::Duration;
use std::{borrow::Cow, io::Write, sync::LazyLock};

use lockcore::{
    ContextId, Ident, Target,
    backend::StoreVersion,
    protocol::{BREAKS_KEPT, BREAKS_KEPT_FOR, HEARTBEAT_LASTS, OFFER},
};
use redis::{Arg, Cmd, RedisWrite, ToRedisArgs};

/// The version of the keys that this program writes, and that a namespace without a record has: the first program that
/// migrates it writes the record.
pub(crate) const VERSION: StoreVersion = StoreVersion { version: 1, oldest_program: 1 };

/// The beginning of the value of a main key that has an exclusive holder.
pub(crate) const HOLDER: &str = "lc2|";

/// All steps in one script, which is loaded once; its usual cases come first. What it shares with this process, and with other
/// backends, is written before it.
static SOURCE: LazyLock<String> = LazyLock::new(|| {
    let (offer, heartbeat_lasts) = (OFFER.as_millis(), HEARTBEAT_LASTS.as_millis());
    let breaks_last = BREAKS_KEPT_FOR.as_millis();
    let shared = format!(
        "local OFFER, HEARTBEAT_LASTS, HOLDER = {offer}, {heartbeat_lasts}, '{HOLDER}'\n\
         local BREAKS_KEPT, BREAKS_LAST = {BREAKS_KEPT}, {breaks_last}\n"
    );
    let steps = concat!(
        include_str!("lua/fast.lua"),
        include_str!("lua/state.lua"),
        include_str!("lua/weigh.lua"),
        include_str!("lua/serve.lua"),
        include_str!("lua/steps.lua"),
        include_str!("lua/admin.lua"),
    );
    shared + steps
});

/// The script, its hash, and the names of its keys in one namespace.
#[derive(Debug)]
pub(crate) struct Scripts {
    source: Cow<'static, str>,
    hash: String,
    /// The namespace in braces: the part of each key that decides its slot in a cluster.
    base: String,
    /// The key of the highest fence.
    fence: String,
}

/// A call of the script: its keys, as many as were announced, and then its arguments.
#[derive(Debug)]
pub(crate) struct Call(Cmd);

impl Scripts {
    pub(crate) fn new(namespace: &str) -> Self {
        Self::from_source(Cow::Borrowed(&SOURCE), namespace)
    }

    /// Returns the script with a clock that tests set: ahead of the server's by so much, and by what is
    /// [set forward](Self::advance).
    #[cfg(feature = "testing")]
    pub(crate) fn by_test_clock(ahead: Duration, namespace: &str) -> Self {
        let clock = format!("local AHEAD = {}\n{}", ahead.as_micros(), include_str!("lua/clock.lua"));
        Self::from_source(Cow::Owned(clock + &*SOURCE), namespace)
    }

    fn from_source(source: Cow<'static, str>, namespace: &str) -> Self {
        let hash = redis::Script::new(&source).get_hash().to_owned();
        let base = format!("{{{namespace}}}");
        Scripts { source, hash, fence: format!("{base}/f"), base }
    }

    /// Sets the namespace's test clock forward.
    #[cfg(feature = "testing")]
    pub(crate) fn advance(&self, by: Duration) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(include_str!("lua/advance.lua")).arg(1).arg(self.key("+"));
        command.arg(by.as_micros().to_string()).arg(self.pattern());
        command
    }

    /// Begins a call with this number of keys, which come next.
    pub(crate) fn call(&self, keys: usize) -> Call {
        let mut command = Cmd::with_capacity(8 + keys, 256 + 64 * keys);
        command.arg("EVALSHA").arg(&self.hash).arg(keys);
        Call(command)
    }

    /// Begins a call with only the fence's key, which decides the slot of all others.
    pub(crate) fn call_anywhere(&self) -> Call {
        self.call(1).fence_key(self)
    }

    /// Names one of the namespace's other keys.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.base)
    }

    /// Names the channel of a session.
    pub(crate) fn channel(&self, session: &str) -> String {
        self.key(&format!("o:{session}"))
    }

    /// Returns the pattern of the namespace's keys for `SCAN`.
    pub(crate) fn pattern(&self) -> String {
        let mut pattern = String::new();
        for letter in self.base.chars() {
            if matches!(letter, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
                pattern.push('\\');
            }
            pattern.push(letter);
        }
        pattern + "*"
    }

    /// Loads the script into the server's cache.
    pub(crate) fn load(&self) -> Cmd {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(&*self.source);
        load
    }

    /// Returns the command of a call that sends the script along, which the server then caches.
    pub(crate) fn by_source(&self, call: &Call) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&*self.source);
        for arg in call.0.args_iter().skip(2) {
            if let Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        command
    }
}

impl Call {
    /// Adds the key of the highest fence.
    pub(crate) fn fence_key(self, scripts: &Scripts) -> Self {
        self.arg(&scripts.fence)
    }

    /// Adds the key of an attempt's tombstone.
    pub(crate) fn tombstone_key(self, scripts: &Scripts, waiter: &str) -> Self {
        self.text(&[&scripts.base, "/x:", waiter])
    }

    /// Adds the main keys of these ids, which foreign clients see.
    pub(crate) fn main_keys<'t, I: Ident>(
        self,
        scripts: &Scripts,
        targets: impl Iterator<Item = &'t Target<I>>,
    ) -> Self {
        self.keys_of(scripts, ":", targets)
    }

    /// Adds the keys that name the lines of these ids.
    pub(crate) fn line_keys<'t, I: Ident>(
        self,
        scripts: &Scripts,
        targets: impl Iterator<Item = &'t Target<I>>,
    ) -> Self {
        self.keys_of(scripts, "/n:", targets)
    }

    fn keys_of<'t, I: Ident>(
        mut self,
        scripts: &Scripts,
        kind: &str,
        targets: impl Iterator<Item = &'t Target<I>>,
    ) -> Self {
        for target in targets {
            self.add_text(&[&scripts.base, kind, &target.stored()]);
        }
        self
    }

    /// Adds one argument.
    pub(crate) fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.add(arg);
        self
    }

    /// Adds one argument, concatenated of these parts.
    pub(crate) fn text(mut self, parts: &[&str]) -> Self {
        self.add_text(parts);
        self
    }

    pub(crate) fn add(&mut self, arg: impl ToRedisArgs) {
        self.0.arg(arg);
    }

    pub(crate) fn add_text(&mut self, parts: &[&str]) {
        let mut argument = self.0.writer_for_next_arg();
        for part in parts {
            argument.write_all(part.as_bytes()).expect("memory takes it");
        }
    }

    /// Returns the command that calls the script by its hash.
    pub(crate) fn by_hash(&self) -> &Cmd {
        &self.0
    }
}

/// Returns the name of a waiter: its attempt and context.
pub(crate) fn waiter_name<C: ContextId>(attempt: lockcore::backend::AttemptId, context: &C) -> Box<str> {
    format!("{:016x}{}", attempt.0, context.stored()).into()
}
