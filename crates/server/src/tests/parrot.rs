//! A model that says what it is told to, and clients that keep its answers as SDKs do.

use engine::null::Script;
use tokenizer::ParseSpecial;

use super::forced_calls::tokenizer_with;
use super::structure::weather;
use super::*;

/// A model that says what it is told to.
pub(super) struct Parrot {
    pub(super) app: App,
    tokenizer: Arc<Tokenizer>,
    script: Script,
}

impl Parrot {
    pub(super) fn new(template: &str, tokens: &[&str], options: Options) -> Self {
        let (tokenizer, vocab_size) = tokenizer_with(tokens);
        let kv = KvLayout { num_blocks: 2048, ..config().kv };
        let config = EngineConfig::new(kv, 8192, vocab_size, vec![2, 0]);
        let script = Script::default();
        let executable = NullExecutable::new(config.kv, config.vocab_size).saying(Arc::clone(&script));
        let template = ChatTemplate::new(template).unwrap();
        let app = loading(options);
        let model = ServedModel {
            tokenizer: Arc::clone(&tokenizer),
            engine: Engine::new(Box::new(executable), config.clone()).unwrap(),
            ..served(config, None, template)
        };
        app.ready(model).unwrap();
        Self { app, tokenizer, script }
    }

    /// The answer to this request, if the model says `text`; streamed, it says the same on the chat route.
    pub(super) async fn say(&self, text: &str, path: &str, body: &Value) -> Value {
        self.prepare(text).await;
        let answer = ok(&self.app, path, body).await;
        if path == CHAT {
            self.prepare(text).await;
            let mut streamed = json!({"content": "", "calls": []});
            for event in stream(&self.app, path, body).await {
                let delta = &event["choices"][0]["delta"];
                if let Some(text) = delta["content"].as_str() {
                    chat::append(&mut streamed, "content", text);
                }
                for call in delta["tool_calls"].as_array().into_iter().flatten() {
                    let index = call["index"].as_u64().unwrap() as usize;
                    if streamed["calls"][index].is_null() {
                        streamed["calls"].as_array_mut().unwrap().push(json!(""));
                    }
                    let call = call["function"]["arguments"].as_str().unwrap().to_owned();
                    let before = streamed["calls"][index].as_str().unwrap().to_owned();
                    streamed["calls"][index] = json!(before + &call);
                }
            }
            let message = &answer["choices"][0]["message"];
            let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
            for (index, call) in calls.iter().enumerate() {
                assert_eq!(streamed["calls"][index], call["function"]["arguments"], "{text}");
            }
            assert_eq!(streamed["content"].as_str(), message["content"].as_str().or(Some("")), "{text}");
        }
        answer
    }

    pub(super) async fn prepare(&self, text: &str) {
        idle(&self.app).await;
        let mut ids = self.tokenizer.encode(text, ParseSpecial::Yes).unwrap();
        ids.push(2);
        *self.script.lock().unwrap() = ids.into();
    }
}

/// What a client makes of an answer, whatever the route: the text, and calls with their arguments.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Said {
    pub(super) text: String,
    pub(super) calls: Vec<(String, Value)>,
    pub(super) finish: String,
}

/// A conversation on one of the routes, kept as its SDK keeps it.
pub(super) struct Client {
    path: &'static str,
    pub(super) body: Value,
}

pub(super) const ROUTES: [&str; 4] = [CHAT, MESSAGES, RESPONSES, OLLAMA];

impl Client {
    pub(super) fn new(path: &'static str) -> Self {
        let function = weather()[0]["function"].clone();
        let body = match path {
            CHAT => json!({"messages": [{"role": "user", "content": "x"}], "tools": weather(), "max_tokens": 200}),
            MESSAGES => json!({
                "messages": [{"role": "user", "content": "x"}], "max_tokens": 200,
                "tools": [{"name": function["name"], "input_schema": function["parameters"]}],
            }),
            OLLAMA => json!({
                "messages": [{"role": "user", "content": "x"}], "tools": weather(), "stream": false,
                "options": {"num_predict": 200},
            }),
            _ => json!({
                "input": [{"role": "user", "content": "x"}], "max_output_tokens": 200,
                "tools": [{"type": "function", "name": function["name"], "parameters": function["parameters"]}],
            }),
        };
        Self { path, body }
    }

