//! Since when what is read from a connection has waited to be read.
//!
//! A service that has more to do than it can leaves what comes in its sockets, where nobody sees it age. What can
//! be seen is when the runtime wakes the connection's task since there is something; under load the task then
//! waits behind all others until it reads, and what it reads is as old as that, or less.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::clock::Stopwatch;

/// A stream that notes when there is something to read.
pub(super) struct Noted<S> {
    stream: S,
    arrival: Arrival,
    /// Wakes the task that reads, by way of the note.
    waker: Waker,
}

/// When what a stream brought came.
#[derive(Clone)]
pub(super) struct Arrival(Arc<Note>);

struct Note(Mutex<State>);

struct State {
    reader: Waker,
    /// Runs since the first wake for what is not read yet.
    next: Option<Stopwatch>,
    /// Runs since the wake for what was read.
    last: Stopwatch,
    /// There was nothing more.
    emptied: bool,
}

impl Arrival {
    /// Runs since the earliest instant at which what was read last can have come.
    pub(super) fn watch(&self) -> Stopwatch {
        self.0.0.lock().last
    }
}

impl Wake for Note {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let reader = {
            let mut state = self.0.lock();
            state.next.get_or_insert_with(Stopwatch::start);
            state.reader.clone()
        };
        reader.wake();
    }
}

impl<S> Noted<S> {
    /// The same stream, noted.
    pub(super) fn new(stream: S) -> Self {
        let note = Arc::new(Note(Mutex::new(State {
            reader: Waker::noop().clone(),
            next: None,
            last: Stopwatch::start(),
            emptied: true,
        })));
        Self {
            stream,
            waker: Waker::from(Arc::clone(&note)),
            arrival: Arrival(note),
        }
    }

    /// When what it brings came.
    pub(super) fn arrival(&self) -> Arrival {
        self.arrival.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Noted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let noted = {
            let mut state = this.arrival.0.0.lock();
            if !state.reader.will_wake(cx.waker()) {
                state.reader = cx.waker().clone();
            }
            // A wake from here on is one for what comes now.
            state.next.take()
        };
        let polled = Pin::new(&mut this.stream).poll_read(&mut Context::from_waker(&this.waker), buf);
        let mut state = this.arrival.0.0.lock();
        if polled.is_ready() && state.emptied {
            state.last = noted.unwrap_or_else(Stopwatch::start);
        }
        state.emptied = polled.is_pending();
        drop(state);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Noted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    /// Reads all there is.
    fn read(near: &mut Noted<DuplexStream>) -> usize {
        let mut came = 0;
        loop {
            let mut room = [0; 4];
            let mut buf = ReadBuf::new(&mut room);
            let polled = Pin::new(&mut *near).poll_read(&mut Context::from_waker(Waker::noop()), &mut buf);
            if polled.is_pending() {
                return came;
            }
            came += buf.filled().len();
        }
    }

    #[tokio::test]
    async fn what_is_read_is_as_old_as_the_wake_for_it() {
        let (near, mut far) = duplex(64);
        let mut near = Noted::new(near);
        let arrival = near.arrival();
        for _ in 0..3 {
            assert_eq!(read(&mut near), 0);
            let before = Stopwatch::start();
            far.write_all(b"more than one read takes").await.unwrap();
            let after = Stopwatch::start();
            far.write_all(b", and more").await.unwrap();
            assert_eq!(read(&mut near), 34);
            assert!(before <= arrival.watch() && arrival.watch() <= after);
        }
    }

    #[tokio::test]
    async fn what_came_before_anybody_looked_is_as_old_as_the_look() {
        let (near, mut far) = duplex(64);
        let mut near = Noted::new(near);
        far.write_all(b"early").await.unwrap();
        let before = Stopwatch::start();
        assert_eq!(read(&mut near), 5);
        assert!(before <= near.arrival().watch());
    }

    #[tokio::test]
    async fn the_reader_is_woken_even_if_another_one_reads_on() {
        let (near, mut far) = duplex(64);
        let mut near = Noted::new(near);
        assert_eq!(read(&mut near), 0);
        let reading = tokio::spawn(async move {
            let mut room = [0; 4];
            let read = tokio::io::AsyncReadExt::read(&mut near, &mut room).await.unwrap();
            room[..read].to_vec()
        });
        tokio::task::yield_now().await;
        far.write_all(b"here").await.unwrap();
        assert_eq!(reading.await.unwrap(), b"here");
    }
}
