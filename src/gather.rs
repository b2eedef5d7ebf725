//! A stream whose writes gather what others are about to add.
//!
//! The runtime runs the task that was woken last at once: whoever drives a connection would write as soon
//! as the first of many tasks has handed it something, a system call and a packet for nearly each. Here a
//! write first lets every task go that is ready, and then takes along what they brought: fewer, larger
//! writes under load, here and for whoever reads them. One that is alone is a few microseconds later.
//!
//! Once the others had their turn, all goes out that there is, however many writes it takes. A turn of the others
//! before each of them would hold what is written behind everything that is still to be done: a service with
//! more to do than it can would decide in time, and say so too late.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that lets others go first before it writes.
#[derive(Debug)]
pub struct Gathering<S> {
    stream: S,
    turn: Turn,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Nothing is to be written.
    None,
    /// The others', before ours.
    Others,
    /// Ours, until something is read again.
    Ours,
}

impl<S> Gathering<S> {
    /// The same stream, gathering.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            turn: Turn::None,
        }
    }

    /// The stream itself.
    pub fn stream(&self) -> &S {
        &self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gathering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.turn == Turn::Ours {
            self.turn = Turn::None;
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gathering<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.turn == Turn::None {
            self.turn = Turn::Others;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.turn = Turn::Ours;
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
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::task::Waker;

    use parking_lot::Mutex;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn a_write_takes_along_what_ready_tasks_bring() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut near = Gathering::new(near);
        let waiting = Arc::new(Mutex::new(vec![0]));
        for more in 1..=3 {
            let waiting = Arc::clone(&waiting);
            tokio::spawn(async move { waiting.lock().push(more) });
        }
        let sent = poll_fn(|cx| Pin::new(&mut near).poll_write(cx, &waiting.lock()));
        assert_eq!(sent.await.unwrap(), 4);
        let mut read = [9; 4];
        far.read_exact(&mut read).await.unwrap();
        assert_eq!(read, [0, 1, 2, 3]);
    }

    #[tokio::test]
    async fn others_go_first_once_and_again_after_a_read() {
        let (near, _far) = tokio::io::duplex(64);
        let mut near = Gathering::new(near);
        let mut cx = Context::from_waker(Waker::noop());
        let mut wrote = |read: bool| {
            if read {
                let mut room = [0; 8];
                let _ = Pin::new(&mut near).poll_read(&mut cx, &mut ReadBuf::new(&mut room));
            }
            Pin::new(&mut near).poll_write(&mut cx, b"x").is_ready()
        };
        assert!(!wrote(true));
        // Whoever drives the connection reads before it writes; that takes no turn away.
        assert!(wrote(true) && wrote(false) && wrote(false));
        assert!(!wrote(true));
        assert!(wrote(true));
    }

    #[tokio::test]
    async fn nothing_is_held_back_when_nobody_is_ready() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut near = Gathering::new(near);
        for n in 0..3 {
            let sent = poll_fn(|cx| Pin::new(&mut near).poll_write(cx, &[n]));
            assert_eq!(sent.await.unwrap(), 1);
            assert_eq!(far.read_u8().await.unwrap(), n);
        }
    }
}