    /// Keeps the answer, and what comes next: the results of its calls, or the user's next words.
    pub(super) fn keep(&mut self, answer: &Value) -> Said {
        let parsed = |text: &Value| serde_json::from_str(text.as_str().unwrap()).unwrap_or_else(|_| text.clone());
        let mut said = Said::default();
        let text = |found: &Value| found.as_str().unwrap_or_default().to_owned();
        match self.path {
            CHAT => {
                let choice = &answer["choices"][0];
                let message = choice["message"].clone();
                said.text = text(&message["content"]);
                said.finish = text(&choice["finish_reason"]);
                let messages = self.body["messages"].as_array_mut().unwrap();
                messages.push(message.clone());
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    let function = &call["function"];
                    said.calls.push((text(&function["name"]), parsed(&function["arguments"])));
                    messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": [
                        {"type": "text", "text": "12"}]}));
                }
                if said.calls.is_empty() {
                    messages.push(json!({"role": "user", "content": "and?"}));
                }
            }
            MESSAGES => {
                said.finish = text(&answer["stop_reason"]);
                let messages = self.body["messages"].as_array_mut().unwrap();
                messages.push(json!({"role": "assistant", "content": answer["content"]}));
                let mut results = Vec::new();
                for block in answer["content"].as_array().unwrap() {
                    match block["type"].as_str().unwrap() {
                        "text" => said.text.push_str(block["text"].as_str().unwrap()),
                        "tool_use" => {
                            said.calls.push((text(&block["name"]), block["input"].clone()));
                            results.push(json!({"type": "tool_result", "tool_use_id": block["id"], "content": "12"}));
                        }
                        _ => {}
                    }
                }
                let next = if results.is_empty() { json!("and?") } else { results.into() };
                messages.push(json!({"role": "user", "content": next}));
            }
            OLLAMA => {
                let message = answer["message"].clone();
                said.text = text(&message["content"]);
                said.finish = text(&answer["done_reason"]);
                let messages = self.body["messages"].as_array_mut().unwrap();
                // As the Python package keeps it, which knows no ids.
                let mut kept = message.clone();
                let calls = kept["tool_calls"].as_array_mut().into_iter().flatten();
                calls.for_each(|call| drop(call.as_object_mut().unwrap().remove("id")));
                messages.push(kept);
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    let function = &call["function"];
                    said.calls.push((text(&function["name"]), function["arguments"].clone()));
                    messages.push(json!({"role": "tool", "tool_name": function["name"], "content": "12"}));
                }
                if said.calls.is_empty() {
                    messages.push(json!({"role": "user", "content": "and?"}));
                }
            }
            _ => {
                said.finish = text(&answer["status"]);
                let mut results = Vec::new();
                for item in answer["output"].as_array().unwrap() {
                    match item["type"].as_str().unwrap() {
                        "message" => said.text.push_str(item["content"][0]["text"].as_str().unwrap()),
                        "function_call" => {
                            said.calls.push((text(&item["name"]), parsed(&item["arguments"])));
                            let result =
                                json!({"type": "function_call_output", "call_id": item["call_id"], "output": "12"});
                            results.push(result);
                        }
                        _ => {}
                    }
                }
                let input = self.body["input"].as_array_mut().unwrap();
                input.extend(answer["output"].as_array().unwrap().clone());
                if results.is_empty() {
                    results.push(json!({"role": "user", "content": "and?"}));
                }
                input.extend(results);
            }
        }
        said
    }

    /// Says how many tokens an answer may have.
    pub(super) fn limit(&mut self, most: usize) {
        match self.path {
            RESPONSES => self.body["max_output_tokens"] = json!(most),
            OLLAMA => self.body["options"]["num_predict"] = json!(most),
            _ => self.body["max_tokens"] = json!(most),
        }
    }
}
