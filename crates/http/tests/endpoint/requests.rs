//! Requests and their responses: bounds, ambiguous framing, errors, and clients that do not read.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use fulmar_http::{BodyBudget, Plain};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::site::*;

#[tokio::test]
async fn requests_are_answered_and_bounded() {
    let site = start_impatient(Duration::from_secs(3));
    let (_connection, mut sender) = site.dial().await;
    assert_eq!(ask(&mut sender, Method::GET, "/", b"").await, (StatusCode::OK, b"hello".to_vec()));
    let body = vec![7; MAX_BODY_BYTES];
    assert_eq!(ask(&mut sender, Method::POST, "/echo", &body).await, (StatusCode::OK, body));
    // Without Content-Length, so that the size is only detected while reading.
    let (status, _) = ask(&mut sender, Method::POST, "/echo", &vec![7; MAX_BODY_BYTES + 1]).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    let (status, _) = ask(&mut sender, Method::GET, "/never", b"").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let page = site.metrics().prometheus();
    let requests = |version, class| {
        format!("fulmar_http_requests_total{{version=\"{version}\",status=\"{class}xx\"}} ")
    };
    for (class, count) in (1..=5).zip([0, 2, 0, 1, 1]) {
        let line = format!("{}{count}\n", requests("3", class));
        assert!(page.contains(&line), "{line}{page}");
        for version in ["1.1", "2"] {
            assert!(page.contains(&format!("{}0\n", requests(version, class))), "{page}");
        }
    }
    assert_eq!((site.count("connections"), site.count("early_refused_total")), (1, 0));
}

/// They never reach the router; the connection goes on.
#[tokio::test]
async fn http3_requests_with_fields_of_connections_are_refused() {
    let site = start();
    let (_connection, mut sender) = site.dial().await;
    for (name, value) in [
        ("connection", "close"),
        ("keep-alive", "5"),
        ("proxy-connection", "close"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "websocket"),
        ("te", "gzip"),
    ] {
        let request = Request::get("https://localhost/").header(name, value).body(()).unwrap();
        let mut stream = sender.send_request(request).await.unwrap();
        stream.finish().await.ok();
        assert!(stream.recv_response().await.is_err(), "{name}");
    }
    let request = Request::get("https://localhost/").header("te", "trailers").body(()).unwrap();
    let mut stream = sender.send_request(request).await.unwrap();
    assert_eq!(stream.recv_response().await.unwrap().status(), StatusCode::OK);
}

/// The status of a POST that is sent as soon as the client, which has been here before, may send anything.
async fn post_early(site: &Site, client: &quinn::Endpoint, path: &str) -> StatusCode {
    let address = site.endpoint.bound().https[0];
    loop {
        match client.connect(address, "localhost").unwrap().into_0rtt() {
            Ok((connection, _)) => {
                let mut sender = over(&connection).await;
                return ask(&mut sender, Method::POST, path, b"a reading").await.0;
            }
            // A ticket comes with the answer, if not before it.
            Err(connecting) => {
                let connection = connecting.await.unwrap();
                let mut sender = over(&connection).await;
                let (status, _) = ask(&mut sender, Method::GET, "/", b"").await;
                assert_eq!(status, StatusCode::OK);
            }
        }
    }
}

#[tokio::test]
async fn what_changes_nothing_when_it_is_repeated_is_answered_as_early_data() {
    let site = start();
    let client = site.client();
    // Some may be sent when the handshake is over.
    let mut early = 0;
    for _ in 0..20 {
        assert_eq!(post_early(&site, &client, "/once").await, StatusCode::OK);
        early += usize::from(post_early(&site, &client, "/echo").await == StatusCode::TOO_EARLY);
    }
    assert!(early > 0, "none was early");
    assert_eq!(site.count("early_refused_total"), early as u64);
}

/// More than sockets' buffers hold, so that the client notices if the server stops reading.
const OVERSIZED_BYTES: usize = 12 * 1024 * 1024;

/// The responses to a client that reads only after it has sent everything, the next request included.
async fn oversized(site: &Site, path: &str, framing: &str, body: &[u8]) -> String {
    let mut stream = site.dial_tcp(b"http/1.1").await;
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{framing}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    // TLS buffers what the socket did not accept at once, and reading does not flush that.
    stream.flush().await.unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    answers
}

