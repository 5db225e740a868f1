//! The one script that holds every step, and the commands that call it.

use std::io::Write;

use lockcore::{ContextId, Ident, Target};
use redis::{Arg, Cmd, RedisWrite, ToRedisArgs};

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
    /// The key of the highest fence.
    fence: String,
}

/// One call of the script by its hash: its keys, as many as were announced, and then its arguments.
#[derive(Debug)]
pub(crate) struct Call(Cmd);

impl Scripts {
    pub(crate) fn new(namespace: &str) -> Self {
        let hash = redis::Script::new(SOURCE).get_hash().to_owned();
        let base = format!("{{{namespace}}}");
        Scripts { hash, fence: format!("{base}/f"), base }
    }

    /// A call with so many keys, which come next.
    pub(crate) fn call(&self, keys: usize) -> Call {
        let mut command = Cmd::with_capacity(8 + keys, 256 + 64 * keys);
        command.arg("EVALSHA").arg(&self.hash).arg(keys);
        Call(command)
    }

    /// A call with no key but the fence's, which says where all the others are.
    pub(crate) fn call_anywhere(&self) -> Call {
        self.call(1).fence_key(self)
    }

    /// One of the namespace's other keys.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.base)
    }

    /// The channel of a session.
    pub(crate) fn channel(&self, session: &str) -> String {
        self.key(&format!("o:{session}"))
    }

    /// What all keys of the namespace look like, as `SCAN` wants it.
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

    /// Has the server keep the script.
    pub(crate) fn load() -> Cmd {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(SOURCE);
        load
    }
}

impl Call {
    /// With the key of the highest fence.
    pub(crate) fn fence_key(self, scripts: &Scripts) -> Self {
        self.arg(&scripts.fence)
    }

    /// With the key that marks an attempt as withdrawn.
    pub(crate) fn mark_key(self, scripts: &Scripts, waiter: &str) -> Self {
        self.text(&[&scripts.base, "/x:", waiter])
    }

    /// With the keys of these ids that foreign clients see.
    pub(crate) fn main_keys<'t, I: Ident>(
        self,
        scripts: &Scripts,
        targets: impl Iterator<Item = &'t Target<I>>,
    ) -> Self {
        self.keys_of(scripts, ":", targets)
    }

    /// With the keys that name the lines of these ids.
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

    /// With one more argument.
    pub(crate) fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.add(arg);
        self
    }

    /// With one more argument, which is all this together.
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

    /// Calls the script by its hash.
    pub(crate) fn by_hash(&self) -> &Cmd {
        &self.0
    }

    /// Sends the script along, which the server then keeps.
    pub(crate) fn by_source(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(SOURCE);
        for arg in self.0.args_iter().skip(2) {
            if let Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        command
    }
}

/// The name by which the script knows an attempt.
pub(crate) fn waiter_name<C: ContextId>(attempt: lockcore::AttemptId, context: &C) -> Box<str> {
    format!("{:016x}{}", attempt.0, context.stored()).into()
}
