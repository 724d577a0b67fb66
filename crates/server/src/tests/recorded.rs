//! What programs that people use send to the routes of OpenAI's interface, as they send it. Those of Ollama's and of
//! llama.cpp's are in `ollama.rs`, `llama_cpp.rs` and `infill.rs`.

use serde_json::{Value, json};

use super::structure::{HERMES, app_with, weather};
use super::*;

#[tokio::test]
async fn recorded_requests_of_clients_are_answered() {
    let app = app_with(HERMES);
    let (system, user) = (json!({"role": "system", "content": "Be brief."}), json!({"role": "user", "content": "hi"}));
    let recorded = [
        // Open WebUI: a conversation, with an answer that comes back with what it was told of it, and a title.
        json!({"stream": true, "model": MODEL, "stream_options": {"include_usage": true}, "messages": [
            system, user, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "And you?"}]}),
        json!({"model": MODEL, "stream": false, "max_completion_tokens": 12,
            "messages": [{"role": "user", "content": "### Task:\nGenerate a concise title."}]}),
        json!({"stream": true, "model": MODEL, "temperature": 0.8, "top_p": 0.9, "frequency_penalty": 0, "seed": 42,
            "max_tokens": 12, "stop": ["###"], "reasoning_effort": "medium", "messages": [user]}),
        // Continue: a conversation with a tool, and an edit.
        json!({"model": MODEL, "max_tokens": 12, "stream": true, "stream_options": {"include_usage": true},
            "tools": weather(), "parallel_tool_calls": false, "messages": [system, user]}),
        json!({"model": MODEL, "max_tokens": 12, "temperature": 0.1, "stream": true, "stop": ["\n```"],
            "prediction": {"type": "content", "content": "def f():\n    pass"},
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Rewrite this."}]}]}),
        // Home Assistant's conversations with any server of this interface.
        json!({"model": MODEL, "max_tokens": 12, "top_p": 1, "temperature": 0.5, "user": "01JXYZ", "stream": true,
            "tools": weather(), "tool_choice": "auto", "messages": [system, user]}),
        // SillyTavern's conversations.
        json!({"type": "quiet", "messages": [system, user], "model": MODEL, "temperature": 1, "frequency_penalty": 0,
            "presence_penalty": 0, "top_p": 1, "max_tokens": 12, "stream": true, "stop": [], "seed": 7,
            "n": null, "logit_bias": {}, "chat_completion_source": "custom", "custom_prompt_post_processing": ""}),
    ];
    for mut body in recorded {
        let most = if body["max_completion_tokens"].is_null() { "max_tokens" } else { "max_completion_tokens" };
        body[most] = json!(12);
        let is_stream = body["stream"] == true;
        if !is_stream {
            let answer = ok(&app, CHAT, &body).await;
            assert!(answer["choices"][0]["message"]["content"].is_string(), "{body}: {answer}");
            assert!(answer["usage"]["completion_tokens"].as_u64() > Some(0), "{answer}");
            continue;
        }
        let events = stream(&app, CHAT, &body).await;
        let finishes: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["finish_reason"]).collect();
        assert!(finishes.iter().any(|finish| finish.is_string()), "{body}: {events:?}");
        let asks = body["stream_options"]["include_usage"] == true;
        assert_eq!(events.last().unwrap()["usage"]["completion_tokens"].is_u64(), asks, "{body}");
    }
}
