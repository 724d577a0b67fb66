//! The checksums by which blobs are named: SHA-256 of files in large-file storage, git's blob SHA-1 of others.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::units;

/// Whether a blob has the content that its name, a checksum, promises. `None` if its name is no checksum.
pub(super) fn is_sound(blob: &Path) -> io::Result<Option<bool>> {
    let Some(etag) = blob.file_name().and_then(|name| name.to_str()) else { return Ok(None) };
    let mut file = File::open(blob)?;
    let size = file.metadata()?.len();
    Ok(checksum_as(etag, size, &mut |buffer| file.read(buffer))?.map(|found| found == etag))
}

/// The checksum of what `read` gives, of the kind that `etag` is. `None` if it is of no kind.
pub(super) fn checksum_as(
    etag: &str,
    size: u64,
    read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
) -> io::Result<Option<String>> {
    match etag.len() {
        _ if !is_checksum(etag) => Ok(None),
        64 => hash(Sha256::new(), read).map(Some),
        _ => hash(Sha1::new_with_prefix(format!("blob {size}\0")), read).map(Some),
    }
}

/// Whether an etag is a SHA-256 or a SHA-1.
pub(super) fn is_checksum(etag: &str) -> bool {
    matches!(etag.len(), 40 | 64) && etag.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn hash<D: Digest>(mut digest: D, read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<String> {
    let mut buffer = vec![0; 1 << 18];
    loop {
        match read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => digest.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(units::hex(&digest.finalize()))
}
