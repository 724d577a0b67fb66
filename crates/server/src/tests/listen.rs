//! On a socket: who is slow, who comes too many, how it ends.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::null::{Fault, NullWeights};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::{ApiKey, Ended, Shutdown, serve};

async fn start(options: Options) -> (App, SocketAddr, Shutdown, JoinHandle<Ended>) {
    start_with(options, None).await
}

async fn start_with(options: Options, faults: Option<Faults>) -> (App, SocketAddr, Shutdown, JoinHandle<Ended>) {
    let app = loading(options);
    serve_on(&app, config(), faults);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = Shutdown::default();
    let served = tokio::spawn(serve(app.clone(), listener, shutdown.clone()));
    (app, address, shutdown, served)
}

const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Asks for the health on an open connection; returns the status line.
async fn ask(stream: &mut TcpStream) -> String {
    stream.write_all(HEALTH).await.unwrap();
    let mut answer = [0; 15];
    stream.read_exact(&mut answer).await.unwrap();
    String::from_utf8(answer.to_vec()).unwrap()
}

/// The whole answer about the health, on a connection of its own.
async fn health_of(address: SocketAddr) -> String {
    let mut probe = TcpStream::connect(address).await.expect("it still listens");
    let request = String::from_utf8_lossy(HEALTH).replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    probe.write_all(request.as_bytes()).await.unwrap();
    let mut health = String::new();
    probe.read_to_string(&mut health).await.unwrap();
    health
}

#[tokio::test]
async fn who_sends_headers_too_slowly_is_let_go_and_others_are_answered() {
    let options = Options { header_time_max: Duration::from_millis(100), ..Options::default() };
    let (_app, address, shutdown, served) = start(options).await;
    let mut slow = Vec::new();
    for _ in 0..50 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: loc").await.unwrap();
        slow.push(stream);
    }
    assert_eq!(ask(&mut TcpStream::connect(address).await.unwrap()).await, "HTTP/1.1 200 OK");
    for mut stream in slow {
        let mut rest = Vec::new();
        let ended = timeout(Duration::from_secs(5), stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "a slow client holds its connection");
        // What is no request gets no answer.
        assert_eq!(rest, b"");
    }
    shutdown.ask();
    assert_eq!(served.await.unwrap(), Ended::Drained);
}

#[tokio::test]
async fn one_connection_too_many_waits_for_another_to_end() {
    let (_app, address, shutdown, served) = start(Options { connections_max: 2, ..Options::default() }).await;
    let mut first = TcpStream::connect(address).await.unwrap();
    let mut second = TcpStream::connect(address).await.unwrap();
    assert_eq!((ask(&mut first).await, ask(&mut second).await), ("HTTP/1.1 200 OK".into(), "HTTP/1.1 200 OK".into()));
    let mut third = TcpStream::connect(address).await.unwrap();
    assert!(timeout(Duration::from_millis(100), ask(&mut third)).await.is_err(), "a third was answered");
    drop(first);
    let mut rest = [0; 15];
    timeout(Duration::from_secs(5), third.read_exact(&mut rest)).await.unwrap().unwrap();
    assert_eq!(&rest, b"HTTP/1.1 200 OK");
    shutdown.ask();
    assert_eq!(served.await.unwrap(), Ended::Drained);
}

#[tokio::test]
async fn a_reader_that_does_not_read_loses_its_request() {
    let app = loading(Options { stall_time_max: Duration::from_millis(50), ..Options::default() });
    let kv = KvLayout { num_blocks: 512, ..config().kv };
    serve_on(&app, EngineConfig::new(kv, 256, VOCAB_SIZE, vec![2, 0]), None);
    // More events than are kept for a reader.
    let body = json!({"prompt": "Once", "max_tokens": 200, "n": 8, "ignore_eos": true, "stream": true, "return_token_ids": true});
    let response = send(&app, request(Method::POST, TEXT, &body.to_string())).await;
    // The engine may be done long before whoever writes has waited in vain.
    tokio::time::sleep(Duration::from_secs(2)).await;
    idle(&app).await;
    let text = String::from_utf8(bytes(response).await.to_vec()).unwrap();
    assert!(!text.contains("[DONE]"), "it was not whole");
}

