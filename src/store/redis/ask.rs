//! Asks servers who serves what.

use std::sync::Arc;
use std::time::Duration;

use redis::{Value, cmd};
use tokio::time::timeout;

use super::error::{Kind, Reply};
use super::link::{Dialer, Trouble};
use super::node::{Node, Trail};
use super::slots::{self, Range};
use super::target::Address;

/// For one server to say what it knows.
pub(super) const ANSWER: Duration = Duration::from_millis(250);

/// What a node that is connected says of the slots.
pub(super) async fn node(node: &Arc<Node>) -> Result<Vec<Range>, Trouble> {
    let mut question = cmd("CLUSTER");
    question.arg("SLOTS");
    match timeout(ANSWER, node.send(&question, false, &mut Trail::default())).await {
        Ok(Ok(reply)) => ranges(reply, node.address()),
        _ => Err(Trouble::new("no answer")),
    }
}

/// The same of one that has to be connected to first.
pub(super) async fn stranger(dialer: Arc<Dialer>, address: Address) -> Result<Vec<Range>, Trouble> {
    let asking = async {
        let link = dialer.node(&address).await?;
        let mut question = cmd("CLUSTER");
        question.arg("SLOTS");
        match timeout(ANSWER, link.send(&question)).await {
            Ok(reply) => ranges(reply?, &address),
            Err(_) => Err(Trouble::new("no answer")),
        }
    };
    asking.await.map_err(|trouble| trouble.of(&address))
}

fn ranges(reply: Reply, asked: &Address) -> Result<Vec<Range>, Trouble> {
    match reply {
        Reply::Value(value) => {
            slots::read(&value, asked).ok_or_else(|| Trouble::new("knows of no slots that anybody serves"))
        }
        reply => Err(refusal(reply)),
    }
}

/// Where a sentinel says that the master of this name is.
pub(super) async fn sentinel(
    dialer: Arc<Dialer>,
    address: Address,
    master: String,
) -> Result<Address, Trouble> {
    let asking = async {
        let link = dialer.sentinel(&address).await?;
        let mut question = cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&master);
        let reply = timeout(ANSWER, link.send(&question)).await;
        match reply.map_err(|_| Trouble::new("no answer"))?? {
            Reply::Value(Value::Array(answer)) => {
                let text = |value: &Value| redis::from_redis_value_ref::<String>(value).ok();
                let host = answer.first().and_then(text);
                let port = answer.get(1).and_then(text).and_then(|port| port.parse().ok());
                match (host, port) {
                    (Some(host), Some(port)) => Ok(Address::named(&host, port, &address)),
                    _ => Err(Trouble::new("an answer that makes no sense")),
                }
            }
            Reply::Value(_) => Err(Trouble::new("knows no master of that name")),
            reply => Err(refusal(reply)),
        }
    };
    asking.await.map_err(|trouble| trouble.of(&address))
}

fn refusal(reply: Reply) -> Trouble {
    match reply {
        Reply::Error(Kind::Script, text) if text.contains("cluster support disabled") => {
            Trouble::new("is no cluster: use redis://")
        }
        Reply::Error(_, text) => Trouble::new(text),
        _ => Trouble::new("an answer that makes no sense"),
    }
}
