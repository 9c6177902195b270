//! Sinks: what clients publish arrives at a web service, in order and once acknowledged also over restarts; what the
//! service cannot accept waits, or becomes a dead letter, and holds up nothing else.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use fulmar_tests::{TestBroker, eventually, fulmar, http_get, run, write_secret};
use serde_json::Value;

type Decide = Box<dyn FnMut(&str) -> u16 + Send>;

/// A request that was answered with 200.
#[derive(Clone)]
struct Accepted {
    head: String,
    body: String,
}

/// A web service that answers each body as a test says.
#[derive(Clone)]
struct Service {
    address: SocketAddr,
    accepted: Arc<Mutex<Vec<Accepted>>>,
    decide: Arc<Mutex<Decide>>,
}

impl Service {
    fn start() -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let decide: Arc<Mutex<Decide>> = Arc::new(Mutex::new(Box::new(|_| 200)));
        let service = Service { address, accepted: Arc::default(), decide };
        let serving = service.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let serving = serving.clone();
                thread::spawn(move || serving.serve(stream.unwrap()));
            }
        });
        service
    }

    fn serve(&self, mut stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        loop {
            let (mut head, mut line) = (String::new(), String::new());
            while line != "\r\n" {
                line.clear();
                if reader.read_line(&mut line).unwrap_or(0) == 0 {
                    return;
                }
                head.push_str(&line.to_lowercase());
            }
            let length = head.split("content-length: ").nth(1).unwrap();
            let mut body = vec![0; length.split('\r').next().unwrap().parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            let body = String::from_utf8(body).unwrap();
            let status = (self.decide.lock().unwrap())(&body);
            if status == 200 {
                self.accepted.lock().unwrap().push(Accepted { head, body });
            }
            let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 4\r\n\r\nwhy!");
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn decides(&self, decide: impl FnMut(&str) -> u16 + Send + 'static) {
        *self.decide.lock().unwrap() = Box::new(decide);
    }

    fn lines(&self) -> Vec<String> {
        let accepted = self.accepted.lock().unwrap();
        accepted.iter().flat_map(|one| one.body.lines().map(str::to_owned)).collect()
    }

    /// The payloads that have arrived.
    fn payloads(&self) -> Vec<Value> {
        let lines = self.lines();
        let objects = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
        objects.map(|object| object["payload"].clone()).collect()
    }

    fn broker(&self, kind: &str, more: &str) -> TestBroker {
        let url = format!("http://{}/in", self.address);
        let sink = format!(
            "[sinks.web]\nkind = \"{kind}\"\nurl = \"{url}\"\nfilters = \"in/#\"\nbatch_interval_ms = 20\n{more}\n"
        );
        TestBroker::builder().config(&sink).start()
    }
}

fn publish(broker: &TestBroker, topic: &str, payload: &str) {
    let url = format!("mqtt://{}", broker.address("mqtt"));
    let done = run(fulmar().args(["pub", &url, "-q", "1", "-t", topic, "-m", payload]));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Publishes the numbers, one message each, over one connection.
fn publish_numbers(broker: &TestBroker, topic: &str, numbers: std::ops::Range<u32>) {
    let url = format!("mqtt://{}", broker.address("mqtt"));
    let mut command = fulmar();
    command.args(["pub", &url, "-q", "1", "-t", topic, "-l"]);
    command.stdin(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let text: String = numbers.map(|number| format!("{number}\n")).collect();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

fn numbers(range: std::ops::Range<u32>) -> Vec<Value> {
    range.map(Value::from).collect()
}

fn sink(broker: &TestBroker, words: &[&str]) -> (bool, String) {
    let (config, data) = (broker.config_file(), broker.data());
    let mut command = fulmar();
    command.arg("sink").args(words).arg("--config").arg(config).arg("--data").arg(data);
    let done = run(&mut command);
    let text = [done.stdout, done.stderr].concat();
    (done.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn everything_arrives_in_order_signed_and_waits_for_a_target_that_is_away() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    write_secret(secret.path(), "correct horse\n");
    let service = Service::start();
    let mut broker = service.broker("http", &format!("secret_file = {:?}", secret.path()));
    publish_numbers(&broker, "in/a", 0..300);
    eventually("all messages", || service.payloads().len() == 300);
    assert_eq!(service.payloads(), numbers(0..300));
    let Accepted { head, body } = service.accepted.lock().unwrap()[0].clone();
    let header = |name: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        line.unwrap_or_else(|| panic!("{name} is missing: {head}")).to_owned()
    };
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"correct horse");
    let signed = format!("{}.{}.{body}", header("webhook-id"), header("webhook-timestamp"));
    let signature = base64::Engine::encode(
        &base64::engine::general_purpose::STANDARD,
        ring::hmac::sign(&key, signed.as_bytes()),
    );
    // The head is in lower case here.
    assert_eq!(header("webhook-signature"), format!("v1,{signature}").to_lowercase());

    // A target that fails for a while loses nothing, and a crash of the server meanwhile neither.
    service.decides(|_| 503);
    publish_numbers(&broker, "in/a", 300..500);
    let health = |broker: &TestBroker| http_get(broker.address("http"), "/health/sinks");
    eventually("the state", || health(&broker).1.contains("503"));
    assert_eq!(health(&broker).0, 200, "a target that is away needs no operator");
    broker.kill();
    broker.restart();
    service.decides(|_| 200);
    eventually("the rest", || service.payloads().len() >= 500);
    assert_eq!(service.payloads(), numbers(0..500));
    let lines =
        service.lines().into_iter().map(|line| serde_json::from_str::<Value>(&line).unwrap());
    let ids: std::collections::HashSet<String> =
        lines.map(|object| object["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids.len(), 500, "each message has an identifier of its own");
    eventually("the state", || health(&broker) == (200, "web: ok\n".to_owned()));
    assert!(!broker.log().contains("correct horse"));
}

/// Clients' sessions expire while the broker is off, those of its parts do not. A sink that is no longer configured has a
/// session like any client's.
#[test]
fn what_waits_outlasts_a_stop_and_a_sink_that_was_removed_can_be_deleted() {
    let service = Service::start();
    service.decides(|_| 503);
    let mut broker = service.broker("http", "[limits]\nmax_session_expiry_s = 1");
    publish_numbers(&broker, "in/a", 0..5);
    assert!(broker.terminate().success());
    thread::sleep(std::time::Duration::from_secs(2));
    service.decides(|_| 200);
    broker.restart();
    eventually("all messages", || service.payloads() == numbers(0..5));

    let delete = |broker: &TestBroker| {
        let mut command = fulmar();
        command.args(["ctl", "sessions", "delete", "sink-web", "--data"]).arg(broker.data());
        let done = run(&mut command);
        (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let (good, text) = delete(&broker);
    assert!(!good && text.contains("remove that from the configuration"), "{text}");
    assert!(broker.terminate().success());
    std::fs::write(broker.config_file(), "").unwrap();
    broker.restart();
    assert_eq!(delete(&broker), (true, String::new()));
}

/// A crash between writing and acknowledging: the same message comes again, with the same identifier and time.
#[test]
fn a_message_that_comes_again_has_its_identity() {
    let service = Service::start();
    let seen = Arc::new(Mutex::new(Vec::<String>::new()));
    let noted = Arc::clone(&seen);
    service.decides(move |body| {
        noted.lock().unwrap().extend(body.lines().map(str::to_owned));
        503
    });
    let mut broker = service.broker("http", "");
    publish_numbers(&broker, "in/a", 0..5);
    eventually("a first attempt", || seen.lock().unwrap().len() >= 5);
    broker.kill();
    broker.restart();
    service.decides(|_| 200);
    eventually("all messages", || service.payloads().len() >= 5);
    assert_eq!(service.lines(), seen.lock().unwrap()[..5]);
}

#[test]
fn one_message_at_fault_becomes_a_dead_letter_and_can_be_written_later() {
    let service = Service::start();
    service.decides(|body| if body.contains("poison") { 422 } else { 200 });
    let broker = service.broker("http", "");
    for number in 0..20 {
        let payload = if number == 7 { "\"poison\"".to_owned() } else { number.to_string() };
        publish(&broker, "in/a", &payload);
    }
    publish(&broker, "in/a", "{no JSON");
    publish(&broker, "in/a", "20");
    eventually("the good ones", || service.payloads().len() == 20);
    let mut expected = numbers(0..21);
    expected.remove(7);
    assert_eq!(service.payloads(), expected);
    eventually("two dead letters", || broker.metric("sink_dead_total{sink=\"web\"}") == 2.0);
    let (good, listed) = sink(&broker, &["dead", "web"]);
    assert!(good, "{listed}");
    let dead: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let reasons: Vec<&str> = dead.iter().map(|letter| letter["reason"].as_str().unwrap()).collect();
    assert!(reasons[0].contains("422") && reasons[1].contains("not JSON"), "{reasons:?}");
    // The service is corrected; the broker runs meanwhile.
    service.decides(|_| 200);
    let (good, text) = sink(&broker, &["retry", "web"]);
    assert!(!good && text.starts_with("1 written, 1 still do not fit"), "{text}");
    assert_eq!(service.payloads().last().unwrap(), "poison");
    let sent: Value = serde_json::from_str(service.lines().last().unwrap()).unwrap();
    assert_eq!(sent["id"], dead[0]["id"]);
    let (_, left) = sink(&broker, &["dead", "web"]);
    assert_eq!(left.lines().count(), 1);
    assert!(left.contains("not JSON"), "{left}");
}

#[test]
fn a_target_that_refuses_everything_keeps_its_messages_and_says_what_to_do() {
    let service = Service::start();
    service.decides(|_| 401);
    let broker = service.broker("http", "");
    publish_numbers(&broker, "in/a", 0..3);
    let log = broker.wait_for_log("sink: messages wait until somebody corrects this");
    assert!(log.contains("401") && log.contains("token_file"), "{log}");
    let health = || http_get(broker.address("http"), "/health/sinks");
    eventually("the state", || health().0 == 503 && health().1.contains("401"));
    assert_eq!(broker.metric("sink_dead_total{sink=\"web\"}"), 0.0);
    service.decides(|_| 200);
    eventually("all messages", || service.payloads() == numbers(0..3));
    eventually("the state", || health().0 == 200);
    assert_eq!(broker.metric("sink_written_total{sink=\"web\"}"), 3.0);
}

#[test]
fn line_protocol_has_the_messages_own_time_and_hostile_text_is_no_line() {
    let service = Service::start();
    let broker = service.broker(
        "influx",
        "measurement = \"{2}\"\ntags = { room = \"/room\" }\ntime = \"/ts\"\n[sinks.web.fields]\n\
         t = { from = \"/t\", type = \"number\" }\nnote = { from = \"/note\", type = \"text\" }",
    );
    publish(&broker, "in/air", r#"{"t": 21.5, "room": "a b", "ts": 1700000000.5}"#);
    publish(&broker, "in/air", r#"{"note": "x\nevil v=1", "ts": 1}"#);
    publish(&broker, "in/air", r#"{"t": -1, "note": "say \"hi\"", "ts": "2023-11-14T22:13:20Z"}"#);
    eventually("two lines", || service.lines().len() == 2);
    let expected = [
        r"air,room=a\ b t=21.5 1700000000500000000",
        r#"air note="say \"hi\"",t=-1 1700000000000000000"#,
    ];
    assert_eq!(service.lines(), expected);
    let (good, listed) = sink(&broker, &["dead", "web"]);
    assert!(good && listed.contains("line break"), "{listed}");
    let tried = ["try", "web", "--topic", "in/air", "--payload", r#"{"t": 1, "ts": 1}"#];
    assert_eq!(sink(&broker, &tried), (true, "air t=1 1000000000".to_owned()));
    let (good, text) = sink(&broker, &["try", "web", "--topic", "in/air", "--payload", "warm"]);
    assert!(!good && text.contains("would become a dead letter"), "{text}");
    let (good, text) = sink(&broker, &["try", "web", "--topic", "out/air", "--payload", "{}"]);
    assert!(!good && text.contains("no filter of the sink matches"), "{text}");
    let (good, text) = sink(&broker, &["dead", "wib"]);
    assert!(!good && text.contains("no [sinks.wib]"), "{text}");
}

/// Nothing is dropped when there is no room for dead letters, and what was written does not come again meanwhile.
#[test]
fn a_full_file_of_dead_letters_holds_up_the_sink_until_there_is_room() {
    let service = Service::start();
    let broker = service.broker("http", "dead_letter_max_bytes = 65536");
    let wrong = format!("{{{}", "x".repeat(40_000));
    let file = broker.data().join("sinks/web.jsonl");
    publish(&broker, "in/a", &wrong);
    eventually("a dead letter", || broker.metric("sink_dead_total{sink=\"web\"}") == 1.0);
    service.decides(|body| if body.contains("poison") { 422 } else { 200 });
    publish(&broker, "in/a", &wrong);
    broker.wait_for_log("the file of dead letters is full");
    publish_numbers(&broker, "in/a", 0..3);
    assert_eq!(http_get(broker.address("http"), "/health/sinks").0, 503);
    let retries = || broker.metric("sink_retries_total{sink=\"web\"}");
    eventually("further attempts", || retries() >= 2.0);
    std::fs::rename(&file, file.with_extension("old")).unwrap();
    eventually("the rest", || service.payloads() == numbers(0..3));
    eventually("a dead letter", || broker.metric("sink_dead_total{sink=\"web\"}") == 2.0);
    let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}
