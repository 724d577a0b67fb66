//! A pull: what a repository holds, what of it is wanted and missing, whether there is room, and then file by file.

use std::fs;
use std::path::{Path, PathBuf};

use super::cache::{Cache, RepoCache};
use super::client::Client;
use super::disk::{Disk, RealDisk};
use super::names::{self, ModelRef};
use super::progress::FileProgress;
use super::settings::Settings;
use super::store::{self, RemoteFile, Retries, disk_error};
use super::{HubError, select};
use crate::{output, units};

/// Brings `model` at `revision` into the cache, telling on stderr what it does. Returns the folder of the checkpoint, or
/// the GGUF or other file that was asked for, as [`super::resolve`] gives it.
pub(crate) fn pull(settings: &Settings, model: &ModelRef, revision: &str) -> Result<PathBuf, HubError> {
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
    let files = chosen
        .iter()
        .map(|file| client.describe(&model.repo, &listing.commit, file))
        .collect::<Result<Vec<RemoteFile>, HubError>>()?;

    let lock_path = repo.repo_lock();
    let locks = lock_path.parent().unwrap_or(&lock_path);
    disk.create_dir_all(locks).map_err(disk_error("create", locks))?;
    let lock = store::open_lock(&lock_path)?;
    // Where locks are not supported, a removal at the same time is not kept out.
    let _ = lock.lock_shared();

    let (total, missing) = bytes_missing(&repo, &files);
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

    for file in &files {
        if !store::is_complete(&repo.blob(&file.etag), file) {
            let progress = FileProgress::new(&file.name, file.size, settings.plain_progress);
            let mut source = |offset| client.read(&model.repo, &listing.commit, &file.name, offset);
            store::store_blob(&disk, &repo, file, &mut source, Retries::DEFAULT, &progress)?;
            progress.done(file.size);
        }
        store::place(&disk, &repo, &listing.commit, file)?;
    }
    if revision != listing.commit {
        store::write_ref(&disk, &repo, revision, &listing.commit)?;
    }
    let not_cached = || HubError::NotCached { what: model.to_string(), cache: settings.cache.clone() };
    cache.resolve(model, Some(revision))?.ok_or_else(not_cached)
}

/// The bytes of all files, and those that are not here yet.
fn bytes_missing(repo: &RepoCache, files: &[RemoteFile]) -> (u64, u64) {
    let mut etags = Vec::new();
    let (mut total, mut missing) = (0_u64, 0_u64);
    for file in files {
        if etags.contains(&&file.etag) {
            continue; // two names of one content
        }
        etags.push(&file.etag);
        total = total.saturating_add(file.size);
        if !store::is_complete(&repo.blob(&file.etag), file) {
            let here = fs::metadata(repo.incomplete(&file.etag)).map_or(0, |part| part.len());
            missing = missing.saturating_add(file.size.saturating_sub(here));
        }
    }
    (total, missing)
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
