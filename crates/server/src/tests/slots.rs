//! Beginnings of texts in files: they come back, also in another server, and what is wrong with a file is told.

use std::path::{Path, PathBuf};

use super::*;
use crate::ModelFiles;
use crate::options::ApiKey;

const COMPLETION: &str = "/completion";

/// A folder that is gone in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("hotmetal-slots-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn server(folder: &Path, identity: &str, options: Options) -> App {
    let app = loading(Options { slot_save_path: Some(folder.to_owned()), ..options });
    let files = ModelFiles {
        architecture: "null".to_owned(),
        parameters: 1,
        format: "F32".to_owned(),
        identity: Some(identity.to_owned()),
    };
    app.ready(ServedModel { files: Some(files), ..served(config(), None, chat_template()) }).unwrap();
    app
}

/// A text whose prompt has five blocks, in slot 2.
fn long() -> Value {
    let prompt: Vec<u32> = (10..53).collect();
    json!({"prompt": prompt, "n_predict": 8, "seed": 3, "ignore_eos": true, "id_slot": 2, "return_tokens": true})
}

async fn act(app: &App, slot: usize, action: &str, name: &str) -> (StatusCode, Value) {
    let path = format!("/slots/{slot}?action={action}");
    let (status, _, answer) = post(app, &path, &json!({"filename": name})).await;
    (status, answer)
}

#[tokio::test]
async fn what_is_saved_comes_back_in_another_server() {
    let folder = Folder::new("back");
    let first = server(&folder.0, "a", Options::default());
    let text = ok(&first, COMPLETION, &long()).await;
    assert_eq!((&text["id_slot"], &text["tokens_cached"]), (&json!(2), &json!(0)));
    let (status, saved) = act(&first, 2, "save", "chat_1.bin").await;
    assert_eq!(status, StatusCode::OK, "{saved}");
    // 51 tokens, of which the last is not computed: six blocks of 8.
    assert_eq!(
        (&saved["id_slot"], &saved["n_saved"], &saved["filename"]),
        (&json!(2), &json!(48), &json!("chat_1.bin"))
    );
    let path = folder.0.join("chat_1.bin");
    assert_eq!(saved["n_written"], std::fs::metadata(&path).unwrap().len());
    assert_eq!(folder.names(), ["chat_1.bin"]);
    #[cfg(unix)]
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions()) & 0o777,
        0o600
    );
    // It is written again, over the other.
    assert_eq!(act(&first, 2, "save", "chat_1.bin").await.0, StatusCode::OK);

    let second = server(&folder.0, "a", Options::default());
    let (status, restored) = act(&second, 5, "restore", "chat_1.bin").await;
    assert_eq!(
        (status, &restored["n_restored"], &restored["n_read"]),
        (StatusCode::OK, &json!(48), &saved["n_written"])
    );
    let again = ok(&second, COMPLETION, &long()).await;
    assert_eq!((&again["tokens"], &again["tokens_cached"]), (&text["tokens"], &json!(40)));
    // What was restored can be saved and erased as what ran there.
    assert_eq!(act(&second, 5, "save", "copy").await.1["n_saved"], 48);
    assert_eq!(std::fs::read(folder.0.join("copy")).unwrap(), std::fs::read(&path).unwrap());
    let (status, _, erased) = post(&second, "/slots/5?action=erase", &json!({})).await;
    assert_eq!((status, &erased["n_erased"]), (StatusCode::OK, &json!(48)));
    assert_eq!(ok(&second, COMPLETION, &long()).await["tokens_cached"], 0);
    assert_eq!(act(&second, 5, "save", "nothing").await.1["n_saved"], 0);
    assert_eq!(act(&second, 5, "restore", "nothing").await.1["n_restored"], 0);
    idle(&second).await;
}

#[tokio::test]
async fn conversations_are_saved_too_and_texts_with_a_salt_are_not() {
    let folder = Folder::new("chat");
    let app = server(&folder.0, "a", Options::default());
    let messages = json!([{"role": "user", "content": "Once upon a time, far away"}]);
    ok(&app, CHAT, &json!({"messages": messages, "max_tokens": 8, "id_slot": 1})).await;
    assert!(act(&app, 1, "save", "chat").await.1["n_saved"].as_u64() > Some(0));
    // Other interfaces know no slots.
    let answer = ok(&app, MESSAGES, &json!({"messages": messages, "max_tokens": 8, "id_slot": 1})).await;
    assert_eq!(answer["x_hotmetal"]["ignored"], json!(["id_slot"]));
    let mut salted = long();
    salted["cache_salt"] = json!("mine");
    ok(&app, COMPLETION, &salted).await;
    assert_eq!(act(&app, 2, "save", "salted").await.1["n_saved"], 0);
}

