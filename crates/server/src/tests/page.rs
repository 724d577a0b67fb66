//! The page: three files, and nothing that a browser would fetch from elsewhere.

use super::*;
use crate::ApiKey;

#[tokio::test]
async fn the_page_is_whole_and_asks_nobody_else() {
    let app = loading(Options { api_keys: vec![ApiKey::new("a-key-of-some-length").unwrap()], ..Options::default() });
    for (path, kind) in [("/", "text/html"), ("/app.js", "text/javascript"), ("/app.css", "text/css")] {
        // Also while the model is loaded, and without a key: the page asks for it.
        let response = send(&app, request(Method::GET, path, "")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.headers()["content-type"].to_str().unwrap().starts_with(kind));
        assert!(response.headers()["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
        let text = String::from_utf8(bytes(response).await.to_vec()).unwrap();
        for elsewhere in ["http://", "https://", "//cdn", "@import", "innerHTML", "eval(", "onclick="] {
            assert!(!text.contains(elsewhere), "{path} has `{elsewhere}`");
        }
    }
}
