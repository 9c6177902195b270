//! Mistakes are refused with line, key and what is allowed; good files mean what they say.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::link::ConfigError;
use crate::network::{Loopback, Network, NetworkPlan};

/// Knows one key.
struct LossOnly;

impl NetworkFactory for LossOnly {
    fn check(&self, settings: &[(String, String)]) -> Result<(), ConfigError> {
        for (key, value) in settings {
            let reason = match (key.as_str(), value.parse::<f64>()) {
                ("loss_pct", Ok(0.0..=100.0)) => continue,
                ("loss_pct", _) => format!("{value} is not 0 to 100"),
                _ => "unknown".to_owned(),
            };
            return Err(ConfigError { key: key.clone(), reason });
        }
        Ok(())
    }

    fn open(&self, plan: &NetworkPlan) -> std::io::Result<Box<dyn Network>> {
        Loopback.open(plan)
    }
}

const GOOD: &str = r#"
title = "A good one"
repetitions = 3
timeout_s = 10
hosts = ["client", "server"]

[[links]]
between = ["client", "server"]
set = { loss_pct = "{loss}" }

[matrix]
way = ["tcp", "quic"]
loss = [0, 2.5]

[define.way.tcp]
url = "mqtt://{addr.server}:{port.mqtt}"
[define.way.quic]
url = "quic://{addr.server}:{port.mqtt}"

[[skip]]
way = "tcp"
loss = [2.5]

[roles.server]
host = "server"
run = ["serve", "{dir}/data"]
service = true
ready = "ready"

[roles.client]
host = "client"
run = ["ask", "{url}", "--json={{{seed}}}"]

[measures.latency]
title = "Latency"
unit = "ms"
from = "lines"
role = "client"
field = "latency_ms"

[[figures]]
title = "Latency by loss"
as = "lines"
measure = "latency"
x = "loss"
series = "way"
"#;

fn read(text: &str) -> Result<Document, Mistake> {
    let source = Source { file: "good.toml", text };
    parse(source, "good", Path::new("/nowhere"), Some(&LossOnly))
}

#[test]
fn a_good_file_means_what_it_says() {
    let Document::Experiment(experiment, _) = read(GOOD).unwrap() else { panic!("a suite") };
    let cells = experiment.cells();
    let labels: Vec<String> = cells.iter().map(Cell::label).collect();
    assert_eq!(labels, ["way=tcp loss=0", "way=quic loss=0", "way=quic loss=2.5"]);
    let builtin = |name: &str| match name {
        "addr.server" => Some("10.0.0.2".to_owned()),
        "port.mqtt" => Some("1883".to_owned()),
        "seed" => Some("7".to_owned()),
        _ => None,
    };
    let run = experiment.roles.get("client").unwrap().run.get_ref();
    let fill = |index: usize| cells[2].fill(&experiment, run[index].get_ref(), &builtin).unwrap();
    assert_eq!(fill(1), "quic://10.0.0.2:1883");
    assert_eq!(fill(2), "--json={7}");
}

#[test]
fn only_some_combinations_can_be_asked_for() {
    let only = "[[only]]\nway = \"tcp\"\n[[only]]\nloss = [2.5]\n";
    let text = GOOD.replacen("[[skip]]", &format!("{only}[[skip]]"), 1);
    let Document::Experiment(mut experiment, _) = read(&text).unwrap() else { panic!("a suite") };
    let labels = |experiment: &Experiment| -> Vec<String> {
        experiment.cells().iter().map(Cell::label).collect()
    };
    assert_eq!(labels(&experiment), ["way=tcp loss=0", "way=quic loss=2.5"]);
    // A suite takes a part of those.
    let suite = "title = 's'\nparts = []\n[[only]]\nway = 'quic'\n";
    experiment.within = toml::from_str::<Suite>(suite).unwrap().only;
    assert_eq!(labels(&experiment), ["way=quic loss=2.5"]);
}

