//! The page: its files, and nothing that a browser would fetch from elsewhere or run as HTML.

use std::fs;
use std::path::Path;

use super::*;
use crate::ApiKey;

#[tokio::test]
async fn the_page_is_whole_and_asks_nobody_else() {
    let app = loading(Options { api_keys: vec![ApiKey::new("a-key-of-some-length").unwrap()], ..Options::default() });
    let paths = std::iter::once("/").chain(crate::page::FILES.iter().map(|file| file.path));
    for path in paths {
        // Also while the model is loaded, and without a key: the page asks for it.
        let response = send(&app, request(Method::GET, path, "")).await;
        assert_eq!(response.status(), StatusCode::OK);
        let kind = match path.rsplit_once('.') {
            Some((_, "js")) => "text/javascript",
            Some((_, "css")) => "text/css",
            Some((_, "txt")) => "text/plain",
            _ => "text/html",
        };
        assert!(response.headers()["content-type"].to_str().unwrap().starts_with(kind));
        let policy = response.headers()["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'") && policy.contains("trusted-types 'none'"), "{policy}");
        // Libraries may have what the policy forbids: they have functions that the page does not call.
        if path.contains("/vendor/") {
            continue;
        }
        let text = String::from_utf8(bytes(response).await.to_vec()).unwrap();
        let text = text.replace("http://www.w3.org/1998/Math/MathML", "");
        let forbidden = ["http://", "https://", "//cdn", "@import", "innerHTML", "insertAdjacent", "eval(", "onclick="];
        for elsewhere in forbidden {
            assert!(!text.contains(elsewhere), "{path} has `{elsewhere}`");
        }
    }
}

#[tokio::test]
async fn a_browser_that_has_a_file_gets_it_no_second_time() {
    let app = loading(Options::default());
    let ask = |tag: &str| {
        let mut request = request(Method::GET, "/page/vendor/temml.js", "");
        request.headers_mut().insert("if-none-match", tag.parse().unwrap());
        request
    };
    let first = send(&app, ask("\"of another version\"")).await;
    assert_eq!(first.status(), StatusCode::OK);
    let tag = first.headers()["etag"].to_str().unwrap().to_owned();
    let second = send(&app, ask(&tag)).await;
    assert_eq!((second.status(), second.headers()["etag"].to_str().unwrap()), (StatusCode::NOT_MODIFIED, &*tag));
    assert!(bytes(second).await.is_empty());
}

#[tokio::test]
async fn a_server_can_be_without_the_page() {
    let app = loading(Options { has_page: false, ..Options::default() });
    for path in ["/", "/page/main.js", "/page/vendor/LICENSES.txt"] {
        assert_eq!(send(&app, request(Method::GET, path, "")).await.status(), StatusCode::NOT_FOUND, "{path}");
    }
    // Ollama's clients look there whether the server runs.
    let mut probe = request(Method::GET, "/", "");
    probe.headers_mut().insert("accept", "application/json".parse().unwrap());
    let response = send(&app, probe).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(String::from_utf8(bytes(response).await.to_vec()).unwrap().contains("Ollama"));
}

#[test]
fn every_file_of_the_folder_is_served() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/page");
    let names = |folder: &Path| -> Vec<String> {
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()).filter(|entry| entry.path().is_file());
        files.map(|entry| entry.file_name().into_string().unwrap()).collect()
    };
    let mut found: Vec<_> = names(&folder).iter().map(|name| format!("/page/{name}")).collect();
    found.extend(names(&folder.join("vendor")).iter().map(|name| format!("/page/vendor/{name}")));
    found.retain(|path| path != "/page/index.html");
    found.sort();
    let mut served: Vec<_> = crate::page::FILES.iter().map(|file| file.path.to_owned()).collect();
    served.sort();
    assert_eq!(served, found);
}
