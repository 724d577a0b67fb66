//! `POST /slots/N?action=save|restore|erase`: beginnings of texts that outlive the server, as llama.cpp has them. What is in
//! the prefix cache of the last text of a slot goes into a file, whole blocks of it; from the file it comes back into the
//! cache, where any text that begins with these tokens finds it.
//!
//! A file holds what users wrote, so only its owner may read it. It counts for the same model on the same kind of device: the
//! numbers in it are that device's own. Its last 32 bytes are the SHA-256 of all others.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path as PathSegment, Request, State};
use axum::http::{StatusCode, header};
use axum::response::Response;
use engine::{BlockLayout, CacheDomain, PrefixId};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::app::{App, Serving};
use crate::body::read_json;
use crate::engine_thread::EngineHandle;
use crate::error::{ApiError, json_response};
use crate::fields::{Field, Fields, Notes, applied};
use crate::generation::{engine_gone, noted};
use crate::ids::random_id;
use crate::info::{asked_model, query};
use crate::security::KeyNumber;
use crate::slot_texts::SlotText;

/// The first bytes of a file.
const MAGIC: &[u8; 8] = b"HMSLOT1\n";
/// Of the SHA-256 of the model and its cache's layout, which comes next.
const DIGEST_BYTES: usize = 32;
/// Bytes of blocks that the engine copies between two steps, at least one block.
const COPIED_BYTES: usize = 8 << 20;
const NAME_BYTES_MAX: usize = 128;

const FIELDS: &[Field] = &[applied("filename")];

/// Saves, restores or erases what a slot holds.
pub(crate) async fn act(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    PathSegment(id): PathSegment<String>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let uri = request.uri().clone();
    let not_here = |message: &str| ApiError::refused(StatusCode::NOT_IMPLEMENTED, "no_slot_files", message);
    let Some(folder) = app.inner.options.slot_save_path.clone() else {
        return Err(not_here("slots are saved by a server that was started with --slot-save-path FOLDER"));
    };
    if app.inner.options.api_keys.len() > 1 {
        // A key could restore what another one's user wrote.
        return Err(not_here("slots are saved by a server that has one key, or none"));
    }
    let serving = app.serving(asked_model(&uri).as_deref())?;
    let count = serving.engine.config().max_sequences;
    let slot = id
        .parse()
        .ok()
        .filter(|&slot: &usize| slot < count)
        .ok_or_else(|| ApiError::invalid("id_slot", format!("there are the slots 0 to {}", count - 1)))?;
    let domain = CacheDomain(key);
    let action = query(&uri, "action").unwrap_or_default();
    if !["save", "restore", "erase"].contains(&action.as_str()) {
        return Err(ApiError::invalid("action", "`action` is save, restore or erase"));
    }
    let is_erased = action == "erase";
    // llama.cpp's clients send nothing with this one.
    let (name, notes) = match is_erased && !request.headers().contains_key(header::CONTENT_TYPE) {
        true => (None, Notes::default()),
        false => {
            let (body, _permit) = app.unless_stopped(read_json(request, &app, key)).await?;
            noted(&app, move || take_name(body)).await?
        }
    };
    let answer = match (is_erased, name) {
        (true, _) => erase(&serving, slot, domain).await,
        (false, None) => Err(ApiError::invalid("filename", "`filename` is missing")),
        (false, Some(name)) => copy(FileWork { serving, slot, domain, path: folder.join(&name), name }, action).await,
    };
    let mut answer = answer?;
    notes.attach(&mut answer);
    Ok(json_response(StatusCode::OK, &answer))
}

/// The name of the file in a body.
fn take_name(body: Value) -> Result<Option<String>, ApiError> {
    let mut fields = Fields::new(body, &[FIELDS])?;
    let name = fields.string("filename")?;
    fields.finish(&[FIELDS])?;
    name.as_deref().map(check_name).transpose()?;
    Ok(name)
}

/// Saves or restores. Whether its client waits or not, it is done to the end.
async fn copy(work: FileWork, action: String) -> Result<Value, ApiError> {
    let done = tokio::task::spawn_blocking(move || if action == "save" { work.save() } else { work.restore() });
    done.await.map_err(|_| ApiError::internal("internal", "copying a slot failed in a way that is a bug"))?
}

async fn erase(serving: &Serving, slot: usize, domain: CacheDomain) -> Result<Value, ApiError> {
    let text = serving.slots.text(slot, domain);
    let block_len = serving.engine.config().kv.block_len;
    let erased = match text {
        Some(SlotText { tokens, .. }) => {
            on_engine(&serving.engine, move |engine| engine.forget_prefix(domain, &tokens)).await?
        }
        None => 0,
    };
    serving.slots.forget(slot);
    Ok(json!({"id_slot": slot, "n_erased": erased * block_len}))
}

/// A name of a file in the folder, and nothing else.
fn check_name(name: &str) -> Result<(), ApiError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain) && !name.starts_with('.') {
        return Ok(());
    }
    let message = format!(
        "`filename` is 1 to {NAME_BYTES_MAX} letters, digits, dots, dashes and underscores, and begins with no dot: the \
         file lies in the folder of --slot-save-path"
    );
    Err(ApiError::invalid("filename", message))
}

