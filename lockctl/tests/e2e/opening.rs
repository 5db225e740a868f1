//! A store that cannot be opened when a command begins.

use std::{
    io,
    net::{Shutdown, TcpListener, TcpStream},
    thread,
};

use crate::{store::Store, stores::Test};

pub(crate) const TESTS: &[Test] = &[
    test!(a_store_that_starts_later_is_waited_for, Server),
    test!(what_does_not_pass_is_not_waited_for, Server),
];

/// Closes so many connections before it lets others through to `server`; gives its own address.
fn opens_later(server: String, mut closed: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    // It ends with the process.
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            if closed > 0 {
                closed -= 1;
                continue;
            }
            let Ok(server) = TcpStream::connect(&server) else { continue };
            let pass = |mut from: TcpStream, mut to: TcpStream| {
                thread::spawn(move || {
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                })
            };
            let twin = |stream: &TcpStream| stream.try_clone().expect("one more descriptor");
            pass(twin(&client), twin(&server));
            pass(server, client);
        }
    });
    address
}

fn a_store_that_starts_later_is_waited_for(store: &Store) {
    for command in [&["run", "--id", "a", "--wait", "50s"][..], &["elect", "--id", "e", "--value", "one"]] {
        let server = store.address().expect("it has a server");
        let url = store.url().replace(&server, &opens_later(server.clone(), 5));
        assert_ne!(url, store.url());
        let ended = store.start(&[command, &["--url", &url, "--", "true"]].concat()).end();
        assert_eq!(ended.code, 0, "{command:?}: {}", ended.stderr);
    }
}

fn what_does_not_pass_is_not_waited_for(store: &Store) {
    let url = store.url();
    let Some((user, place)) = url.split_once('@') else { return };
    let (user, _) = user.rsplit_once(':').expect("it has a password");
    let mut urls = vec![format!("{user}:wrong@{place}")];
    if !url.starts_with("redis:") {
        let (start, rest) = url.rsplit_once('/').expect("it has a database");
        let options = rest.split_once('?').map_or("", |(_, options)| options);
        urls.push(format!("{start}/no_such_database?{options}"));
    }
    for url in urls {
        let ended = store.start(&["run", "--id", "a", "--wait", "1h", "--url", &url, "--", "true"]).end();
        assert_eq!(ended.code, 123, "{}", ended.stderr);
    }
}
