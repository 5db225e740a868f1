//! The book's recipes for the shell: what their pages show is run as it stands there. Scripts stand in for the programs that they call.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use yaml_rust2::{Yaml, YamlLoader};

use crate::{
    store::{Ended, Running, Store, until},
    stores::Test,
};

pub(crate) const TESTS: &[Test] = &[
    test!(tools_run_one_after_the_other, File),
    test!(a_scheduled_job_runs_once, File),
    test!(agents_claim_paths, File),
    test!(what_flock_did, File),
    test!(the_sidecars_of_three_pods, File),
];

/// The blocks of a page in this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/recipes").join(page);
    let text = fs::read_to_string(&page).expect("a page of the book");
    let fence = format!("\n```{language}\n");
    text.split(&fence)
        .skip(1)
        .map(|rest| rest.split_once("```").expect("the block ends").0.to_owned())
        .collect()
}

/// Makes programs that write their names and arguments into the file `log`, and then run `script`.
fn stand_ins(store: &Store, names: &[&str], script: &str) {
    let folder = store.path("bin");
    fs::create_dir_all(&folder).expect("a folder");
    for name in names {
        write_program(&folder.join(name), &format!("echo {name} \"$@\" >> log\n{script}"));
    }
}

fn write_program(file: &Path, script: &str) {
    fs::write(file, format!("#!/bin/sh\n{script}\n")).expect("written");
    fs::set_permissions(file, Permissions::from_mode(0o755)).expect("it is ours");
}

/// What a page shows, as a process that finds the stand-ins.
fn shell(store: &Store, block: &str) -> Command {
    let mut command = store.command("sh");
    with_stand_ins(store, &mut command).args(["-eu", "-c", block]);
    command
}

fn with_stand_ins<'c>(store: &Store, command: &'c mut Command) -> &'c mut Command {
    let path = command.get_envs().find(|(name, _)| *name == "PATH").and_then(|(_, path)| path);
    let path = path.expect("lockctl is in it").to_str().expect("text").to_owned();
    command.env("PATH", format!("{}:{path}", store.path("bin").display()))
}

fn run(store: &Store, block: &str) -> Ended {
    let ended = Ended::of(shell(store, block));
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{block}");
    ended
}

fn log(store: &Store) -> Vec<String> {
    store.read("log").lines().map(str::to_owned).collect()
}

fn tools_run_one_after_the_other(store: &Store) {
    let blocks = blocks("tools.md", "sh");
    let [deployment, plan] = &blocks[..] else { panic!("{blocks:?}") };
    // Two at once would find each other's folder.
    stand_ins(store, &["terraform", "ansible-playbook"], "mkdir inside && sleep 0.02 && rmdir inside");
    let pipelines: Vec<_> = (0..3).map(|_| Running::of(shell(store, deployment))).collect();
    for pipeline in pipelines {
        let ended = pipeline.end();
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    }
    let once = ["terraform apply -input=false -auto-approve", "ansible-playbook site.yml"];
    assert_eq!(log(store), [once, once, once].concat());
    store.assert_nothing_is_locked();

    stand_ins(store, &["terraform"], "lockctl show deploy/production --json | grep -o '\"mode\":\"[a-z]*\"'");
    assert_eq!(run(store, plan).stdout, "\"mode\":\"shared\"\n");
    assert_eq!(log(store).last().map(String::as_str), Some("terraform plan -input=false"));
}

/// Three hosts whose clocks differ: each starts when the job of the one before it has ended.
fn a_scheduled_job_runs_once(store: &Store) {
    let blocks = blocks("schedule.md", "sh");
    let [line] = &blocks[..] else { panic!("{blocks:?}") };
    stand_ins(store, &["report.sh"], "");
    for _ in 0..3 {
        assert_eq!(run(store, line).stdout, "");
    }
    assert_eq!(log(store), ["report.sh"]);
}

fn agents_claim_paths(store: &Store) {
    let blocks = blocks("agents.md", "sh");
    let [whole, steps] = &blocks[..] else { panic!("{blocks:?}") };
    let claim = |path: &str| {
        let ended = store.run(&["run", "--subtree", path, "--top", "src/", "--", "true"]);
        assert!([0, 120].contains(&ended.code), "{}", ended.stderr);
        ended.code == 0
    };
    // While the agent works others look what they could claim.
    let waits = "touch works; until [ -e done ]; do sleep 0.01; done";
    stand_ins(store, &["agent", "edit"], waits);
    stand_ins(store, &["git"], "");
    for block in [whole, steps] {
        let agent = Running::of(shell(store, block));
        store.until_file("works");
        for (path, free) in
            [("src/billing/pdf/", false), ("src/", false), ("src/billing/", false), ("src/shop/", true)]
        {
            assert_eq!(claim(path), free, "{path}: {block}");
        }
        assert!(store.run(&["ls"]).stdout.contains("agent 7: split invoices"));
        fs::write(store.path("done"), "").expect("written");
        let ended = agent.end();
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{block}");
        assert!(claim("src/billing/pdf/"));
        fs::remove_file(store.path("done")).expect("it is there");
        fs::remove_file(store.path("works")).expect("it is there");
    }
    assert_eq!(
        log(store),
        [
            "agent split the invoices",
            "edit src/billing/invoice.rs",
            "git commit --all --message Split invoices"
        ]
    );

    // A claim that was broken ends the steps before they commit.
    fs::remove_file(store.path("log")).expect("it is there");
    let agent = Running::of(shell(store, steps));
    store.until_file("works");
    let fence = store.fence("src/billing/");
    assert_eq!(store.run(&["break", "src/billing/", "--fence", &fence, "--now"]).code, 0);
    fs::write(store.path("done"), "").expect("written");
    assert_eq!(agent.end().code, 122);
    assert_eq!(log(store), ["edit src/billing/invoice.rs"]);
}

