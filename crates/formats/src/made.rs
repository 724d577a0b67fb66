//! The bytes of a tensor that is to be written: at hand, or made when their turn comes.

use std::fmt;
use std::io::{self, Write};
use std::rc::Rc;

use bytes::Bytes;

/// What writes a tensor's bytes when its turn comes.
type MakeData = dyn Fn(&mut dyn Write) -> io::Result<()>;

/// A tensor's bytes.
#[derive(Clone)]
pub(crate) enum Data {
    Given(Bytes),
    Made { len: u64, make: Rc<MakeData> },
}

impl Data {
    pub(crate) fn made(len: u64, make: impl Fn(&mut dyn Write) -> io::Result<()> + 'static) -> Self {
        Self::Made { len, make: Rc::new(make) }
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Given(bytes) => bytes.len() as u64,
            Self::Made { len, .. } => *len,
        }
    }

    /// Writes them. Another number of bytes than was said is an error in the name of the tensor.
    pub(crate) fn write<W: Write>(&self, name: &str, out: &mut W) -> io::Result<()> {
        match self {
            Self::Given(bytes) => out.write_all(bytes),
            Self::Made { len, make } => {
                let mut counted = Counted { out, written: 0 };
                make(&mut counted)?;
                if counted.written != *len {
                    let what = format!("tensor `{name}`: {} bytes were made, not {len}", counted.written);
                    return Err(io::Error::other(what));
                }
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

/// Counts what passes through.
struct Counted<'a, W> {
    out: &'a mut W,
    written: u64,
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
