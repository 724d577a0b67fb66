//! The cache on disk, as `huggingface_hub` lays it out:
//!
//! ```text
//! <cache>/models--org--repo/
//!   blobs/<etag>                    the files, named by their SHA-256 or git SHA-1
//!   blobs/<etag>.incomplete         what has arrived of a file so far
//!   refs/main                       the commit that a branch or tag was at when it was pulled
//!   snapshots/<commit>/<file>       symbolic links to blobs, under the files' names
//! <cache>/.locks/models--org--repo/<etag>.lock
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::checksum::is_sound;
use super::disk::open_lock;
use super::error::{HubError, disk_error};
use super::names::{self, ModelRef, RepoId};
use super::select::select;

/// How deep folders inside a snapshot are followed.
const DEPTH_MAX: usize = 8;

/// The folder of all models.
#[derive(Debug)]
pub(crate) struct Cache {
    root: PathBuf,
}

impl Cache {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn repo(&self, id: &RepoId) -> RepoCache {
        let folder = id.folder();
        RepoCache { locks: self.root.join(".locks").join(&folder), root: self.root.join(&folder) }
    }

    /// See [`super::resolve`]. `revision` is `main` if not given; a repository that was only ever pulled at one other
    /// revision is found by that.
    pub(crate) fn resolve(&self, model: &ModelRef, revision: Option<&str>) -> Result<Option<PathBuf>, HubError> {
        let repo = self.repo(&model.repo);
        let commit = match revision {
            Some(revision) => repo.commit(revision),
            None => repo.commit("main").or_else(|| <[String; 1]>::try_from(repo.commits()).ok().map(|[only]| only)),
        };
        let Some(commit) = commit else { return Ok(None) };
        let files: Vec<String> = repo.files(&commit).into_iter().map(|file| file.name).collect();
        let chosen = match select(model.repo.as_str(), &files, model.file.as_deref()) {
            Ok(chosen) => chosen,
            // Nothing, or something else than what was asked for, was pulled so far.
            Err(HubError::NoWeights { .. } | HubError::NoSuchFile { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let is_checkpoint = model.file.is_none() && chosen.iter().any(|file| file.ends_with(".safetensors"));
        Ok(match chosen.first() {
            _ if is_checkpoint => Some(repo.snapshot(&commit)),
            Some(first) => Some(repo.pointer(&commit, first)),
            None => None,
        })
    }

    /// All repositories of models, by name. What is not laid out as expected is passed over.
    pub(crate) fn repos(&self) -> Result<Vec<CachedRepo>, HubError> {
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(disk_error("read", &self.root)(error)),
        };
        let mut repos: Vec<CachedRepo> = entries
            .filter_map(|entry| RepoId::from_folder(entry.ok()?.file_name().to_str()?))
            .filter(|id| self.repo(id).root.is_dir())
            .map(|id| self.repo(&id).describe(id))
            .collect();
        repos.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(repos)
    }

    /// Reads every file of every model, and tells `found` of each whether it has the content that its name promises:
    /// nothing of one whose name is no checksum.
    pub(crate) fn verify(
        &self,
        mut found: impl FnMut(&RepoId, &CachedFile, std::io::Result<Option<bool>>),
    ) -> Result<(), HubError> {
        for repo in self.repos()? {
            let mut seen = std::collections::BTreeSet::new();
            for file in repo.revisions.iter().flat_map(|revision| &revision.files) {
                if seen.insert(&file.content) {
                    found(&repo.id, file, is_sound(&file.content));
                }
            }
        }
        Ok(())
    }

    /// Removes a repository, one revision of it, or the files that `model` names in every revision, and the blobs that
    /// nothing shows any more. Returns the bytes freed.
    pub(crate) fn remove(&self, model: &ModelRef, revision: Option<&str>) -> Result<u64, HubError> {
        let repo = self.repo(&model.repo);
        let not_cached = || HubError::NotCached { what: model.to_string(), cache: self.root.clone() };
        if !repo.root.is_dir() {
            return Err(not_cached());
        }
        let busy = || HubError::Busy { repo: model.repo.to_string() };
        fs::create_dir_all(&repo.locks).map_err(disk_error("create", &repo.locks))?;
        let lock = open_lock(&repo.repo_lock())?;
        if matches!(lock.try_lock(), Err(fs::TryLockError::WouldBlock)) {
            return Err(busy());
        }
        let before = repo.size();
        match (&model.file, revision) {
            (None, None) => {
                // Names first: a removal that is cut off leaves no name that leads to half a model.
                for part in ["refs", "snapshots", "blobs"] {
                    remove_dir(&repo.root.join(part))?;
                }
                remove_dir(&repo.root)?;
                let _ = fs::remove_dir_all(&repo.locks); // empty files, one of which this process still holds
                return Ok(before);
            }
            (None, Some(revision)) => {
                let commit = repo.commit(revision).ok_or_else(not_cached)?;
                for reference in repo.references().into_iter().filter(|r| r.commit == commit) {
                    let path = repo.reference(&reference.revision);
                    fs::remove_file(&path).map_err(disk_error("remove", &path))?;
                }
                remove_dir(&repo.snapshot(&commit))?;
            }
            (Some(wanted), _) => {
                let commits = match revision {
                    Some(revision) => vec![repo.commit(revision).ok_or_else(not_cached)?],
                    None => repo.commits(),
                };
                let mut removed = false;
                for commit in commits {
                    let files: Vec<String> = repo.files(&commit).into_iter().map(|file| file.name).collect();
                    let chosen = match select(model.repo.as_str(), &files, Some(wanted)) {
                        Err(HubError::NoSuchFile { .. }) => continue,
                        chosen => chosen?,
                    };
                    for name in chosen {
                        let path = repo.pointer(&commit, &name);
                        fs::remove_file(&path).map_err(disk_error("remove", &path))?;
                        removed = true;
                    }
                }
                if !removed {
                    return Err(not_cached());
                }
            }
        }
        repo.remove_unshown_blobs()?;
        Ok(before.saturating_sub(repo.size()))
    }
}

/// The folder of one repository, and the paths in it. Names must have been checked.
#[derive(Debug)]
pub(super) struct RepoCache {
    root: PathBuf,
    locks: PathBuf,
}

impl RepoCache {
    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.root.join("blobs").join(etag)
    }

    pub(super) fn incomplete(&self, etag: &str) -> PathBuf {
        self.root.join("blobs").join(format!("{etag}.incomplete"))
    }

    pub(super) fn lock(&self, etag: &str) -> PathBuf {
        self.locks.join(format!("{etag}.lock"))
    }

    /// Held shared by a pull and exclusively by a removal.
    pub(super) fn repo_lock(&self) -> PathBuf {
        self.locks.join("hotmetal.lock")
    }

    pub(super) fn reference(&self, revision: &str) -> PathBuf {
        self.root.join("refs").join(names::to_path(revision))
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    pub(super) fn pointer(&self, commit: &str, file: &str) -> PathBuf {
        self.snapshot(commit).join(names::to_path(file))
    }

    /// The commit of a branch or tag as of the last pull, or of a commit itself, if there is a snapshot of it.
    pub(super) fn commit(&self, revision: &str) -> Option<String> {
        names::check_revision(revision).ok()?;
        let commit = match fs::read_to_string(self.reference(revision)) {
            Ok(commit) => commit.trim().to_owned(),
            Err(_) => revision.to_owned(),
        };
        (names::is_plain_component(&commit) && self.snapshot(&commit).is_dir()).then_some(commit)
    }

    /// The commits that have a snapshot, sorted.
    fn commits(&self) -> Vec<String> {
        let mut commits: Vec<String> = sub_paths(&self.root.join("snapshots"))
            .filter(|path| path.is_dir())
            .filter_map(|path| path.file_name()?.to_str().map(str::to_owned))
            .collect();
        commits.sort();
        commits
    }

    fn references(&self) -> Vec<Reference> {
        let mut names = Vec::new();
        walk(&self.root.join("refs"), "", 0, &mut names);
        let read = |name: String| {
            let commit = fs::read_to_string(self.reference(&name)).ok()?;
            Some(Reference { revision: name, commit: commit.trim().to_owned() })
        };
        names.into_iter().filter_map(read).collect()
    }

    /// The files of a snapshot whose content is there, sorted by name.
    pub(super) fn files(&self, commit: &str) -> Vec<CachedFile> {
        let snapshot = self.snapshot(commit);
        let mut names = Vec::new();
        walk(&snapshot, "", 0, &mut names);
        let describe = |name: String| {
            let path = snapshot.join(names::to_path(&name));
            let content = fs::canonicalize(&path).ok()?;
            let metadata = fs::metadata(&content).ok().filter(fs::Metadata::is_file)?;
            let last_used = metadata.accessed().or_else(|_| metadata.modified()).ok();
            Some(CachedFile { name, content, size: metadata.len(), last_used })
        };
        let mut files: Vec<CachedFile> = names.into_iter().filter_map(describe).collect();
        files.sort_by(|a, b| a.name.cmp(&b.name));
        files
    }

    fn describe(&self, id: RepoId) -> CachedRepo {
        let mut references: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for reference in self.references() {
            references.entry(reference.commit).or_default().push(reference.revision);
        }
        let revision = |commit: String| {
            let files = self.files(&commit);
            CachedRevision { revisions: references.remove(&commit).unwrap_or_default(), files, commit }
        };
        let revisions: Vec<CachedRevision> = self.commits().into_iter().map(revision).collect();
        let incomplete_bytes = sub_paths(&self.root.join("blobs"))
            .filter(|path| path.extension().is_some_and(|ending| ending == "incomplete"))
            .filter_map(|path| Some(fs::metadata(path).ok()?.len()))
            .sum();
        CachedRepo { id, path: self.root.clone(), revisions, incomplete_bytes }
    }

    /// Bytes of blobs, and of files in snapshots that are no links to them. A hard link counts twice.
    fn size(&self) -> u64 {
        let mut names = Vec::new();
        walk(&self.root, "", 0, &mut names);
        let bytes = |name: String| {
            fs::symlink_metadata(self.root.join(name)).map_or(0, |m| if m.is_file() { m.len() } else { 0 })
        };
        names.into_iter().map(bytes).sum()
    }

    /// Removes blobs that no snapshot shows. Unfinished ones stay: the next pull resumes them.
    fn remove_unshown_blobs(&self) -> Result<(), HubError> {
        let shown: Vec<PathBuf> =
            self.commits().iter().flat_map(|commit| self.files(commit)).map(|file| file.content).collect();
        for path in sub_paths(&self.root.join("blobs")) {
            let is_shown = fs::canonicalize(&path).is_ok_and(|blob| shown.contains(&blob));
            if !is_shown && path.extension().is_none_or(|ending| ending != "incomplete") {
                fs::remove_file(&path).map_err(disk_error("remove", &path))?;
            }
        }
        Ok(())
    }
}

/// A branch or tag, and the commit it was at.
struct Reference {
    revision: String,
    commit: String,
}

/// A repository in the cache.
#[derive(Debug)]
pub(crate) struct CachedRepo {
    pub(crate) id: RepoId,
    pub(crate) path: PathBuf,
    pub(crate) revisions: Vec<CachedRevision>,
    /// What has arrived of files that are not complete.
    pub(crate) incomplete_bytes: u64,
}

/// One commit of a repository.
#[derive(Debug)]
pub(crate) struct CachedRevision {
    pub(crate) commit: String,
    /// The branches and tags that were at this commit when they were pulled.
    pub(crate) revisions: Vec<String>,
    pub(crate) files: Vec<CachedFile>,
}

impl CachedRevision {
    /// Bytes of its files, each content counted once.
    pub(crate) fn size(&self) -> u64 {
        let contents: BTreeMap<&Path, u64> =
            self.files.iter().map(|file| (file.content.as_path(), file.size)).collect();
        contents.values().sum()
    }

    /// When some file of it was last read, as far as the file system notes that.
    pub(crate) fn last_used(&self) -> Option<SystemTime> {
        self.files.iter().filter_map(|file| file.last_used).max()
    }
}

/// One complete file.
#[derive(Debug)]
pub(crate) struct CachedFile {
    pub(crate) name: String,
    /// Where its bytes are, links followed.
    pub(crate) content: PathBuf,
    pub(crate) size: u64,
    pub(crate) last_used: Option<SystemTime>,
}

/// The entries of a folder; none if it cannot be read.
fn sub_paths(dir: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}

/// Collects the names of files and links under `dir`, relative to it, with `/`. Links to folders are not entered.
fn walk(dir: &Path, prefix: &str, depth: usize, names: &mut Vec<String>) {
    for path in sub_paths(dir) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let name = format!("{prefix}{name}");
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() && depth < DEPTH_MAX => {
                walk(&path, &format!("{name}/"), depth + 1, names);
            }
            Ok(metadata) if !metadata.is_dir() => names.push(name),
            _ => {}
        }
    }
}

fn remove_dir(dir: &Path) -> Result<(), HubError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(disk_error("remove", dir)(error)),
        _ => Ok(()),
    }
}
