//! What a server is told at its start: who may ask, and how much.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use engine::Pooling;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokenizer::ParseSpecial;

/// Variables of a chat template that a conversation gives it anyway.
pub(crate) const FIXED_VARIABLES: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

/// Fewest bytes of a key that others may try to guess over a network: 128 bits, written in base64 or the like.
const KEY_BYTES_MIN: usize = 16;

/// Who may use the server, and the limits of a request.
#[derive(Clone, Debug)]
pub struct Options {
    /// Keys of which a request has to show one; none = nobody is asked.
    pub api_keys: Vec<ApiKey>,
    /// Names, besides localhost and IP addresses, that a request may give as its host.
    pub allowed_hosts: Vec<String>,
    /// Origins (`https://example.org`) whose pages may use the server from a browser.
    pub cors_origins: Vec<Origin>,
    /// Bytes of a body.
    pub body_bytes_max: usize,
    /// Bytes of memory for all requests that are received, read, rendered and encoded at a time.
    pub prepare_bytes_max: usize,
    /// Time that a request waits for such memory.
    pub prepare_time_max: Duration,
    /// Time for a request's headers, and for its body.
    pub header_time_max: Duration,
    /// Time for a request's body.
    pub body_time_max: Duration,
    /// Time for an answer, from the end of the body to its last token.
    pub request_time_max: Duration,
    /// Time for a step of the engine: one that takes longer is taken to be stuck, which ends the server.
    pub step_time_max: Duration,
    /// Time between two checks, without work, that the memory of the weights holds what it held; `None` for no check.
    pub weight_check_pause: Option<Duration>,
    /// Time that a reader of a stream may not read.
    pub stall_time_max: Duration,
    /// Connections at a time.
    pub connections_max: usize,
    /// Time for requests to end after a shutdown was asked for.
    pub drain_time_max: Duration,
    /// Refuse fields that no route lists, which are else taken without effect and reported.
    pub strict_fields: bool,
    /// Refuse requests that name another model than the served one, where there is one alone; else that model answers.
    pub strict_model: bool,
    /// Describe tools in the system message where the model's chat template shows none; else they are refused there.
    pub generic_tools: bool,
    /// Variables of chat templates where a request's `chat_template_kwargs` does not set them; a template that does not read
    /// one is not given it.
    pub template_defaults: Map<String, Value>,
    /// The seed of requests that give none; `None` draws one for each.
    pub seed: Option<u64>,
    /// How vectors of texts are pooled where a request does not say it; `None` does as the model's files say.
    pub pooling: Option<Pooling>,
    /// Whether a text goes on where its context is full, without half of its older tokens, and which of them stay.
    pub context_shift: Option<Keep>,
    /// Tokens of a text at most, and of one whose request sets no limit; `None` leaves it to requests and the context.
    pub max_tokens: Option<usize>,
    /// Whether there is a page at `/`.
    pub has_page: bool,
    /// Whether `/slots` shows how many texts run.
    pub has_slots: bool,
    /// The folder that slots are saved to and restored from, if they may be.
    pub slot_save_path: Option<PathBuf>,
    /// Whether special tokens are read in messages of a conversation. If they are, a user can end a message and add others
    /// in any role.
    pub special_in_messages: ParseSpecial,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            api_keys: Vec::new(),
            allowed_hosts: Vec::new(),
            cors_origins: Vec::new(),
            body_bytes_max: 8 << 20,
            prepare_bytes_max: 1 << 30,
            prepare_time_max: Duration::from_secs(5),
            header_time_max: Duration::from_secs(10),
            body_time_max: Duration::from_secs(60),
            request_time_max: Duration::from_secs(3600),
            step_time_max: Duration::from_secs(600),
            weight_check_pause: Some(Duration::from_secs(600)),
            stall_time_max: Duration::from_secs(30),
            connections_max: 1024,
            drain_time_max: Duration::from_secs(30),
            strict_fields: false,
            strict_model: false,
            generic_tools: true,
            template_defaults: Map::new(),
            seed: None,
            pooling: None,
            context_shift: None,
            max_tokens: None,
            has_page: true,
            has_slots: true,
            slot_save_path: None,
            special_in_messages: ParseSpecial::No,
        }
    }
}

/// Which tokens of a prompt stay where a context is shifted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// So many at the beginning, besides the token that begins every text.
    First(usize),
    /// All of them.
    Prompt,
}

