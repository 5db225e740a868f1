//! The task of one replica, and who goes on with it.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
};

use lockcore_conformance::{PATIENCE, servers::Trial};
use tempfile::TempDir;

pub(crate) fn tests() -> Vec<Trial> {
    lockcore_conformance::tests![
        "singleton";
        another_replica_goes_on_while_the_first_still_answers,
        another_replica_goes_on_after_a_death,
    ]
}

/// A process of the recipe, which is killed with the test.
struct Replica {
    process: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Replica {
    fn start(folder: &TempDir) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_recipe-singleton"));
        command.current_dir(folder).env("LOCKCORE_URL", "sqlite:locks.db").env("ADDRESS", "127.0.0.1:0");
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (send, lines) = channel();
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Replica { process, lines, seen: Vec::new() }
    }

    /// Waits for a line that begins so, if it was not written before, and returns the rest of it.
    fn until(&mut self, start: &str) -> String {
        loop {
            if let Some(rest) = self.seen.iter().find_map(|line| line.strip_prefix(start)) {
                return rest.to_owned();
            }
            let line = self.lines.recv_timeout(PATIENCE);
            self.seen.push(line.unwrap_or_else(|_| panic!("no line {start:?} after {:?}", self.seen)));
        }
    }

    fn terminate(&self) {
        assert!(Command::new("kill").arg(self.process.id().to_string()).status().unwrap().success());
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn another_replica_goes_on_while_the_first_still_answers() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = Replica::start(&folder);
    let address = first.until("listening on ");
    first.until("polling");
    let mut second = Replica::start(&folder);
    second.until("listening on ");

    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    // The server answers 100 to it when the handler reads the body: from then on it has the request.
    let head = "POST /orders HTTP/1.1\r\nhost: here\r\nexpect: 100-continue\r\ncontent-length: 4\r\nconnection: close\r\n\r\n";
    client.write_all(head.as_bytes()).unwrap();
    let mut goes_on = [0; 25];
    client.read_exact(&mut goes_on).unwrap();
    assert_eq!(&goes_on, b"HTTP/1.1 100 Continue\r\n\r\n");

    first.terminate();
    second.until("polling");
    assert!(first.process.try_wait().unwrap().is_none(), "it did not wait for its client");
    client.write_all(b"bags").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ordered: bags"), "{answer}");
    assert!(first.process.wait().unwrap().success());
}

fn another_replica_goes_on_after_a_death() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = Replica::start(&folder);
    first.until("polling");
    let mut second = Replica::start(&folder);
    second.until("listening on ");
    first.process.kill().unwrap();
    second.until("polling");
}