#[tokio::test]
async fn what_cannot_be_saved_or_restored_is_told() {
    let folder = Folder::new("refused");
    let app = server(&folder.0, "a", Options::default());
    let code = |(status, answer): (StatusCode, Value)| (status.as_u16(), answer["error"]["param"].clone());
    for name in ["../x", ".x", "", "a/b", "a b", &"x".repeat(129)] {
        for action in ["save", "restore"] {
            assert_eq!(code(act(&app, 0, action, name).await), (400, json!("filename")), "{name}");
        }
    }
    assert_eq!(code(act(&app, 9999, "save", "x").await), (400, json!("id_slot")));
    assert_eq!(code(act(&app, 0, "drop", "x").await), (400, json!("action")));
    for (action, body, param) in [
        ("save", json!({}), "filename"),
        ("restore", json!({"filename": null}), "filename"),
        ("erase", json!({"filename": 5}), "filename"),
    ] {
        let (status, _, answer) = post(&app, &format!("/slots/0?action={action}"), &body).await;
        assert_eq!(code((status, answer)), (400, json!(param)), "{action}");
    }
    let (_, _, told) = post(&app, "/slots/0?action=erase", &json!({"wibble": 1})).await;
    assert_eq!((&told["n_erased"], &told["x_hotmetal"]["ignored"]), (&json!(0), &json!(["wibble"])));
    // As llama.cpp's clients erase.
    let bare = Request::post("/slots/0?action=erase").header("host", "localhost").body(Body::empty()).unwrap();
    assert_eq!(send(&app, bare).await.status(), StatusCode::OK);
    assert_eq!(act(&app, 0, "restore", "absent").await.0, StatusCode::NOT_FOUND);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("/etc/hosts", folder.0.join("link")).unwrap();
        assert_eq!(act(&app, 0, "restore", "link").await.0, StatusCode::INTERNAL_SERVER_ERROR);
    }
    // Without a folder, and with several keys, one of which could read what another has.
    assert_eq!(act(&super::app(), 0, "save", "x").await.0, StatusCode::NOT_IMPLEMENTED);
    let keys = ["0123456789abcdef", "fedcba9876543210"];
    let api_keys = keys.iter().map(|key| ApiKey::new(key).unwrap()).collect();
    let several = server(&folder.0, "a", Options { api_keys, ..Options::default() });
    let mut request = request(Method::POST, "/slots/0?action=save", r#"{"filename": "x"}"#);
    request.headers_mut().insert("authorization", format!("Bearer {}", keys[0]).parse().unwrap());
    assert_eq!(send(&several, request).await.status(), StatusCode::NOT_IMPLEMENTED);

    // Files of another model, cut ones, longer ones, and damaged ones; then nothing of them is in the cache.
    ok(&app, COMPLETION, &long()).await;
    assert_eq!(act(&app, 2, "save", "good").await.0, StatusCode::OK);
    let good = std::fs::read(folder.0.join("good")).unwrap();
    let other = server(&folder.0, "b", Options::default());
    let (status, refusal) = act(&other, 0, "restore", "good").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(refusal["error"]["message"].as_str().unwrap().contains("another model"), "{refusal}");
    let fresh = server(&folder.0, "a", Options::default());
    let longer = [&good[..], &[0]].concat();
    let mut many = good.clone();
    many[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    let bad = [&good[..7], &good[..47], &good[..good.len() - 1], &longer, &many, b""];
    let flips = [0, 9, 50, good.len() / 2, good.len() - 1].map(flipped);
    for bytes in bad.into_iter().chain(flips.iter().map(Vec::as_slice)) {
        std::fs::write(folder.0.join("bad"), bytes).unwrap();
        assert_eq!(code(act(&fresh, 0, "restore", "bad").await), (400, json!("filename")));
    }
    idle(&fresh).await;
    assert_eq!(ok(&fresh, COMPLETION, &long()).await["tokens_cached"], 0);
    assert_eq!(act(&fresh, 0, "restore", "good").await.1["n_restored"], 48);
}

/// Texts run while a slot is copied, and a prefix that the cache has no room for waits for nobody.
#[tokio::test]
async fn texts_run_while_slots_are_copied() {
    let folder = Folder::new("load");
    let app = server(&folder.0, "a", Options::default());
    let expected = ok(&app, COMPLETION, &long()).await["tokens"].clone();
    let work = (0..24).map(|index| {
        let (app, expected) = (app.clone(), expected.clone());
        async move {
            match index % 3 {
                0 => assert_eq!(act(&app, 2, "save", "same").await.0, StatusCode::OK),
                1 => {
                    let (status, answer) = act(&app, 2, "restore", "same").await;
                    assert!([200, 404, 503].contains(&status.as_u16()), "{answer}");
                }
                _ => assert_eq!(ok(&app, COMPLETION, &long()).await["tokens"], expected),
            }
        }
    });
    let tasks: Vec<_> = work.map(tokio::spawn).collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(ok(&app, COMPLETION, &long()).await["tokens"], expected);
    idle(&app).await;
    assert_eq!(folder.names(), ["same"]);
}
