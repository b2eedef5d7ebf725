//! The accepted stream, arranged so that answers travel together, and looked at when it opens.
//!
//! With vectored writes h2 chains every DATA frame of 256 bytes or more and flushes before the next:
//! one `writev` an answer, and an answer with its headers and metadata is that long. Without them the
//! bound is 1,024 bytes and a whole batch of answers leaves in one write. `make bench` shows the gain.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What HTTP/2 opens with, as far as nothing else does.
const OPENING: &[u8] = b"PRI";

/// What a stream opened with instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// The hello of TLS.
    Tls,
    /// A request of HTTP/1.
    Http1,
    /// Something else.
    Unknown,
}

/// A stream that does not offer vectored writes, and ends at once when it opens with another protocol.
pub struct Socket<T> {
    stream: T,
    /// How many bytes of the opening came, and what to call if one is wrong; none once all came.
    opening: Option<(usize, OnWrong)>,
}

type OnWrong = Box<dyn FnOnce(Instead) + Send>;

impl<T> Socket<T> {
    /// Wraps a stream; `on_wrong` hears of another protocol.
    pub fn new(stream: T, on_wrong: impl FnOnce(Instead) + Send + 'static) -> Self {
        Self {
            stream,
            opening: Some((0, Box::new(on_wrong))),
        }
    }

    fn look(&mut self, came: &[u8]) -> io::Result<()> {
        let Some((seen, on_wrong)) = self.opening.take() else {
            return Ok(());
        };
        let wanted = &OPENING[seen..];
        let common = wanted.iter().zip(came).take_while(|(a, b)| a == b).count();
        if common == came.len().min(wanted.len()) {
            if common < wanted.len() {
                self.opening = Some((seen + common, on_wrong));
            }
            return Ok(());
        }
        on_wrong(match (seen + common, came[common]) {
            (0, 0x16) => Instead::Tls,
            // A method that begins as the opening does.
            (1.., _) | (0, b'A'..=b'Z') => Instead::Http1,
            _ => Instead::Unknown,
        });
        Err(io::Error::new(io::ErrorKind::InvalidData, "not HTTP/2"))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Socket<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        Poll::Ready(match self.opening {
            None => Ok(()),
            Some(_) => self.look(&buf.filled()[before..]),
        })
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Socket<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// What is said of a stream that comes in these pieces.
    fn said(pieces: &[&[u8]]) -> (Option<Instead>, bool) {
        let said = Arc::new(Mutex::new(None));
        let hears = Arc::clone(&said);
        let mut socket = Socket::new((), move |instead| {
            assert!(hears.lock().unwrap().replace(instead).is_none());
        });
        let ended = pieces.iter().any(|piece| socket.look(piece).is_err());
        (*said.lock().unwrap(), ended)
    }

    #[test]
    fn the_opening_of_http2_passes_in_any_pieces() {
        for pieces in [
            &[b"PRI * HTTP/2.0\r\n".as_slice()][..],
            &[b"P", b"", b"R", b"I", b"POST"],
            &[b"PR", b"I *"],
            &[b""],
        ] {
            assert_eq!(said(pieces), (None, false));
        }
    }

    #[test]
    fn another_protocol_is_named_once() {
        for (pieces, instead) in [
            (&[b"\x16\x03\x01".as_slice()][..], Instead::Tls),
            (&[b"GET / HTTP/1.1"], Instead::Http1),
            (&[b"POST / HTTP/1.1"], Instead::Http1),
            (&[b"P", b"UT /"], Instead::Http1),
            (&[b"\0\0\0"], Instead::Unknown),
        ] {
            assert_eq!(said(pieces), (Some(instead), true));
        }
    }
}