#[tokio::test]
async fn http1_clients_that_send_too_much_can_read_why() {
    let site = start();
    let (length, encoded) =
        (format!("content-length: {OVERSIZED_BYTES}"), "transfer-encoding: chunked");
    let whole = vec![b'x'; OVERSIZED_BYTES];
    let chunk = [format!("{OVERSIZED_BYTES:x}\r\n").as_bytes(), &whole, b"\r\n0\r\n\r\n"].concat();
    for (path, framing, body) in [
        ("/echo", length.as_str(), &whole),
        ("/echo", encoded, &chunk),
        // These are refused before their bodies are read.
        ("/nothing", encoded, &chunk),
        ("/", encoded, &chunk),
    ] {
        let refusal = match path {
            "/echo" => "HTTP/1.1 413 ",
            "/" => "HTTP/1.1 405 ",
            _ => "HTTP/1.1 404 ",
        };
        // The connection still works.
        let answers = oversized(&site, path, framing, body).await;
        assert!(answers.starts_with(refusal) && answers.ends_with("hello"), "{path}: {answers}");
    }
    // Headers without end: later bytes cannot be parsed, and the connection closes.
    let mut stream = site.dial_tcp(b"http/1.1").await;
    stream.write_all(b"GET / HTTP/1.1\r\nendless: ").await.unwrap();
    stream.write_all(&whole[..1024 * 1024]).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[tokio::test]
async fn http2_clients_that_send_too_much_can_read_why() {
    let site = start();
    let stream = TokioIo::new(site.dial_tcp(b"h2").await);
    let (mut sender, driver) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(driver);
    let body = Full::new(Bytes::from(vec![0; OVERSIZED_BYTES]));
    let request = Request::post("https://localhost/echo").body(body).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert!(!response.into_body().collect().await.unwrap().to_bytes().is_empty());
    let request = Request::get("https://localhost/").body(Full::default()).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn responses_that_are_not_taken_are_given_up() {
    let site = start_impatient(Duration::from_secs(1));
    // One whose client takes nothing, and one whose client takes a little of each.
    for window in [0, 1000] {
        let stream = TokioIo::new(site.dial_tcp(b"h2").await);
        let mut client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        client.initial_stream_window_size(window);
        let (mut sender, driver) = client.handshake(stream).await.unwrap();
        tokio::spawn(driver);
        let request = || Request::get("https://localhost/large").body(Full::<Bytes>::default());
        let mut unread = Vec::new();
        for _ in 0..8 {
            unread.push(sender.send_request(request().unwrap()).await.unwrap());
        }
        tokio::time::timeout(PATIENCE, async {
            while LARGE.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("they are not kept");
        // The connection goes on.
        let answer = sender.send_request(request().unwrap()).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        drop(unread);
    }
}

#[tokio::test]
async fn apis_get_problems_and_other_paths_a_line_of_text() {
    let site = start_impatient(Duration::from_secs(1));
    let large = format!("content-length: {}\r\n", MAX_BODY_BYTES + 1);
    for (request, status, length) in
        [("POST /api/any", 413, &*large), ("GET /api/never", 503, ""), ("POST /echo", 413, &large)]
    {
        let head = format!("{request} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{length}\r\n");
        let answer = answered(site.dial_tcp(b"http/1.1").await, &head).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        let is_problem = answer.contains("content-type: application/problem+json\r\n")
            && answer.contains(&format!("\"status\":{status},\"detail\":\""));
        assert_eq!(is_problem, request.contains("/api/"), "{answer}");
    }
}

#[tokio::test]
async fn ambiguous_requests_are_refused() {
    let site = start();
    let plain = Plain::start(
        &["127.0.0.1:0".parse().unwrap()],
        &limits(),
        &BodyBudget::new(BUDGET_BYTES),
        router(),
    )
    .unwrap();
    let end = "host: localhost\r\nconnection: close\r\n\r\n";
    for (head, status) in [
        ("GET / HTTP/1.1\r\n", 200),
        ("GET / HTTP/1.1\r\nhost: localhost\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: evil.example\r\n", 400),
        ("GET / HTTP/1.1\n", 400),
        ("GET / HTTP/1.1\r\na: b\n", 400),
        ("POST /echo HTTP/1.1\r\ncontent-length: 1\r\n\r\nxGET / HTTP/1.1\n", 400),
        ("POST /echo HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n", 400),
    ] {
        let request = format!("{head}{end}");
        let expected = format!("HTTP/1.1 {status} ");
        let over_tls = answered(site.dial_tcp(b"http/1.1").await, &request).await;
        assert!(over_tls.starts_with(&expected), "{head:?}: {over_tls}");
        let socket = TcpStream::connect(plain.bound()[0]).await.unwrap();
        let in_clear = answered(socket, &request).await;
        assert!(in_clear.starts_with(&expected), "{head:?}: {in_clear}");
    }
    // No bytes follow.
    let short = "GET / HTTP/1.1\r\nhost: a\r\n\n";
    let unended = answered(site.dial_tcp(b"http/1.1").await, short).await;
    assert!(unended.starts_with("HTTP/1.1 400 "), "{unended}");
    let no_host =
        answered(site.dial_tcp(b"http/1.1").await, "GET / HTTP/1.1\r\nconnection: close\r\n\r\n");
    assert!(no_host.await.starts_with("HTTP/1.1 400 "));
}

#[tokio::test]
async fn a_request_is_answered_before_its_body_has_come() {
    let any = "127.0.0.1:0".parse().unwrap();
    let site = start_with(any, limits(), BodyBudget::new(BUDGET_BYTES));
    let plain = Plain::start(&[any], &limits(), &BodyBudget::new(BUDGET_BYTES), router()).unwrap();
    // Nothing has this name, as for an unknown client: no handler reads the body.
    let head = "POST /nothing HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n";
    async fn begun<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, head: &str) -> String {
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let mut answer = vec![0; "HTTP/1.1 404 ".len()];
        stream.read_exact(&mut answer).await.unwrap();
        String::from_utf8(answer).unwrap()
    }
    assert_eq!(begun(site.dial_tcp(b"http/1.1").await, head).await, "HTTP/1.1 404 ");
    let socket = TcpStream::connect(plain.bound()[0]).await.unwrap();
    assert_eq!(begun(socket, head).await, "HTTP/1.1 404 ");
    let (_connection, mut sender) = site.dial().await;
    let request = Request::post("https://localhost/nothing").body(()).unwrap();
    let mut stream = sender.send_request(request).await.unwrap();
    assert_eq!(stream.recv_response().await.unwrap().status(), StatusCode::NOT_FOUND);
}
