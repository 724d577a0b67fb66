//! `hotmetal list`: the models in the cache.

use std::time::SystemTime;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::hub::{Cache, CachedRepo, CachedRevision, Settings, quantization};
use crate::{output, units};

/// List the models in the cache
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// How to print them
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ListFormat::Text)]
    output_format: ListFormat,

    /// Read every file, and report those that a disk or another program has changed
    #[arg(long, conflicts_with = "output_format")]
    verify: bool,
}

/// How `list` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ListFormat {
    /// A table.
    Text,
    /// One array with an object for each revision of each model.
    Json,
}

/// Runs `hotmetal list`.
pub(crate) fn list(args: &ListArgs) -> Result<()> {
    let cache = Cache::new(&Settings::from_env()?.cache);
    if args.verify {
        return verify(&cache);
    }
    let repos = cache.repos()?;
    if args.output_format == ListFormat::Json {
        let rows: Vec<Value> = repos.iter().flat_map(json_rows).collect();
        output::stdout(&format!("{}\n", serde_json::to_string_pretty(&rows)?))?;
        return Ok(());
    }
    let rows: Vec<[String; 5]> = repos.iter().flat_map(|repo| text_rows(repo, SystemTime::now())).collect();
    if rows.is_empty() {
        output::note(&format!(
            "no models in `{}`; `hotmetal pull ORG/REPO` brings one, and `hotmetal run` has one built in",
            cache.root().display()
        ));
        return Ok(());
    }
    output::stdout(&table(["MODEL", "REVISION", "SIZE", "FORMAT", "LAST USED"].map(str::to_owned), &rows))?;
    Ok(())
}

/// Reports each file that does not have the content that its name in the cache promises.
fn verify(cache: &Cache) -> Result<()> {
    let (mut sound, mut damaged, mut unknown) = (0_usize, 0_usize, 0_usize);
    cache.verify(|repo, file, result| match result {
        Ok(Some(true)) => sound += 1,
        Ok(None) => {
            unknown += 1;
            output::note(&format!("{repo}: {}: not checked, because the hub gave no checksum of it", file.name));
        }
        Ok(Some(false)) => {
            damaged += 1;
            let blob = file.content.display();
            output::note(&format!("{repo}: {}: damaged; remove `{blob}`, and pull the model again", file.name));
        }
        Err(error) => {
            damaged += 1;
            output::note(&format!("{repo}: {}: cannot be read: {error}", file.name));
        }
    })?;
    if damaged > 0 {
        bail!("{damaged} of {} files are damaged", sound + damaged + unknown);
    }
    output::stdout(&format!("{sound} files are as they were published\n"))?;
    Ok(())
}

/// A row for each revision, and one for a repository of which only parts of files have arrived.
fn text_rows(repo: &CachedRepo, now: SystemTime) -> Vec<[String; 5]> {
    let mut rows: Vec<[String; 5]> = repo
        .revisions
        .iter()
        .map(|revision| {
            let names = match &revision.revisions[..] {
                [] => revision.commit.chars().take(10).collect(),
                names => names.join(", "),
            };
            let used = revision.last_used().map_or("?".to_owned(), |used| ago(now, used));
            [repo.id.to_string(), names, units::bytes(revision.size()), format(revision), used]
        })
        .collect();
    if repo.incomplete_bytes > 0 {
        let size = units::bytes(repo.incomplete_bytes);
        rows.push([repo.id.to_string(), "-".into(), size, "unfinished: pull again or rm".into(), "-".into()]);
    }
    rows
}

fn json_rows(repo: &CachedRepo) -> Vec<Value> {
    let row = |revision: &CachedRevision| {
        json!({
            "model": repo.id.as_str(),
            "commit": revision.commit,
            "revisions": revision.revisions,
            "path": repo.path.join("snapshots").join(&revision.commit),
            "size_bytes": revision.size(),
            "format": format(revision),
            "last_used": revision.last_used().and_then(|used| OffsetDateTime::from(used).format(&Rfc3339).ok()),
            "files": revision.files.iter().map(|f| json!({"name": f.name, "size_bytes": f.size})).collect::<Vec<_>>(),
            "incomplete_bytes": repo.incomplete_bytes,
        })
    };
    let mut rows: Vec<Value> = repo.revisions.iter().map(row).collect();
    if rows.is_empty() && repo.incomplete_bytes > 0 {
        rows.push(json!({
            "model": repo.id.as_str(), "commit": null, "revisions": [], "path": null, "size_bytes": 0,
            "format": "incomplete", "last_used": null, "files": [], "incomplete_bytes": repo.incomplete_bytes,
        }));
    }
    rows
}

/// What the weights come as.
fn format(revision: &CachedRevision) -> String {
    if revision.files.iter().any(|file| file.name.ends_with(".safetensors")) {
        return "safetensors".to_owned();
    }
    let gguf: Vec<&str> =
        revision.files.iter().map(|file| file.name.as_str()).filter(|name| name.ends_with(".gguf")).collect();
    if gguf.is_empty() {
        return "no weights".to_owned();
    }
    let mut quantizations: Vec<String> = gguf.iter().filter_map(|name| quantization(name)).collect();
    quantizations.sort();
    quantizations.dedup();
    format!("GGUF {}", quantizations.join(", ")).trim_end().to_owned()
}

/// A table with columns as wide as their widest cell, sizes to the right.
fn table(head: [String; 5], rows: &[[String; 5]]) -> String {
    let width =
        |column: usize| rows.iter().chain([&head]).map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for [model, revision, size, format, used] in [&head].into_iter().chain(rows) {
        let line = format!(
            "{model:0$}  {revision:1$}  {size:>2$}  {format:3$}  {used}",
            widths[0], widths[1], widths[2], widths[3]
        );
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// `3 days ago`.
fn ago(now: SystemTime, then: SystemTime) -> String {
    let seconds = now.duration_since(then).unwrap_or_default().as_secs();
    let (count, unit) = match seconds {
        0..60 => return "just now".to_owned(),
        60..3600 => (seconds / 60, "minute"),
        3600..86_400 => (seconds / 3600, "hour"),
        86_400..5_184_000 => (seconds / 86_400, "day"),
        _ => (seconds / 2_592_000, "month"),
    };
    format!("{count} {unit}{} ago", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn ages_read_as_people_say_them() {
        let now = SystemTime::now();
        let said = |seconds| ago(now, now - Duration::from_secs(seconds));
        assert_eq!(said(59), "just now");
        assert_eq!(said(60), "1 minute ago");
        assert_eq!(said(7200), "2 hours ago");
        assert_eq!(said(59 * 86_400), "59 days ago");
        assert_eq!(said(60 * 86_400), "2 months ago");
        assert_eq!(ago(now, now + Duration::from_secs(5)), "just now");
    }
}