#[tokio::test]
async fn a_server_whose_device_is_stuck_answers_and_ends_as_failed() {
    let options = Options { step_time_max: Duration::from_millis(200), ..Options::default() };
    let stuck: Faults = Box::new(|_, _| {
        std::thread::sleep(Duration::from_secs(60));
        None
    });
    let (app, address, _shutdown, served) = start_with(options, Some(stuck)).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let body = json!({"prompt": "Once", "max_tokens": 2}).to_string();
    let request = format!(
        "POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(Duration::from_secs(20), stream.read_to_string(&mut answer)).await.expect("it is answered").unwrap();
    assert!(answer.starts_with("HTTP/1.1 500") && answer.contains("step_stuck"), "{answer}");
    // A probe that comes now is told why.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let health = health_of(address).await;
    assert!(health.starts_with("HTTP/1.1 503") && health.contains("taken to be stuck"), "{health}");
    assert_eq!(timeout(Duration::from_secs(20), served).await.expect("it ends").unwrap(), Ended::Failed);
    assert!(app.failure().is_some_and(|why| why.contains("stuck")));
}

/// As after a sticky CUDA error: each later call into the driver fails in the same way.
#[tokio::test]
async fn a_server_whose_device_is_lost_says_so_and_ends_as_failed() {
    let lost: Faults = Box::new(|step, _| (step >= 3).then_some(Fault::Error));
    let (app, address, _shutdown, served) = start_with(Options::default(), Some(lost)).await;
    let body = json!({"prompt": "Once", "max_tokens": 8, "ignore_eos": true});
    let (status, _, answer) = post(&app, TEXT, &body).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (500, &json!("step_failed")), "{answer}");
    assert!(app.failure().is_none(), "one error may be of that step alone");
    let (status, _, answer) = post(&app, TEXT, &body).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (500, &json!("step_failed")), "{answer}");
    let why = timeout(Duration::from_secs(20), async {
        loop {
            match app.failure() {
                Some(why) => return why,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    });
    let why = why.await.expect("the failure is noticed");
    assert!(why.contains("device is lost") && why.contains("planted at step") && why.contains("restart"), "{why}");
    let health = health_of(address).await;
    assert!(health.starts_with("HTTP/1.1 503") && health.contains("device is lost"), "{health}");
    assert_eq!(timeout(Duration::from_secs(20), served).await.expect("it ends").unwrap(), Ended::Failed);
}

/// A bit of the weights flips while no request runs.
#[tokio::test]
async fn a_server_whose_weights_have_changed_in_memory_says_so_and_ends_as_failed() {
    let weights = NullWeights::new(vec![7; 1 << 20].into());
    let app = loading(Options { weight_check_pause: Some(Duration::from_millis(10)), ..Options::default() });
    let device = NullExecutable::new(config().kv, VOCAB_SIZE).with_queue().with_weights(Arc::clone(&weights));
    app.ready(served_by(device, config(), chat_template())).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tokio::spawn(serve(app.clone(), listener, Shutdown::default()));
    // Passes over memory that stays as it is, with requests between them.
    for _ in 0..5 {
        let (status, ..) = post(&app, TEXT, &json!({"prompt": "Once", "max_tokens": 8, "ignore_eos": true})).await;
        assert_eq!(status, StatusCode::OK);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(app.failure().is_none(), "nothing has changed");
    weights.lock().unwrap()[12_345] ^= 1;
    let failed = timeout(Duration::from_secs(20), async {
        while app.failure().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    failed.await.expect("the change is noticed");
    let why = app.failure().unwrap();
    assert!(why.contains("`null.weight`") && why.contains("changed in memory") && why.contains("restart"), "{why}");
    let health = health_of(address).await;
    assert!(health.starts_with("HTTP/1.1 503") && health.contains("changed in memory"), "{health}");
    let (status, _, answer) = post(&app, TEXT, &json!({"prompt": "Once"})).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (503, &json!("failed")), "{answer}");
    assert_eq!(timeout(Duration::from_secs(20), served).await.expect("it ends").unwrap(), Ended::Failed);
}

/// Requests between two checks do not bring the next one forward.
#[tokio::test]
async fn weights_are_checked_once_in_the_time_between_two_checks() {
    let weights = NullWeights::new(vec![7; 1 << 20].into());
    let app = loading(Options { weight_check_pause: Some(Duration::from_secs(3600)), ..Options::default() });
    let device = NullExecutable::new(config().kv, VOCAB_SIZE).with_queue().with_weights(Arc::clone(&weights));
    app.ready(served_by(device, config(), chat_template())).unwrap();
    // The first check begins after 20 ms without work, and reads one piece.
    tokio::time::sleep(Duration::from_millis(500)).await;
    weights.lock().unwrap()[12_345] ^= 1;
    for _ in 0..3 {
        let (status, ..) = post(&app, TEXT, &json!({"prompt": "Once", "max_tokens": 8, "ignore_eos": true})).await;
        assert_eq!(status, StatusCode::OK);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(app.failure(), None, "the next check is an hour away");
}

#[tokio::test]
async fn idle_work_is_done_to_its_end_while_no_request_runs() {
    let app = loading(Options::default());
    let done = Arc::new(AtomicUsize::new(0));
    let work = {
        let done = Arc::clone(&done);
        move || done.fetch_add(1, Ordering::Relaxed) < 2
    };
    let device = NullExecutable::new(config().kv, VOCAB_SIZE).with_queue();
    let model = ServedModel { idle_work: Some(Box::new(work)), ..served_by(device, config(), chat_template()) };
    app.ready(model).unwrap();
    // It begins after 20 ms without a request.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (status, ..) = post(&app, TEXT, &json!({"prompt": "Once", "max_tokens": 8, "ignore_eos": true})).await;
    assert_eq!(status, StatusCode::OK);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(done.load(Ordering::Relaxed), 3, "the third piece was the last");
}

/// Errors of single steps, with whole steps between them, are not a lost device.
#[tokio::test]
async fn errors_that_the_next_step_does_not_repeat_leave_the_server_alive() {
    let now_and_then: Faults = Box::new(|step, _| (step % 3 == 2).then_some(Fault::Error));
    let (app, ..) = start_with(Options::default(), Some(now_and_then)).await;
    for _ in 0..6 {
        let (status, ..) = post(&app, TEXT, &json!({"prompt": "Once", "max_tokens": 8, "ignore_eos": true})).await;
        assert_eq!(status.as_u16(), 500);
    }
    assert_eq!(app.failure(), None);
}

/// Two keys on sockets: one of them fills its queue, and the other is let in and answered in its turn.
#[tokio::test]
async fn a_key_that_fills_its_queue_keeps_no_other_key_out() {
    const KEYS: [&str; 2] = ["the-first-key-of-two", "the-second-key-of-it"];
    let options = Options { api_keys: KEYS.map(|key| ApiKey::new(key).unwrap()).into(), ..Options::default() };
    let app = loading(options);
    let slow: Faults = Box::new(|_, _| {
        std::thread::sleep(Duration::from_millis(5));
        None
    });
    serve_on(&app, EngineConfig { max_sequences: 1, max_waiting: 3, ..config() }, Some(slow));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = Shutdown::default();
    let served = tokio::spawn(serve(app.clone(), listener, shutdown.clone()));
    let ask = move |key: &'static str| {
        tokio::spawn(async move {
            let body = json!({"prompt": "Once", "max_tokens": 30, "ignore_eos": true}).to_string();
            let request = format!(
                "POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n\
                 Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            (answer[9..12].to_owned(), std::time::Instant::now())
        })
    };
    let mut greedy: Vec<_> = (0..8).map(|_| ask(KEYS[0])).collect();
    // Until one of them is turned away, the queue has room.
    let refused = loop {
        if let Some(done) = greedy.iter().position(JoinHandle::is_finished) {
            break greedy.swap_remove(done).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    assert_eq!(refused.0, "429");
    let (status, answered) = ask(KEYS[1]).await.unwrap();
    assert_eq!(status, "200");
    let mut last = answered;
    for asked in greedy {
        let (status, end) = asked.await.unwrap();
        assert!(["200", "429"].contains(&status.as_str()), "{status}");
        last = last.max(end);
    }
    assert!(answered < last, "whoever came later with a key of its own stood behind all others");
    shutdown.ask();
    assert_eq!(served.await.unwrap(), Ended::Drained);
}

/// What has come within `time`.
async fn read_for(stream: &mut TcpStream, time: Duration) -> String {
    let mut found = Vec::new();
    let _ = timeout(time, stream.read_to_end(&mut found)).await;
    String::from_utf8_lossy(&found).into_owned()
}

/// Connections that say nothing give up their places to one that does.
#[tokio::test]
async fn silent_connections_shut_nobody_out() {
    let options = Options { connections_max: 8, header_time_max: Duration::from_secs(60), ..Options::default() };
    let (_app, address, ..) = start(options).await;
    let mut silent = Vec::new();
    for _ in 0..64 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut good = TcpStream::connect(address).await.unwrap();
    let answer = timeout(Duration::from_secs(30), ask(&mut good)).await.expect("it is let in");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// So do those that ask for more and more and read nothing; and after the stall time, their connection ends.
#[tokio::test]
async fn readers_that_do_not_read_shut_nobody_out_and_are_let_go() {
    let options = Options { connections_max: 4, stall_time_max: Duration::from_secs(3), ..Options::default() };
    let (app, address, ..) = start(options).await;
    let mut greedy = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = "GET /page/main.js HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(2000);
        // As much as the system takes.
        let _ = timeout(Duration::from_millis(500), stream.write_all(request.as_bytes())).await;
        greedy.push(stream);
    }
    let mut good = TcpStream::connect(address).await.unwrap();
    let answer = timeout(Duration::from_secs(30), ask(&mut good)).await.expect("it is let in");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(good);
    timeout(Duration::from_secs(30), async {
        while app.inner.metrics.connections() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("all are let go");
}

#[tokio::test]
async fn a_client_that_still_sends_is_told_that_its_body_is_too_large() {
    let (_app, address, ..) = start(Options { body_bytes_max: 100_000, ..Options::default() }).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 300000\r\n\
                Connection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..30 {
        stream.write_all(&[b' '; 10_000]).await.expect("it is read");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let answer = read_for(&mut stream, Duration::from_secs(10)).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("--max-body-bytes"), "{answer}");
}

#[tokio::test]
async fn two_hosts_an_encoding_and_a_foreign_charset_are_refused() {
    let (_app, address, ..) = start(Options::default()).await;
    let ask = async |headers: &str| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let body = json!({"prompt": "x"}).to_string();
        let length = body.len();
        let request =
            format!("POST /tokenize HTTP/1.1\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).await.unwrap();
        read_for(&mut stream, Duration::from_secs(10)).await.chars().skip(9).take(3).collect::<String>()
    };
    let json = "Host: localhost\r\nContent-Type: application/json";
    assert_eq!(ask(&format!("{json}\r\n")).await, "200");
    assert_eq!(ask(&format!("{json}; charset=UTF-8\r\nContent-Encoding: identity\r\n")).await, "200");
    assert_eq!(ask(&format!("{json}; charset=utf-16\r\n")).await, "415");
    assert_eq!(ask(&format!("{json}\r\nContent-Encoding: gzip\r\n")).await, "415");
    assert_eq!(ask(&format!("{json}\r\nHost: localhost\r\n")).await, "400");
    assert_eq!(ask(&format!("{json}\r\nHost: evil.example\r\n")).await, "400");
}

/// Sends a request, closes this half, and returns the whole answer.
async fn half_closed(address: SocketAddr, version: &str, body: &Value) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let body = body.to_string();
    let request = format!(
        "POST {TEXT} HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    read_for(&mut stream, Duration::from_secs(30)).await
}

fn slow_steps(time: Duration) -> Faults {
    Box::new(move |_, _| {
        std::thread::sleep(time);
        None
    })
}

#[tokio::test]
async fn a_client_that_has_closed_its_half_gets_its_answer() {
    let (_app, address, ..) = start(Options::default()).await;
    for version in ["1.0", "1.1"] {
        let mut body = json!({"prompt": "Once", "max_tokens": 8, "ignore_eos": true});
        let answer = half_closed(address, version, &body).await;
        assert!(answer.starts_with("HTTP/1.") && answer[8..].starts_with(" 200"), "{version}: {answer}");
        assert!(answer.ends_with('}') && answer.contains("\"length\""), "{version}: {answer}");
        body["stream"] = json!(true);
        let answer = half_closed(address, version, &body).await;
        assert!(answer[8..].starts_with(" 200") && answer.contains("[DONE]"), "{version}: {answer}");
    }
}

/// An answer that takes long: the server asks whether somebody waits, in words that a client skips.
#[tokio::test]
async fn a_slow_answer_to_a_half_closed_client_is_whole() {
    let (_app, address, ..) = start_with(Options::default(), Some(slow_steps(Duration::from_millis(200)))).await;
    let mut body = json!({"prompt": "Once", "max_tokens": 8, "ignore_eos": true});
    let answer = half_closed(address, "1.1", &body).await;
    let rest = answer.strip_prefix("HTTP/1.1 100 Continue\r\n\r\n").expect("it is asked");
    assert!(rest.starts_with("HTTP/1.1 200") && rest.contains("\"length\"") && rest.ends_with('}'), "{rest}");
    body["stream"] = json!(true);
    let answer = half_closed(address, "1.1", &body).await;
    let comments = answer.matches(": still here\n\n").count();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("[DONE]") && comments == 1, "{answer}");
    // Older clients take the first line for that of the answer.
    assert_eq!(half_closed(address, "1.0", &json!({"prompt": "Once", "max_tokens": 8, "ignore_eos": true})).await, "");
}

/// One that has left looks the same at first, and its work ends long before its text would: at most 256 tokens of 100 ms.
#[tokio::test]
async fn the_work_of_a_client_that_leaves_without_reading_ends() {
    for stream in [false, true] {
        let (app, address, ..) = start_with(Options::default(), Some(slow_steps(Duration::from_millis(100)))).await;
        let mut left = TcpStream::connect(address).await.unwrap();
        let body = json!({"prompt": "Once", "max_tokens": 200, "ignore_eos": true, "stream": stream}).to_string();
        let request = format!(
            "POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        left.write_all(request.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(app.inner.metrics.connections() > 0);
        drop(left);
        timeout(Duration::from_secs(5), async {
            while app.inner.metrics.connections() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            idle(&app).await;
        })
        .await
        .expect("its work ends");
    }
}

/// The bound holds to the byte. A little beyond it the answer says the length; far beyond it the status has to do.
#[tokio::test]
async fn headers_beyond_their_bound_are_refused() {
    let (_app, address, ..) = start(Options::default()).await;
    let ask = async |length: usize| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Long: ";
        let rest = length - head.len() - 4;
        let request = format!("{head}{}\r\n\r\n", "x".repeat(rest));
        assert_eq!(request.len(), length);
        let _ = stream.write_all(request.as_bytes()).await;
        read_for(&mut stream, Duration::from_secs(10)).await
    };
    for length in [1 << 10, 31 << 10, 32 << 10] {
        assert!(ask(length).await.starts_with("HTTP/1.1 200"), "{length}");
    }
    for length in [(32 << 10) + 1, 33 << 10, 100 << 10, 1 << 20] {
        let answer = ask(length).await;
        assert!(answer.starts_with("HTTP/1.1 431"), "{length}: {answer:?}");
        let says = answer.contains(&format!("have {length} bytes")) && answer.contains("headers_too_large");
        assert!(says || length > 64 << 10, "{length}: {answer:?}");
    }
}

#[tokio::test]
async fn a_request_whose_client_leaves_is_counted_as_aborted() {
    let slow: Faults = Box::new(|_, _| {
        std::thread::sleep(Duration::from_millis(20));
        None
    });
    let (app, address, ..) = start_with(Options::default(), Some(slow)).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let body = json!({"prompt": "Once", "max_tokens": 200, "ignore_eos": true, "stream": true}).to_string();
    let request = format!(
        "POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.read_exact(&mut [0; 100]).await.unwrap();
    drop(stream);
    idle(&app).await;
    timeout(Duration::from_secs(20), async {
        loop {
            let metrics = bytes(send(&app, request_to("/metrics")).await).await;
            if String::from_utf8_lossy(&metrics).contains("finished_reason=\"abort\"} 1") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("it is counted");
}

fn request_to(path: &str) -> axum::http::Request<axum::body::Body> {
    request(Method::GET, path, "")
}