impl Keep {
    /// llama.cpp's `n_keep`, where -1 is the prompt.
    pub fn of(count: i64) -> Self {
        usize::try_from(count).map_or(Self::Prompt, Self::First)
    }

    /// How many tokens of this prompt stay, in a vocabulary whose texts begin with `bos`.
    pub(crate) fn tokens_of(self, prompt: &[u32], bos: Option<u32>) -> usize {
        match self {
            Self::First(count) => {
                let begins = bos.is_some() && prompt.first().copied() == bos;
                count.saturating_add(usize::from(begins)).min(prompt.len())
            }
            Self::Prompt => prompt.len(),
        }
    }
}

/// Why a server cannot start with these options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// Anybody on the network could use the server.
    #[error(
        "{address} can be reached from the network, and no key protects it: give one with --api-key-file FILE or \
         HOTMETAL_API_KEY, bind 127.0.0.1, or say --no-auth if everybody may use it"
    )]
    Unprotected {
        /// The address.
        address: SocketAddr,
    },
    /// A key that can be guessed.
    #[error(
        "{address} can be reached from the network, and a key of --api-key, --api-key-file or HOTMETAL_API_KEY has \
         {found} bytes: it needs at least {KEY_BYTES_MIN} there (`openssl rand -hex 16` makes one)"
    )]
    ShortKey {
        /// The address.
        address: SocketAddr,
        /// Its length.
        found: usize,
    },
    /// A key that everybody has.
    #[error("an API key is empty: `openssl rand -hex 16` makes one")]
    EmptyKey,
    /// What is no origin of a page.
    #[error(
        "`{found}` is no origin: expected `*`, or a scheme, host and port such as https://example.org:8443, without a path"
    )]
    BadOrigin {
        /// The text that was to be read.
        found: String,
    },
    /// What sets no variables of a chat template.
    #[error("`{found}` sets no variables of a chat template: {reason}")]
    BadTemplateDefaults {
        /// The text that was to be read.
        found: String,
        /// Why it sets none.
        reason: String,
    },
    /// A key that cannot stand in a header.
    #[error("an API key may hold only visible ASCII characters, because it has to stand in a header")]
    UnusableKey,
}

impl Options {
    /// [`Options::template_defaults`] of a JSON object such as `{"enable_thinking": false}`.
    pub fn read_template_defaults(text: &str) -> Result<Map<String, Value>, OptionsError> {
        let bad = |reason: String| OptionsError::BadTemplateDefaults { found: text.to_owned(), reason };
        let defaults: Map<String, Value> = serde_json::from_str(text).map_err(|error| {
            bad(format!("expected an object in JSON such as {{\"enable_thinking\": false}} ({error})"))
        })?;
        match defaults.keys().find(|name| FIXED_VARIABLES.contains(&name.as_str())) {
            Some(name) => Err(bad(format!("a request says what `{name}` is"))),
            None => Ok(defaults),
        }
    }

    /// Whether a server with these options may listen on `address`.
    pub fn check_address(&self, address: SocketAddr, no_auth: bool) -> Result<(), OptionsError> {
        // An IPv4 address in IPv6's clothes is that address.
        let ip = match address.ip() {
            IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4),
            ip => ip,
        };
        match self.short_key() {
            _ if ip.is_loopback() => Ok(()),
            Some(found) => Err(OptionsError::ShortKey { address, found }),
            None if self.api_keys.is_empty() && !no_auth => Err(OptionsError::Unprotected { address }),
            None => Ok(()),
        }
    }

    /// The bytes of the shortest key, if it can be guessed.
    pub fn short_key(&self) -> Option<usize> {
        self.api_keys.iter().map(|key| key.bytes).min().filter(|&bytes| bytes < KEY_BYTES_MIN)
    }

    /// The number of the key that was shown, counted from 1; 0 where none is asked for, nothing if it is wrong.
    pub(crate) fn authenticate(&self, shown: Option<&str>) -> Option<u64> {
        if self.api_keys.is_empty() {
            return Some(0);
        }
        let shown = Sha256::digest(shown?.as_bytes());
        let mut number = None;
        // Every key is compared, whichever it is.
        for (index, key) in (1..).zip(&self.api_keys) {
            if bool::from(key.digest.ct_eq(&shown[..])) {
                number = Some(index);
            }
        }
        number
    }
}