/// What is done with a file.
struct FileWork {
    serving: Arc<Serving>,
    slot: usize,
    domain: CacheDomain,
    path: PathBuf,
    name: String,
}

impl FileWork {
    fn save(self) -> Result<Value, ApiError> {
        let begun = Instant::now();
        let (layout, digest) = self.identity()?;
        let text = self.serving.slots.text(self.slot, self.domain);
        let tokens = text.map(|text| text.tokens).unwrap_or_default();
        let looked_for = (self.domain, tokens.clone());
        let (id, count) = self.engine(move |engine| engine.hold_prefix(looked_for.0, &looked_for.1))?;
        let held = Held { work: &self, id };
        let kept = &tokens[..count * self.block_len()];
        // Nobody finds a part of a file.
        let partial = self.path.with_file_name(format!(".{}", random_id("slot")));
        let written = held.write(&partial, &layout, &digest, kept, count).and_then(|bytes| {
            std::fs::rename(&partial, &self.path).map_err(|error| self.failed("be written", &error))?;
            Ok(bytes)
        });
        let bytes = written.inspect_err(|_| {
            // What cannot be removed is told by the error that is there.
            let _ = std::fs::remove_file(&partial);
        })?;
        Ok(json!({
            "id_slot": self.slot, "filename": self.name, "n_saved": kept.len(), "n_written": bytes,
            "timings": {"save_ms": begun.elapsed().as_secs_f64() * 1e3},
        }))
    }

    fn restore(self) -> Result<Value, ApiError> {
        let begun = Instant::now();
        let (layout, digest) = self.identity()?;
        let file = open(&self.path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                ApiError::refused(StatusCode::NOT_FOUND, "no_such_file", format!("`{}` was never saved", self.name))
            }
            _ => self.failed("be opened", &error),
        })?;
        let total = file.metadata().map_err(|error| self.failed("be read", &error))?.len();
        let mut file = Hashed { inner: BufReader::with_capacity(1 << 20, file), hash: Sha256::new(), bytes: 0 };
        let mut head = [0; MAGIC.len() + DIGEST_BYTES + 8];
        let is_whole = file.read_exact(&mut head).is_ok();
        if !is_whole || head[..MAGIC.len()] != MAGIC[..] {
            return Err(self.unusable("it is no file of a slot"));
        }
        let (found, count) = head[MAGIC.len()..].split_at(DIGEST_BYTES);
        if found != digest {
            return Err(
                self.unusable("it was saved with another model, another device, or another format of the cache")
            );
        }
        let count = u64::from_le_bytes(count.try_into().unwrap_or_default());
        let block_bytes = (layout.bytes + self.block_len() * size_of::<u32>()) as u64;
        let expected =
            count.checked_mul(block_bytes).and_then(|bytes| bytes.checked_add((head.len() + DIGEST_BYTES) as u64));
        if expected != Some(total) {
            return Err(self.unusable("it is cut, or something stands behind it"));
        }
        let count = count as usize;
        let domain = self.domain;
        let Some(id) = self.engine(move |engine| engine.reserve_prefix(domain, count))? else {
            let message =
                format!("`{}` has {count} blocks, and the cache has no room for them; try again later", self.name);
            return Err(ApiError::unavailable("no_room", message));
        };
        let held = Held { work: &self, id };
        let tokens = held.read(&mut file, &layout, count)?;
        // Texts may find the blocks from here on, because the hash of the whole file was right.
        let kept = tokens.clone();
        self.engine(move |engine| engine.keep_prefix(id, &kept))?;
        let num_tokens = tokens.len();
        self.serving.slots.note(SlotText { slot: self.slot, domain, tokens });
        Ok(json!({
            "id_slot": self.slot, "filename": self.name, "n_restored": num_tokens, "n_read": total,
            "timings": {"restore_ms": begun.elapsed().as_secs_f64() * 1e3},
        }))
    }

    /// How blocks lie, and a hash of all that they depend on.
    fn identity(&self) -> Result<(BlockLayout, [u8; DIGEST_BYTES]), ApiError> {
        let layout = self.engine(|engine| engine.block_layout())?;
        let identity = self.serving.files.as_ref().and_then(|files| files.identity.clone());
        let (Some(layout), Some(identity)) = (layout, identity) else {
            let message = "this device gives no blocks of its cache out, or nobody says what the model is";
            return Err(ApiError::refused(StatusCode::NOT_IMPLEMENTED, "no_slot_files", message));
        };
        let mut hash = Sha256::new();
        hash.update(identity);
        hash.update([0]);
        hash.update(&layout.name);
        Ok((layout, hash.finalize().into()))
    }

    fn block_len(&self) -> usize {
        self.serving.engine.config().kv.block_len
    }

    /// Has the engine do something between two steps.
    fn engine<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut engine::Engine) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        tokio::runtime::Handle::current().block_on(on_engine(&self.serving.engine, work))
    }

    fn failed(&self, what: &str, error: &std::io::Error) -> ApiError {
        tracing::warn!(file = %self.path.display(), %error, "the file of a slot could not {what}");
        let message = format!("`{}` could not {what}: {error}", self.name);
        ApiError::refused(StatusCode::INTERNAL_SERVER_ERROR, "slot_file", message)
    }

    fn unusable(&self, why: &str) -> ApiError {
        ApiError::invalid("filename", format!("`{}` cannot be restored: {why}; save the slot again", self.name))
    }
}

