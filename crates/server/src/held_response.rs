//! A large answer that holds the memory of its request until it is sent.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};

use crate::memory::Permit;

/// Bytes of an answer that a connection is given at a time.
const PIECE_BYTES: usize = 256 << 10;

/// A response with JSON that was written already, which holds its memory until it is sent or given up.
pub(crate) fn held_response(json: Vec<u8>, memory: Permit) -> Response {
    let mut response = Response::new(Body::new(Held { json: json.into(), _memory: memory }));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A body with the permit for its memory.
struct Held {
    json: Bytes,
    _memory: Permit,
}

impl hyper::body::Body for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        // In pieces: the connection asks for more once it has sent most of what it has, so that the permit is held as
        // long as the text.
        let len = self.json.len().min(PIECE_BYTES);
        let piece = self.json.split_to(len);
        Poll::Ready((len > 0).then(|| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.json.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.json.len() as u64)
    }
}