/// Pages that may use the server from a browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// All.
    Any,
    /// Those of this origin, as browsers write it: `https://example.org:8443`.
    Exactly(String),
    /// Those of this host and port, by either scheme.
    Host(String),
    /// Those that this machine serves, on any port and by either scheme.
    Local,
}

impl Origin {
    pub(crate) fn admits(&self, origin: &[u8]) -> bool {
        let Ok(origin) = str::from_utf8(origin) else { return *self == Self::Any };
        let is_same = |listed: &str| without_usual_port(listed).eq_ignore_ascii_case(without_usual_port(origin));
        match self {
            Self::Any => true,
            Self::Exactly(listed) => is_same(listed),
            Self::Local => {
                ["http://", "https://"].iter().any(|scheme| origin.strip_prefix(scheme).is_some_and(is_local))
            }
            Self::Host(listed) => ["http", "https"].iter().any(|scheme| is_same(&format!("{scheme}://{listed}"))),
        }
    }
}

/// Whether a host, with its port or without, is this machine.
fn is_local(host: &str) -> bool {
    let is_port =
        |rest: &str| rest.is_empty() || rest.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    ["localhost", "127.0.0.1", "[::1]"].into_iter().any(|name| host.strip_prefix(name).is_some_and(is_port))
}

/// An origin as browsers write it: without the port that its scheme has anyway.
fn without_usual_port(origin: &str) -> &str {
    let usual = [("http://", ":80"), ("https://", ":443")];
    let is_of_scheme =
        |scheme: &str| origin.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme));
    let port = usual.iter().find(|(scheme, _)| is_of_scheme(scheme)).map(|(_, port)| *port);
    port.and_then(|port| origin.strip_suffix(port)).unwrap_or(origin)
}

impl std::str::FromStr for Origin {
    type Err = OptionsError;

    /// `*`, `localhost` for all ports of this machine, an origin with or without its scheme, with or without a slash
    /// behind it, or `null`, which pages in files have.
    fn from_str(text: &str) -> Result<Self, OptionsError> {
        let bad = || OptionsError::BadOrigin { found: text.to_owned() };
        let origin = text.trim().trim_end_matches('/');
        if origin == "*" {
            return Ok(Self::Any);
        }
        if origin.eq_ignore_ascii_case("localhost") {
            return Ok(Self::Local);
        }
        let (scheme, host) = origin.split_once("://").map_or((None, origin), |(scheme, host)| (Some(scheme), host));
        let name =
            host.rsplit_once(':').map_or(host, |(name, port)| if port.parse::<u16>().is_ok() { name } else { host });
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
        let is_scheme =
            |scheme: &str| !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        let has_colon = name.contains(':') && !name.starts_with('[');
        if name.is_empty() || has_colon || !host.chars().all(is_name) || !scheme.is_none_or(is_scheme) {
            return Err(bad());
        }
        Ok(match scheme {
            None if origin == "null" => Self::Exactly(origin.to_owned()),
            None => Self::Host(host.to_owned()),
            Some(_) => Self::Exactly(origin.to_owned()),
        })
    }
}

/// A key, as its digest: memory that is dumped or printed does not show it.
#[derive(Clone)]
pub struct ApiKey {
    digest: [u8; 32],
    bytes: usize,
}

