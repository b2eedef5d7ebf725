//! The accepted socket, arranged so that answers travel together.
//!
//! With vectored writes h2 chains every DATA frame of 256 bytes or more and flushes before the next:
//! one `writev` an answer, and an answer with its headers and metadata is that long. Without them the
//! bound is 1,024 bytes and a whole batch of answers leaves in one write. `make bench` shows the gain.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::gather::Gathering;

/// A TCP stream that does not offer vectored writes.
#[derive(Debug)]
pub struct Socket(Gathering<TcpStream>);

impl Socket {
    /// Wraps an accepted stream. Answers are small: Nagle's algorithm would hold them for an
    /// acknowledgement, 40 ms late.
    ///
    /// # Errors
    /// When the stream is already closed.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self(Gathering::new(stream)))
    }
}

impl Connected for Socket {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.0.stream().connect_info()
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        false
    }
}
