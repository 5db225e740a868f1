//! With a terminal, which the program `script` gives.

use std::{
    io::{Read, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use crate::{
    store::{Store, until},
    stores::Test,
};

pub(crate) const TESTS: &[Test] = &[
    test!(the_command_reads_the_terminal_and_the_shell_does_afterwards, File),
    test!(a_command_that_reaches_for_the_terminal_gets_it, File),
    test!(control_c_ends_the_command, File),
    test!(control_c_ends_the_waiting, Queue),
    test!(a_stopped_command_stops_lockctl_and_goes_on_with_it, File),
    test!(who_is_waited_for_is_shown_and_removed, File),
    test!(a_torture_asks_first, File),
];

/// A shell command at a terminal.
struct Terminal {
    child: Child,
    keyboard: ChildStdin,
    screen: Arc<Mutex<String>>,
}

impl Terminal {
    fn run(store: &Store, shell_command: &str) -> Self {
        let mut command: Command = store.command("script");
        command.args(["-qec", shell_command, "/dev/null"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("script is there");
        let (keyboard, mut output) =
            (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let screen = Arc::new(Mutex::new(String::new()));
        let shown = screen.clone();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                shown.lock().expect("no panic").push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Terminal { child, keyboard, screen }
    }

    fn typed(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("it reads");
    }

    fn until_shown(&self, text: &str) {
        let screen = || self.screen.lock().expect("no panic").clone();
        until(&format!("{text:?} on the screen"), || screen().contains(text));
    }

    fn end(mut self) -> (Option<i32>, String) {
        let code = self.child.wait().expect("it ends").code();
        (code, self.screen.lock().expect("no panic").clone())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

fn the_command_reads_the_terminal_and_the_shell_does_afterwards(store: &Store) {
    let inside = "echo ready; read line; echo got $line; exit 6";
    let shell = format!("lockctl run --id a -- sh -c '{inside}'; echo code $?; read line; echo then $line");
    let mut terminal = Terminal::run(store, &shell);
    terminal.until_shown("ready");
    terminal.typed("hello\n");
    terminal.until_shown("got hello");
    terminal.until_shown("code 6");
    terminal.typed("goodbye\n");
    terminal.until_shown("then goodbye");
    assert_eq!(terminal.end().0, Some(0));
}

fn a_command_that_reaches_for_the_terminal_gets_it(store: &Store) {
    let inside = "read piped; echo ready; read line < /dev/tty; echo got $piped $line";
    let shell = format!("echo piped | lockctl run --id a -- sh -c '{inside}'; read line; echo then $line");
    let mut terminal = Terminal::run(store, &shell);
    terminal.until_shown("ready");
    terminal.typed("hello\n");
    terminal.until_shown("got piped hello");
    terminal.typed("goodbye\n");
    terminal.until_shown("then goodbye");
}

fn control_c_ends_the_command(store: &Store) {
    // The trap: the command may say so before it is the foreground, and then the key reaches the shell too. The command
    // starts no process of its own: an interrupt that comes while the shell forks is lost.
    let shell = "trap : INT; lockctl run --id a -- sh -c 'echo ready; read line'; echo code $?";
    let mut terminal = Terminal::run(store, shell);
    terminal.until_shown("ready");
    terminal.typed("\u{3}");
    terminal.until_shown("code 130");
    assert_eq!(store.holders("a"), 0);
}

fn control_c_ends_the_waiting(store: &Store) {
    let _holder = store.start(&["run", "--id", "a", "--", "sleep", "600"]);
    until("it is held", || store.holders("a") == 1);
    let shell = "trap : INT; lockctl run --id a --wait 1h -- true; echo code $?";
    let mut terminal = Terminal::run(store, shell);
    until("it waits", || store.waiters("a") == 1);
    terminal.typed("\u{3}");
    terminal.until_shown("code 130");
    assert_eq!(store.waiters("a"), 0);
}

fn a_stopped_command_stops_lockctl_and_goes_on_with_it(store: &Store) {
    let mut terminal = Terminal::run(store, "exec bash --norc -i");
    terminal.typed("PS1='$ '; lockctl run --id a -- sh -c 'echo read''y; read line; echo got $line'\n");
    terminal.until_shown("ready");
    terminal.typed("\u{1a}");
    terminal.until_shown("Stopped");
    assert_eq!(store.holders("a"), 1);
    terminal.typed("fg\n");
    terminal.typed("hello\n");
    terminal.until_shown("got hello");
    terminal.typed("exit 7\n");
    assert_eq!(terminal.end().0, Some(7));
}

fn who_is_waited_for_is_shown_and_removed(store: &Store) {
    let args = [
        "run",
        "--id",
        "a",
        "--owner",
        "the holder",
        "--",
        "sh",
        "-c",
        "while [ ! -e go ]; do sleep 0.02; done",
    ];
    let holder = store.start(&args);
    until("it is held", || store.holders("a") == 1);
    let terminal = Terminal::run(store, "lockctl run --id a --wait 1h -- echo mine");
    terminal.until_shown("waiting for \"a\", for");
    terminal.until_shown("held by the holder for");
    std::fs::write(store.path("go"), "").expect("written");
    assert_eq!(holder.end().code, 0);
    terminal.until_shown("mine");
    let (code, screen) = terminal.end();
    assert_eq!(code, Some(0));
    let (_, after) = screen.rsplit_once("\r\u{1b}[K").expect("the line was removed");
    assert_eq!(after.trim(), "mine", "{screen:?}");
}

fn a_torture_asks_first(store: &Store) {
    for (answer, shown, code) in [("n\n", "nothing was done", "code 125"), ("y\n", "violations: 0", "code 0")]
    {
        let mut terminal = Terminal::run(store, "lockctl torture --operations 100 --workers 2; echo code $?");
        terminal.until_shown("continue? [y/N]");
        terminal.typed(answer);
        terminal.until_shown(code);
        let (_, screen) = terminal.end();
        assert!(screen.contains(shown), "{screen}");
    }
}