impl ApiKey {
    /// A key of visible ASCII characters: at least 16, unless the server listens on a loopback address.
    pub fn new(key: &str) -> Result<Self, OptionsError> {
        if key.is_empty() {
            return Err(OptionsError::EmptyKey);
        }
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(OptionsError::UnusableKey);
        }
        Ok(Self { digest: Sha256::digest(key.as_bytes()).into(), bytes: key.len() })
    }
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_loopback_address_goes_without_a_key() {
        let open = Options::default();
        let with_keys = |keys: &[&str]| {
            let api_keys = keys.iter().map(|key| ApiKey::new(key).unwrap()).collect();
            Options { api_keys, ..Options::default() }
        };
        let with_key = with_keys(&["0123456789abcdef"]);
        let with_short_key = with_keys(&["0123456789abcdef", "0123456789abcde"]);
        assert_eq!((open.short_key(), with_key.short_key(), with_short_key.short_key()), (None, None, Some(15)));
        let loopback = ["127.0.0.1:8080", "127.0.0.2:1", "127.255.255.255:0", "[::1]:8080", "[::ffff:127.0.0.1]:80"];
        let public = [
            "0.0.0.0:8080",
            "[::]:8080",
            "192.168.1.7:80",
            "10.0.0.1:80",
            "[fe80::1]:80",
            "[::ffff:10.0.0.1]:80",
            "8.8.8.8:443",
        ];
        for address in loopback {
            open.check_address(address.parse().unwrap(), false).unwrap();
            with_short_key.check_address(address.parse().unwrap(), false).unwrap();
        }
        for address in public {
            let address = address.parse().unwrap();
            let refused = open.check_address(address, false).unwrap_err();
            assert!(refused.to_string().contains("--no-auth"), "{refused}");
            open.check_address(address, true).unwrap();
            with_key.check_address(address, false).unwrap();
            // Who asks for a key does not mean everybody.
            for no_auth in [false, true] {
                let refused = with_short_key.check_address(address, no_auth).unwrap_err();
                assert_eq!(refused, OptionsError::ShortKey { address, found: 15 });
            }
        }
    }

    #[test]
    fn origins_are_taken_as_people_write_them_or_refused() {
        let admits = |listed: &str, origin: &str| listed.parse::<Origin>().unwrap().admits(origin.as_bytes());
        for (listed, origin, expected) in [
            ("*", "https://any.example", true),
            ("https://app.example/", "https://app.example", true),
            ("https://App.example", "https://app.example", true),
            ("https://app.example", "http://app.example", false),
            ("localhost", "http://localhost", true),
            ("localhost", "https://localhost:8080", true),
            ("localhost", "http://127.0.0.1:3000", true),
            ("localhost", "http://[::1]", true),
            ("localhost", "http://[::1]:3000", true),
            ("localhost", "http://localhost.evil.com", false),
            ("localhost", "http://localhost:80.evil.com", false),
            ("localhost", "http://localhost8080.evil.com", false),
            ("localhost", "http://localhost8080", false),
            ("localhost", "http://notlocalhost", false),
            ("localhost", "http://127.0.0.1.evil.com", false),
            ("localhost", "http://127.0.0.12", false),
            ("localhost", "null", false),
            ("localhost", "ftp://localhost", false),
            ("localhost:3000", "http://localhost:3000", true),
            ("localhost:3000", "https://localhost:3000", true),
            ("localhost:3000", "http://localhost:3001", false),
            ("app.example", "https://app.example.evil", false),
            // Browsers leave out the port that a scheme has anyway.
            ("https://app.example:443", "https://app.example", true),
            ("HTTP://app.example:80/", "http://app.example", true),
            ("app.example:443", "https://app.example", true),
            ("app.example:443", "http://app.example", false),
            ("https://app.example:80", "https://app.example", false),
            ("http://[::80]", "http://[::80]", true),
            ("null", "null", true),
            ("app://obsidian.md", "app://obsidian.md", true),
            ("http://[::1]:3000", "http://[::1]:3000", true),
        ] {
            assert_eq!(admits(listed, origin), expected, "{listed} {origin}");
        }
        for bad in
            ["", "/", "https://", "https://a.example/page", "a b", "http://a.example?x", "://a", "https://*.example"]
        {
            assert!(bad.parse::<Origin>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_key_is_its_digest_and_tells_nothing() {
        let keys = ["0123456789abcdef", "fedcba9876543210"];
        let api_keys: Vec<ApiKey> = keys.iter().map(|key| ApiKey::new(key).unwrap()).collect();
        assert_eq!(format!("{api_keys:?}"), "[ApiKey(..), ApiKey(..)]");
        let options = Options { api_keys, ..Options::default() };
        assert_eq!(options.authenticate(Some(keys[0])), Some(1));
        assert_eq!(options.authenticate(Some(keys[1])), Some(2));
        for wrong in [None, Some(""), Some("0123456789abcdeF"), Some("0123456789abcdef ")] {
            assert_eq!(options.authenticate(wrong), None);
        }
        assert_eq!(Options::default().authenticate(None), Some(0));
        assert_eq!(ApiKey::new("").unwrap_err(), OptionsError::EmptyKey);
        assert_eq!(ApiKey::new("0123456789abcde\n").unwrap_err(), OptionsError::UnusableKey);
    }
}
