//! Many clients at a time, some of whom leave: nothing lost, nothing leaked, every answer the one that it is alone.

use serde_json::{Value, json};

use super::*;

/// Pseudorandom numbers (splitmix64), so that a failure can be had again.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

fn random_body(random: &mut Random) -> Value {
    let shared = ["Once upon a time, in a green valley", "The moon was out and", ""][random.below(3) as usize];
    let mut body = json!({
        "prompt": format!("{shared} {}", random.below(50)),
        "max_tokens": 1 + random.below(40),
        "seed": random.below(1000),
        "temperature": random.below(3) as f64 / 2.0,
        "priority": random.below(5) as i64 - 2,
    });
    match random.below(5) {
        0 => body["stop"] = json!(["e", " th"]),
        1 => body["n"] = json!(1 + random.below(3)),
        2 => (body["logprobs"], body["echo"]) = (json!(1), json!(random.below(2) == 0)),
        3 => body["frequency_penalty"] = json!(0.5),
        _ => {}
    }
    body
}

/// A stream's text, or that of a whole answer: by choice.
fn texts(answer: &[Value]) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    for choice in answer.iter().flat_map(|part| part["choices"].as_array().unwrap()) {
        let index = choice["index"].as_u64().unwrap() as usize;
        texts.resize(texts.len().max(index + 1), String::new());
        texts[index].push_str(choice["text"].as_str().unwrap());
    }
    texts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_the_one_that_the_request_gets_alone() {
    let kv = KvLayout { num_blocks: 20, ..config().kv };
    let busy = EngineConfig { kv, context_len: 128, max_sequences: 8, max_batch_tokens: 24, ..config() };
    let busy = app_on(busy, None);
    let quiet = app();
    let clients = (0..24u64).map(|client| {
        let (busy, quiet) = (busy.clone(), quiet.clone());
        tokio::spawn(async move {
            let random = &mut Random(client);
            let mut completed = 0;
            for _ in 0..12 {
                let body = random_body(random);
                match random.below(4) {
                    // Leaves in the middle of a stream, or before it begins.
                    0 => {
                        let mut streamed = body.clone();
                        streamed["stream"] = json!(true);
                        let response = send(&busy, request(Method::POST, TEXT, &streamed.to_string())).await;
                        let mut body = response.into_body();
                        for _ in 0..random.below(4) {
                            let _ = body.frame().await;
                        }
                    }
                    1 => {
                        let time = Duration::from_millis(random.below(8));
                        let _ = tokio::time::timeout(time, post(&busy, TEXT, &body)).await;
                    }
                    2 => {
                        let found = texts(&stream(&busy, TEXT, &body).await);
                        assert_eq!(found, texts(&[ok(&quiet, TEXT, &body).await]), "{body}");
                        completed += 1;
                    }
                    _ => {
                        let found = texts(&[ok(&busy, TEXT, &body).await]);
                        assert_eq!(found, texts(&[ok(&quiet, TEXT, &body).await]), "{body}");
                        completed += 1;
                    }
                }
            }
            completed
        })
    });
    let mut completed = 0;
    for client in clients.collect::<Vec<_>>() {
        completed += client.await.unwrap();
    }
    assert!(completed > 80, "{completed} answers were compared");
    let stats = idle(&busy).await;
    assert!(stats.num_preemptions > 0, "{stats:?}");
}

/// Steps are counted by the device: between the end of the client and the freed blocks lies one at most.
#[tokio::test]
async fn a_client_that_leaves_frees_its_blocks_within_a_step() {
    let app = app_on(
        config(),
        Some(Box::new(|_, _| {
            std::thread::sleep(Duration::from_millis(20));
            None
        })),
    );
    let mut body = json!({"prompt": "Once", "max_tokens": 200, "ignore_eos": true, "stream": true});
    for streamed in [true, false] {
        body["stream"] = json!(streamed);
        let answer = send(&app, request(Method::POST, TEXT, &body.to_string()));
        if streamed {
            let mut frames = answer.await.into_body();
            frames.frame().await.unwrap().unwrap();
            drop(frames);
        } else {
            let _ = tokio::time::timeout(Duration::from_millis(100), answer).await;
        }
        let steps = stats(&app).num_steps;
        assert!(steps > 0);
        let stats = idle(&app).await;
        // One under way, one submitted ahead of it.
        assert!(stats.num_steps <= steps + 2, "{} steps after the client left", stats.num_steps - steps);
    }
}

/// The queue is in the order of priorities, lower first, and of arrival.
#[tokio::test]
async fn a_lower_priority_goes_first() {
    let config = EngineConfig { max_sequences: 1, aging_steps: 1000, ..config() };
    let app = app_on(
        config,
        Some(Box::new(|_, _| {
            std::thread::sleep(Duration::from_millis(2));
            None
        })),
    );
    let run = |priority: i64, tokens: u64| {
        let body = json!({"prompt": "Once", "max_tokens": tokens, "ignore_eos": true, "priority": priority});
        let app = app.clone();
        tokio::spawn(async move {
            ok(&app, TEXT, &body).await;
            std::time::Instant::now()
        })
    };
    let first = run(0, 60);
    tokio::time::sleep(Duration::from_millis(30)).await;
    let late = run(3, 4);
    tokio::time::sleep(Duration::from_millis(10)).await;
    let early = run(-3, 4);
    first.await.unwrap();
    assert!(early.await.unwrap() < late.await.unwrap());
}

#[tokio::test]
async fn streams_that_are_stopped_end_with_an_error_and_done() {
    let app = app_on(
        config(),
        Some(Box::new(|_, _| {
            std::thread::sleep(Duration::from_millis(5));
            None
        })),
    );
    let body = json!({"prompt": "Once", "max_tokens": 200, "ignore_eos": true});
    let streaming = {
        let app = app.clone();
        tokio::spawn(async move { stream(&app, TEXT, &body).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    app.drain();
    app.stop_requests();
    assert_eq!(streaming.await.unwrap().last().unwrap()["error"]["code"], "draining");
}
