//! A pull: what a repository holds, what of it is wanted and missing, whether there is room, and then file by file.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::cache::{Cache, RepoCache};
use super::client::Client;
use super::disk::{Disk, RealDisk, open_lock};
use super::error::{HubError, disk_error};
use super::names::{self, ModelRef};
use super::progress::PullProgress;
use super::select::select;
use super::settings::Settings;
use super::store::{self, RemoteFile, Retries};
use crate::{output, units};

/// The file that says which model it is.
const CONFIG: &str = "config.json";

/// Looks at what says which model it is, before gigabytes of weights are fetched. The error is a reason in words.
pub(crate) trait Look {
    /// `config.json`, whole.
    fn config(&self, json: &[u8]) -> Result<(), String>;
    /// The first bytes of a GGUF file. `None` if more of them are needed.
    fn gguf(&self, first_bytes: Vec<u8>) -> Option<Result<(), String>>;
}

/// A GGUF file that is no larger is fetched and not looked at first.
const SMALL_FILE: u64 = 16 << 20;
/// How much of a GGUF file is read to find out what it is: a header has its vocabulary, of up to 20 MiB.
const FIRST_BYTES: [u64; 3] = [1 << 20, 8 << 20, 32 << 20];

/// Brings `model` at `revision` into the cache, telling on stderr what it does. Returns the folder of the checkpoint,
/// or the GGUF or other file that was asked for, as [`super::resolve`] gives it. What `look` refuses is not brought.
pub(crate) fn pull(
    settings: &Settings,
    model: &ModelRef,
    revision: &str,
    look: Option<&dyn Look>,
) -> Result<PathBuf, HubError> {
    names::check_revision(revision)?;
    let cache = Cache::new(&settings.cache);
    if settings.offline {
        let path = cache.resolve(model, Some(revision))?;
        let offline = || HubError::Offline { what: model.to_string(), cache: settings.cache.clone() };
        return path.ok_or_else(offline);
    }

    let disk = RealDisk;
    let repo = cache.repo(&model.repo);
    let client = Client::new(settings, Retries::DEFAULT)?;
    let listing = client.list(&model.repo, revision)?;
    let chosen = select(model.repo.as_str(), &listing.files, model.file.as_deref())?;
    let mut files = chosen
        .iter()
        .map(|file| client.describe(&model.repo, &listing.commit, file))
        .collect::<Result<Vec<RemoteFile>, HubError>>()?;
    // It says whether the others are of use.
    files.sort_by_key(|file| file.name != CONFIG);

    let lock_path = repo.repo_lock();
    let locks = lock_path.parent().unwrap_or(&lock_path);
    disk.create_dir_all(locks).map_err(disk_error("create", locks))?;
    let lock = open_lock(&lock_path)?;
    // Where locks are not supported, a removal at the same time is not kept out.
    let _ = lock.lock_shared();

    let Missing { total, missing, files: missing_files } = Missing::of(&repo, &files);
    output::note(&format!(
        "{} at {revision} ({}): {} file{}, {}; {} to download",
        model.repo,
        listing.commit.get(..10).unwrap_or(&listing.commit),
        files.len(),
        if files.len() == 1 { "" } else { "s" },
        units::bytes(total),
        if missing == 0 { "nothing".to_owned() } else { units::bytes(missing) },
    ));
    check_space(&disk, &settings.cache, missing)?;

    let refused =
        |file: &RemoteFile, why| HubError::NotComputed { repo: model.repo.to_string(), file: file.name.clone(), why };
    let mut looked = false;
    let progress = PullProgress::new(model.to_string(), missing_files, missing, settings.plain_progress);
    for file in &files {
        if !store::is_complete(&repo.blob(&file.etag), file) {
            // Parts of one model are alike.
            if let Some(look) = look.filter(|_| file.name.ends_with(".gguf") && !looked && file.size > SMALL_FILE) {
                looked = true;
                look_at_gguf(&client, model, &listing.commit, file, look).map_err(|why| refused(file, why))?;
            }
            progress.begin(&file.name);
            let mut source = |offset| client.read(&model.repo, &listing.commit, &file.name, offset);
            store::store_blob(&disk, &repo, file, &mut source, Retries::DEFAULT, &progress)?;
        }
        store::place(&disk, &repo, &listing.commit, file)?;
        if let Some(look) = look.filter(|_| file.name == CONFIG && files.len() > 1) {
            let blob = repo.blob(&file.etag);
            let json = fs::read(&blob).map_err(disk_error("read", &blob))?;
            look.config(&json).map_err(|why| refused(file, why))?;
        }
    }
    progress.done();
    if revision != listing.commit {
        store::write_ref(&disk, &repo, revision, &listing.commit)?;
    }
    let not_cached = || HubError::NotCached { what: model.to_string(), cache: settings.cache.clone() };
    cache.resolve(model, Some(revision))?.ok_or_else(not_cached)
}

/// Looks at the beginning of a GGUF file. What cannot be read of it is no reason to refuse: that is for the download to
/// say.
fn look_at_gguf(
    client: &Client,
    model: &ModelRef,
    commit: &str,
    file: &RemoteFile,
    look: &dyn Look,
) -> Result<(), String> {
    let Ok(mut body) = client.read(&model.repo, commit, &file.name, 0) else { return Ok(()) };
    let mut first_bytes = Vec::new();
    for len in FIRST_BYTES {
        let wanted = len.min(file.size) - first_bytes.len() as u64;
        if body.reader.by_ref().take(wanted).read_to_end(&mut first_bytes).is_err() {
            return Ok(());
        }
        if let Some(found) = look.gguf(first_bytes.clone()) {
            return found;
        }
    }
    Ok(())
}

/// What a pull has to do.
struct Missing {
    /// The bytes of all files.
    total: u64,
    /// Those that are not here yet.
    missing: u64,
    /// The files that are not complete.
    files: usize,
}

impl Missing {
    fn of(repo: &RepoCache, files: &[RemoteFile]) -> Self {
        let mut etags = Vec::new();
        let mut found = Self { total: 0, missing: 0, files: 0 };
        for file in files {
            if etags.contains(&&file.etag) {
                continue; // two names of one content
            }
            etags.push(&file.etag);
            found.total = found.total.saturating_add(file.size);
            if !store::is_complete(&repo.blob(&file.etag), file) {
                let here = fs::metadata(repo.incomplete(&file.etag)).map_or(0, |part| part.len());
                found.missing = found.missing.saturating_add(file.size.saturating_sub(here));
                found.files += 1;
            }
        }
        found
    }
}

/// Refuses a pull that cannot fit, before its first byte.
fn check_space(disk: &dyn Disk, cache: &Path, needed: u64) -> Result<(), HubError> {
    disk.create_dir_all(cache).map_err(disk_error("create", cache))?;
    match disk.available(cache) {
        Ok(free) if free < needed => Err(HubError::NoSpace { folder: cache.to_owned(), needed, free }),
        // A file system that does not say how much is free will say so when it is full.
        _ => Ok(()),
    }
}