fn what_flock_did(store: &Store) {
    let blocks = blocks("moving.md", "sh");
    let [script] = &blocks[..] else { panic!("{blocks:?}") };
    // Each finds what holds its lock.
    stand_ins(
        store,
        &["report.sh", "import.sh", "search.sh", "deploy.sh"],
        "lockctl ls --json > held.$(basename $0)",
    );
    run(store, script);
    assert_eq!(log(store), ["report.sh", "import.sh", "search.sh", "deploy.sh"]);
    for (name, id, mode) in [
        ("report.sh", "report", "exclusive"),
        ("import.sh", "import", "exclusive"),
        ("search.sh", "index", "shared"),
        ("deploy.sh", "deploy", "exclusive"),
    ] {
        let held = store.read(&format!("held.{name}"));
        assert!(held.contains(&format!("\"{id}\"")) && held.contains(&format!("\"{mode}\"")), "{held}");
    }
    store.assert_nothing_is_locked();

    // -n -E 0: skipped without a word; -w: waited for; -s: together with other readers.
    fs::remove_file(store.path("log")).expect("it is there");
    let holder = "touch works; until [ -e done ]; do sleep 0.01; done";
    let holder = ["run", "--id", "report", "--id", "import", "--shared", "index", "--", "sh", "-c", holder];
    let holder = store.start(&holder);
    store.until_file("works");
    let script = Running::of(shell(store, script));
    until("it waits for import", || store.waiters("import") == 1);
    assert_eq!(log(store), [""; 0]);
    fs::write(store.path("done"), "").expect("written");
    assert_eq!(holder.end().code, 0);
    let ended = script.end();
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    assert_eq!(log(store), ["import.sh", "search.sh", "deploy.sh"]);
}

/// A container of the manifest: its command, and its environment as far as it is text.
fn container(pod: &Yaml, name: &str) -> (Vec<String>, Yaml) {
    let all = pod["initContainers"].as_vec().expect("a list");
    let found = all.iter().find(|container| container["name"].as_str() == Some(name)).expect("it is there");
    let command = found["command"].as_vec().expect("a list").iter();
    (command.map(|word| word.as_str().expect("text").to_owned()).collect(), found.clone())
}

fn the_sidecars_of_three_pods(store: &Store) {
    let blocks = blocks("kubernetes.md", "yaml");
    let [manifest] = &blocks[..] else { panic!("{blocks:?}") };
    let documents = YamlLoader::load_from_str(manifest).expect("YAML");
    let [deployment] = &documents[..] else { panic!("{documents:?}") };
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(
        deployment["spec"]["selector"]["matchLabels"],
        deployment["spec"]["template"]["metadata"]["labels"]
    );
    assert_eq!(pod["shareProcessNamespace"].as_bool(), Some(true));
    let (command, importer) = container(pod, "importer");
    assert_eq!(importer["restartPolicy"].as_str(), Some("Always"));

    // The folders of a container are folders of the test here.
    let here = |path: &str| -> PathBuf { store.path(path.trim_start_matches('/')) };
    for folder in ["tools", "app", "usr/local/bin"] {
        fs::create_dir_all(store.path(folder)).expect("a folder");
    }
    fs::copy(assert_cmd::cargo::cargo_bin("lockctl"), here("/usr/local/bin/lockctl")).expect("a copy");
    let (copies, _) = container(pod, "lockctl");
    let copied = Command::new(&copies[0]).args(copies[1..].iter().map(|path| here(path))).status();
    assert!(copied.expect("it starts").success());
    let works = "trap 'echo $LOCKCORE_OWNER ends >> log; exit 0' TERM
        echo $LOCKCORE_OWNER \"$@\" >> log
        while true; do sleep 0.01; done";
    write_program(&here("/app/importer"), works);

    let separator = command.iter().position(|word| word == "--").expect("a command of the lock's");
    let start = |name: &str| {
        let mut pod = store.command(here(&command[0]));
        pod.args(&command[1..=separator]).arg(here(&command[separator + 1])).args(&command[separator + 2..]);
        // As `$(POD)` is in the manifest.
        pod.env("LOCKCORE_OWNER", name);
        Running::of(pod)
    };
    let mut pods = Vec::new();
    for (place, name) in ["shop-1", "shop-2", "shop-3"].into_iter().enumerate() {
        pods.push(start(name));
        match place {
            0 => until("it runs", || log(store).len() == 1),
            _ => until("it waits", || store.waiters("shop/importer") == place),
        }
    }
    assert!(store.run(&["ls"]).stdout.contains("shop-1"));
    for (place, pod) in pods.into_iter().enumerate() {
        // It has its signal handler when it has written its line.
        until("it runs", || log(store).len() == 2 * place + 1);
        pod.signal(nix::sys::signal::Signal::SIGTERM);
        assert_eq!(pod.end().code, 0);
    }
    let expected =
        ["shop-1", "shop-2", "shop-3"].map(|pod| [format!("{pod} --every 1m"), format!("{pod} ends")]);
    assert_eq!(log(store), expected.concat());
    store.assert_nothing_is_locked();
}
