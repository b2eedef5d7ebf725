//! A way to a server that can be made slow or silent.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Passes bytes on between its clients and one server, until it is dropped.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct State {
    delay_ms: AtomicU64,
    connections: AtomicU64,
    /// Connections before this one give no more answers.
    stalled: AtomicU64,
}

impl Proxy {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(pass_on(client, server, Arc::clone(&shared)));
            }
        });
        Self {
            address,
            state,
            _tasks: tasks,
        }
    }

    /// What the server says takes this long.
    pub(crate) fn delay(&self, delay: Duration) {
        self.state
            .delay_ms
            .store(delay.as_millis() as u64, Ordering::Relaxed);
    }

    /// Those who are connected hear nothing any more, not even an end.
    pub(crate) fn stall_connections(&self) {
        let now = self.state.connections.load(Ordering::Relaxed);
        self.state.stalled.store(now, Ordering::Relaxed);
    }
}

async fn pass_on(client: TcpStream, server: SocketAddr, state: Arc<State>) {
    let number = state.connections.fetch_add(1, Ordering::Relaxed);
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let back = async {
        let mut buffer = [0; 4_096];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            tokio::time::sleep(Duration::from_millis(state.delay_ms.load(Ordering::Relaxed))).await;
            let silent = number < state.stalled.load(Ordering::Relaxed);
            if !silent && to_client.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
        () = back => {}
    }
}