#[test]
fn mistakes_are_refused_with_line_key_and_what_is_allowed() {
    let cases: &[(&str, &str, &str, &[&str])] = &[
        ("title = \"A good one\"", "titel = \"x\"", ":2:1", &["`titel`", "did you mean `title`?"]),
        ("repetitions = 3", "repetitions = 0", ":3:15", &["`repetitions` is 0", "1 to 10000"]),
        ("repetitions = 3", "repetitions = \"x\"", ":3:15", &["0 to 4294967295"]),
        ("timeout_s = 10", "timeout_s = -1", ":4:13", &["`timeout_s` is -1", "0.001 to 86400"]),
        (
            "[\"client\", \"server\"]\n\n",
            "[\"cl ient\"]\n\n",
            ":5:10",
            &["`cl ient` is not a valid name"],
        ),
        (
            "between = [\"client\", \"server\"]",
            "between = [\"client\", \"sever\"]",
            ":8:22",
            &["unknown host `sever`", "did you mean `server`?"],
        ),
        ("loss_pct = \"{loss}\"", "loss = 1", ":9:9", &["loss: unknown"]),
        ("loss = [0, 2.5]", "loss = [0, 2.5, 250]", ":9:9", &["loss_pct: 250 is not 0 to 100"]),
        (
            "loss_pct = \"{loss}\"",
            "loss_pct = \"{los}\"",
            ":9:20",
            &["`{los}` has no value", "{addr.HOST}"],
        ),
        ("way = [\"tcp\", \"quic\"]", "way = []", ":12:1", &["0 cells", "1 to 10000"]),
        (
            "[define.way.quic]",
            "[define.way.quik]",
            ":17:13",
            &["unknown value of `way` `quik`", "did you mean `quic`?"],
        ),
        ("[define.way.quic]", "[define.weg.quic]", ":17:9", &["unknown condition `weg`"]),
        ("run = [\"serve\", \"{dir}/data\"]", "run = []", ":26:7", &["names no program"]),
        ("\"{dir}/data\"", "\"{dir\"", ":26:17", &["write `{{` for a brace"]),
        (
            "service = true",
            "service = false\nafter = \"client\"",
            ":28:9",
            &["unknown earlier role"],
        ),
        ("field = \"latency_ms\"", "", ":38:8", &["`lines` needs `role` and `field`"]),
        (
            "field = \"latency_ms\"",
            "field = \"latency_ms\"\nfrom_s = 3\nto_s = 2",
            ":41:8",
            &["`to_s` is not after `from_s`"],
        ),
        (
            "from = \"lines\"\nrole = \"client\"\nfield",
            "from = \"sum\"\nof = [\"a\"]\nto_s = 2\nfield",
            ":39:8",
            &["`to_s` is for measures from `lines` and `process`"],
        ),
        ("from = \"lines\"", "from = \"line\"", ":37:8", &["did you mean `lines`?"]),
        ("measure = \"latency\"", "measure = \"latenz\"", ":44:11", &["unknown measure `latenz`"]),
        ("x = \"loss\"", "x = \"way\"", ":45:5", &["lines need numbers", "`tcp`"]),
        (
            "host = \"client\"\nrun",
            "host = \"client\"\nservice = true\nrun",
            ":24:8",
            &["all roles are services"],
        ),
        (
            "title = \"Latency by",
            "[figures.where]\nloss = 3\n[[figures]]\ntitle = \"by",
            ":41:1",
            &["missing key"],
        ),
        ("loss = [0, 2.5]", "loss = [0, 2.5, 0]", ":13:17", &["`0` is listed twice"]),
        ("loss = [0, 2.5]", "loss = 5", ":13:8", &["expected a list, in [ ]"]),
        (
            "loss = [0, 2.5]",
            "loss = [0, 2.5]\nseed = [1]",
            ":14:1",
            &["{seed} is a built-in placeholder"],
        ),
        (
            "way = [\"tcp\", \"quic\"]",
            "way = [\"tcp\", \"quic\", \"ws\"]",
            ":32:15",
            &["`{url}` has no value in way=ws loss=0"],
        ),
        (
            "mqtt://{addr.server}",
            "mqtt://{addr.sever}",
            ":32:15",
            &["`{addr.sever}`, which `{url}`"],
        ),
        ("way = \"tcp\"\nloss = [2.5]", "loss = [0, 2.5]", ":21:1", &["every cell is excluded"]),
        (
            "between = [\"client\", \"server\"]",
            "between = [\"client\", \"server\", \"client\"]",
            ":8:11",
            &["two hosts, not 3"],
        ),
        (
            "between = [\"client\", \"server\"]",
            "between = [\"client\", \"client\"]",
            ":8:22",
            &["`client` is one"],
        ),
        (
            "[matrix]",
            "[[links]]\nbetween = [\"server\", \"client\"]\n[matrix]",
            ":12:11",
            &["another link"],
        ),
        (
            "[[figures]]",
            "[marks]\nm = { role = \"client\", line = \"\" }\n[[figures]]",
            ":42:1",
            &["`line` of `m` is empty"],
        ),
        (
            "[[figures]]",
            "[[goals]]\ntitle = \"g\"\nmeasure = \"latency\"\n[[figures]]",
            ":43:11",
            &["`at_most` or `at_least`"],
        ),
        (
            "[[figures]]",
            "[[goals]]\ntitle = \"g\"\nmeasure = \"latency\"\nat_most = 1\nevery = true\nagainst = {}\n[[figures]]",
            ":43:11",
            &["exclude each other"],
        ),
        (
            "[[figures]]",
            "[[needs]]\nrun = [\"true\", \"{dir}\"]\notherwise = \"o\"\nwhere = { way = \"tcp\" }\n[[figures]]",
            ":42:16",
            &["`{dir}`; only `{here}`"],
        ),
        (
            "[[figures]]",
            "[[needs]]\nrun = [\"true\"]\notherwise = \"o\"\nwhere = { way = \"tcq\" }\n[[figures]]",
            ":44:17",
            &["did you mean `tcp`?"],
        ),
        (
            "service = true",
            "service = true\ndelay_s = -1",
            ":24:8",
            &["`delay_s` is -1", "0 to 86400"],
        ),
    ];
    let mut wrong = Vec::new();
    for &(old, new, place, parts) in cases {
        assert!(GOOD.contains(old), "{old} is not in the example");
        let mistake = read(&GOOD.replacen(old, new, 1)).unwrap_err().to_string();
        let missing = parts.iter().chain([&place]).filter(|part| !mistake.contains(**part));
        wrong.extend(missing.map(|part| format!("{part:?} is not in: {mistake}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_comparison_needs_its_paper_and_columns() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("p.csv"), "testbed,ms\nwired,3\n").unwrap();
    let compare = "\n[[compare]]\ntitle = \"t\"\npaper = \"p.csv\"\nsource = \"s\"\ncolumn = \"ms\"\n\
                   measure = \"latency\"\ndiffers = \"d\"\n";
    let read = |text: &str| {
        let source = Source { file: "x.toml", text };
        parse(source, "x", folder.path(), Some(&LossOnly))
    };
    let good = format!("{GOOD}{compare}");
    read(&good).unwrap();
    let wrong = read(&good.replace("\"ms\"\nmeasure", "\"zz\"\nmeasure")).unwrap_err();
    assert!(wrong.message.contains("unknown column `zz`; known here: testbed, ms"), "{wrong}");
    let missing = read(&good.replace("p.csv", "q.csv")).unwrap_err();
    assert!(missing.message.contains("q.csv"), "{missing}");
}

#[test]
fn a_suite_names_experiments_that_exist() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.toml"), GOOD).unwrap();
    let text = "title = \"Both\"\nparts = [\"a\", \"b\"]\n";
    let source = Source { file: "s.toml", text };
    let mistake = parse(source, "s", folder.path(), Some(&LossOnly)).unwrap_err();
    assert_eq!(mistake.place, Some((2, 15)));
    let wrong = "title = \"A\"\nparts = [\"a\"]\ntimeout_s = 0\n";
    let source = Source { file: "s.toml", text: wrong };
    let mistake = parse(source, "s", folder.path(), Some(&LossOnly)).unwrap_err();
    assert_eq!(mistake.place, Some((3, 13)), "{mistake}");
    let text = &text.replace(", \"b\"", "");
    let source = Source { file: "s.toml", text };
    assert!(matches!(parse(source, "s", folder.path(), Some(&LossOnly)), Ok(Document::Suite(..))));
}

#[test]
fn the_experiments_of_the_repository_are_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "toml"));
    let titles: Vec<String> =
        files.map(|path| load(&path, &Anything).unwrap().title().to_owned()).collect();
    assert!(titles.len() >= 3, "{titles:?}");
}

/// A link on which everything can be set.
struct Anything;

impl NetworkFactory for Anything {
    fn check(&self, _settings: &[(String, String)]) -> Result<(), ConfigError> {
        Ok(())
    }

    fn open(&self, plan: &NetworkPlan) -> std::io::Result<Box<dyn Network>> {
        Loopback.open(plan)
    }
}