/// Blocks of the cache that are let go of in any case.
struct Held<'a> {
    work: &'a FileWork,
    id: PrefixId,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let id = self.id;
        // Where the engine is gone, so are the blocks.
        let _ = self.work.engine(move |engine| engine.release_prefix(id));
    }
}

impl Held<'_> {
    /// Writes a file; returns its bytes.
    fn write(
        &self,
        path: &Path,
        layout: &BlockLayout,
        digest: &[u8],
        tokens: &[u32],
        count: usize,
    ) -> Result<u64, ApiError> {
        let work = self.work;
        let failed = |error: std::io::Error| work.failed("be written", &error);
        let file = BufWriter::with_capacity(1 << 20, create(path).map_err(failed)?);
        let mut file = Hashed { inner: file, hash: Sha256::new(), bytes: 0 };
        file.write(MAGIC).map_err(failed)?;
        file.write(digest).map_err(failed)?;
        file.write(&(count as u64).to_le_bytes()).map_err(failed)?;
        let written: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        file.write(&written).map_err(failed)?;
        let (id, at_once) = (self.id, blocks_at_once(layout));
        for first in (0..count).step_by(at_once) {
            let blocks = first..(first + at_once).min(count);
            let copied = work.engine(move |engine| {
                let mut bytes = Vec::new();
                blocks.into_iter().try_for_each(|index| engine.read_prefix(id, index, &mut bytes)).map(|()| bytes)
            })?;
            file.write(&copied.map_err(ApiError::from)?).map_err(failed)?;
        }
        let Hashed { inner: mut file, hash, bytes } = file;
        file.write_all(&hash.finalize()).map_err(failed)?;
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)?;
        Ok(bytes + DIGEST_BYTES as u64)
    }

    /// Reads the tokens of a file into a list and its blocks into the cache, and checks that all is as it was.
    fn read(
        &self,
        file: &mut Hashed<BufReader<File>>,
        layout: &BlockLayout,
        count: usize,
    ) -> Result<Vec<u32>, ApiError> {
        let work = self.work;
        let failed = |error: std::io::Error| work.failed("be read", &error);
        let mut bytes = vec![0; count * work.block_len() * size_of::<u32>()];
        file.read_exact(&mut bytes).map_err(failed)?;
        let ids = bytes.chunks_exact(size_of::<u32>()).filter_map(|id| id.try_into().ok());
        let tokens: Vec<u32> = ids.map(u32::from_le_bytes).collect();
        let (id, at_once, block_bytes) = (self.id, blocks_at_once(layout), layout.bytes);
        for first in (0..count).step_by(at_once) {
            let mut bytes = vec![0; (count - first).min(at_once) * block_bytes];
            file.read_exact(&mut bytes).map_err(failed)?;
            let written = work.engine(move |engine| {
                let mut blocks = bytes.chunks_exact(block_bytes).enumerate();
                blocks.try_for_each(|(index, block)| engine.write_prefix(id, first + index, block))
            })?;
            written.map_err(ApiError::from)?;
        }
        let found: [u8; DIGEST_BYTES] = file.hash.clone().finalize().into();
        let mut expected = [0; DIGEST_BYTES];
        file.inner.read_exact(&mut expected).map_err(failed)?;
        if found != expected {
            return Err(work.unusable("it is damaged"));
        }
        Ok(tokens)
    }
}

/// Blocks that are copied between two steps.
fn blocks_at_once(layout: &BlockLayout) -> usize {
    (COPIED_BYTES / layout.bytes.max(1)).max(1)
}

/// A file whose bytes are counted and hashed.
struct Hashed<F> {
    inner: F,
    hash: Sha256,
    bytes: u64,
}

impl<F: Write> Hashed<F> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.inner.write_all(bytes)
    }
}

impl<F: Read> Hashed<F> {
    fn read_exact(&mut self, bytes: &mut [u8]) -> std::io::Result<()> {
        self.inner.read_exact(bytes)?;
        self.hash.update(&*bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

/// A new file that only its owner may read; it is no link to another.
fn create(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// A file that is no link and no device.
fn open(path: &Path) -> std::io::Result<File> {
    let is_file = std::fs::symlink_metadata(path)?.is_file();
    if !is_file {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is no plain file"));
    }
    mapped::refuse_links(OpenOptions::new().read(true)).open(path)
}

async fn on_engine<T: Send + 'static>(
    engine: &EngineHandle,
    work: impl FnOnce(&mut engine::Engine) -> T + Send + 'static,
) -> Result<T, ApiError> {
    engine.between_steps(work).await.map_err(engine_gone)
}
