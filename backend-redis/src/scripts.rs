//! The one script that holds every step, and the commands that call it.

use lockcore::{ContextId, Ident, Target};
use redis::Cmd;

/// All steps in one script: it is loaded once, and its usual cases come first.
const SOURCE: &str = concat!(
    include_str!("lua/fast.lua"),
    include_str!("lua/state.lua"),
    include_str!("lua/weigh.lua"),
    include_str!("lua/serve.lua"),
    include_str!("lua/steps.lua"),
    include_str!("lua/admin.lua"),
);

/// The script and how its keys are called in one namespace.
#[derive(Debug)]
pub(crate) struct Scripts {
    hash: String,
    /// The namespace in braces: the part of each key that says in which slot of a cluster it lies.
    base: String,
}

/// One call of the script: its keys and then its arguments, one behind the other, for a set has a hundred.
#[derive(Debug)]
pub(crate) struct Call {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
    keys: usize,
}

impl Scripts {
    pub(crate) fn new(namespace: &str) -> Self {
        let hash = redis::Script::new(SOURCE).get_hash().to_owned();
        Scripts { hash, base: format!("{{{namespace}}}") }
    }

    /// A call without keys yet, for a step with so many ids.
    pub(crate) fn call(&self, ids: usize) -> Call {
        Call { bytes: Vec::with_capacity(256 + 64 * ids), ends: Vec::with_capacity(8 + ids), keys: 0 }
    }

    /// One of the namespace's other keys.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.base)
    }

    /// The channel of a session.
    pub(crate) fn channel(&self, session: &str) -> String {
        self.key(&format!("o:{session}"))
    }

    /// What the main keys look like, as `SCAN` wants it.
    pub(crate) fn pattern(&self) -> String {
        let mut pattern = String::new();
        for letter in self.base.chars() {
            if matches!(letter, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
                pattern.push('\\');
            }
            pattern.push(letter);
        }
        pattern + ":*"
    }

    /// Calls the script by its hash.
    pub(crate) fn by_hash(&self, call: &Call) -> Cmd {
        call.command("EVALSHA", &self.hash)
    }

    /// Sends the script along, which the server then keeps.
    pub(crate) fn by_source(&self, call: &Call) -> Cmd {
        call.command("EVAL", SOURCE)
    }

    /// Has the server keep the script.
    pub(crate) fn load() -> Cmd {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(SOURCE);
        load
    }
}

impl Call {
    /// With one more key; all keys come before the arguments.
    pub(crate) fn key(mut self, key: &str) -> Self {
        self.add(key);
        self.keys += 1;
        self
    }

    /// With the keys of these ids that foreign clients see.
    pub(crate) fn main_keys<'t, I: Ident>(
        mut self,
        scripts: &Scripts,
        targets: impl Iterator<Item = &'t Target<I>>,
    ) -> Self {
        for target in targets {
            self.bytes.extend_from_slice(scripts.base.as_bytes());
            self.bytes.push(b':');
            self.add(&*target.stored());
            self.keys += 1;
        }
        self
    }

    /// With one more argument.
    pub(crate) fn arg(mut self, arg: impl AsRef<[u8]>) -> Self {
        self.add(arg);
        self
    }

    pub(crate) fn add(&mut self, arg: impl AsRef<[u8]>) {
        self.bytes.extend_from_slice(arg.as_ref());
        self.ends.push(self.bytes.len());
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command =
            Cmd::with_capacity(3 + self.ends.len(), self.bytes.len() + name.len() + script.len() + 8);
        command.arg(name).arg(script).arg(self.keys);
        let mut begin = 0;
        for &end in &self.ends {
            command.arg(&self.bytes[begin..end]);
            begin = end;
        }
        command
    }
}

/// The name by which the script knows an attempt.
pub(crate) fn waiter_name<C: ContextId>(attempt: lockcore::AttemptId, context: &C) -> Box<str> {
    format!("{:016x}{}", attempt.0, context.stored()).into()
}
