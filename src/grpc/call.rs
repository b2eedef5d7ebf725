//! One call of `ShouldRateLimit` as HTTP/2 carries it.
//!
//! Of gRPC a unary call needs five bytes before the message and a status in the trailers. Health, reflection
//! and unknown methods go through tonic; on this way its router, its streams and their boxes would cost as
//! much as deciding does (the floor of `make bench` is a constant OK of tonic's).

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, Incoming};
use tonic::codegen::http::{HeaderMap, HeaderValue, Response, header};
use tonic::{Code, Status};

use super::encode::{Encoded, PREFIX};

/// The path of the one method that is called all the time.
pub(super) const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Envoy's headers take 60 KiB unless told otherwise, and each of some dozens of descriptors may repeat one.
const MAX_MESSAGE: usize = 4 << 20;

/// Waits for the one message of a call.
///
/// # Errors
/// What the caller is told when there is none.
pub(super) async fn message(body: &mut Incoming) -> Result<Bytes, Status> {
    let mut came = Bytes::new();
    let mut pieces = Vec::new();
    while !body.is_end_stream() {
        let Some(frame) = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await else {
            break;
        };
        // Nobody hears it: the stream was reset, or the connection is gone.
        let frame = frame.map_err(|_| Status::cancelled(""))?;
        let Ok(data) = frame.into_data() else { continue };
        if came.is_empty() {
            came = data;
            continue;
        }
        if pieces.is_empty() {
            pieces.extend_from_slice(&came);
        }
        pieces.extend_from_slice(&data);
        if pieces.len() > PREFIX + MAX_MESSAGE {
            return Err(too_long());
        }
    }
    if !pieces.is_empty() {
        came = pieces.into();
    }
    unframed(&came)
}

fn unframed(came: &Bytes) -> Result<Bytes, Status> {
    let cut = || Status::internal("the call ended before its message did");
    let &[compressed, a, b, c, d] = came.first_chunk::<PREFIX>().ok_or_else(cut)?;
    if compressed != 0 {
        return Err(Status::unimplemented("compressed messages are not taken"));
    }
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > MAX_MESSAGE {
        return Err(too_long());
    }
    let end = PREFIX + length;
    if came.len() < end {
        return Err(cut());
    }
    Ok(came.slice(PREFIX..end))
}

fn too_long() -> Status {
    Status::new(
        Code::OutOfRange,
        format!("a message of more than {MAX_MESSAGE} bytes"),
    )
}

/// The response that carries an answer.
pub(super) fn response(answer: Encoded) -> Response<Reply> {
    let mut response = Response::new(Reply::Answer(answer.framed()));
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, grpc);
    response
}

/// What is sent after the headers.
#[derive(Default)]
pub(super) enum Reply {
    /// A message, and then that all is well.
    Answer(Bytes),
    /// That all is well.
    Trailers,
    /// No more.
    #[default]
    End,
    /// What tonic answered.
    Other(tonic::body::Body),
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let (frame, next) = match &mut *self {
            Self::Answer(message) => (Frame::data(std::mem::take(message)), Self::Trailers),
            Self::Trailers => {
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
                (Frame::trailers(trailers), Self::End)
            }
            Self::End => return Poll::Ready(None),
            Self::Other(body) => return Pin::new(body).poll_frame(cx),
        };
        *self = next;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::End => true,
            Self::Other(body) => body.is_end_stream(),
            Self::Answer(_) | Self::Trailers => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(came: &[u8]) -> Result<Bytes, Code> {
        unframed(&Bytes::copy_from_slice(came)).map_err(|status| status.code())
    }

    #[test]
    fn a_message_is_what_its_prefix_says() {
        assert_eq!(told(b"\0\0\0\0\x02ab"), Ok(Bytes::from_static(b"ab")));
        assert_eq!(told(b"\0\0\0\0\0"), Ok(Bytes::new()));
        // A second one has no meaning in a unary call.
        assert_eq!(told(b"\0\0\0\0\x01ab"), Ok(Bytes::from_static(b"a")));
        for cut in [&b""[..], b"\0\0\0\0", b"\0\0\0\0\x01", b"\0\0\0\x01\0a"] {
            assert_eq!(told(cut), Err(Code::Internal), "{cut:?}");
        }
        assert_eq!(told(b"\x01\0\0\0\x01a"), Err(Code::Unimplemented));
        assert_eq!(told(b"\0\0\x40\0\x01a"), Err(Code::OutOfRange));
        assert_eq!(told(b"\0\xff\xff\xff\xff"), Err(Code::OutOfRange));
    }
}
