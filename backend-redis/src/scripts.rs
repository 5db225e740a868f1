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

/// One call of the script.
#[derive(Debug)]
pub(crate) struct Call {
    keys: Vec<String>,
    args: Vec<Vec<u8>>,
}

impl Scripts {
    pub(crate) fn new(namespace: &str) -> Self {
        let hash = redis::Script::new(SOURCE).get_hash().to_owned();
        Scripts { hash, base: format!("{{{namespace}}}") }
    }

    /// A call with these main keys behind `others`.
    pub(crate) fn call(&self, others: Vec<String>, step: &str) -> Call {
        Call { keys: others, args: vec![step.as_bytes().to_vec()] }
    }

    /// The key that foreign clients see.
    pub(crate) fn main_key<I: Ident>(&self, target: &Target<I>) -> String {
        format!("{}:{}", self.base, target.stored())
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
    /// With one more argument.
    pub(crate) fn arg(mut self, arg: impl Into<Vec<u8>>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub(crate) fn add(&mut self, arg: impl Into<Vec<u8>>) {
        self.args.push(arg.into());
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let size = self.keys.iter().map(String::len).chain(self.args.iter().map(Vec::len)).sum::<usize>();
        let mut command = Cmd::with_capacity(3 + self.keys.len() + self.args.len(), size + script.len() + 16);
        command.arg(name).arg(script).arg(self.keys.len());
        for key in &self.keys {
            command.arg(key);
        }
        for arg in &self.args {
            command.arg(arg);
        }
        command
    }
}

/// The name by which the script knows an attempt.
pub(crate) fn waiter_name<C: ContextId>(attempt: lockcore::AttemptId, context: &C) -> Box<str> {
    format!("{:016x}{}", attempt.0, context.stored()).into()
}
