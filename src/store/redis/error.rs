//! Why a call gave no answer, and what may have become of it.

use std::fmt;

use redis::{ServerError, Value};

use super::node::ShardId;

/// Why a call gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// What kind of failure it was.
    pub kind: Kind,
    /// The shard that was asked, or would have been.
    pub shard: ShardId,
    /// Whether it got as far as a connection.
    pub(super) sent: bool,
    /// What the store said, if it said something; bounded and without control characters.
    pub detail: Option<Box<str>>,
}

/// The kinds of failure, a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No answer in time.
    Timeout,
    /// The connection ended while the call was under way.
    Disconnected,
    /// Not sent: the shard is known to be gone, or none is known.
    Refused,
    /// Not sent: too many calls are under way.
    Overloaded,
    /// The cluster has no owner for the key just now.
    ClusterDown,
    /// The server is loading its data, or waits for its master.
    Loading,
    /// The server is kept busy by somebody's script.
    Busy,
    /// The server is a replica.
    ReadOnly,
    /// Sent from node to node without arriving.
    Moved,
    /// The server has no memory for it, or cannot persist and takes no writes.
    Oom,
    /// The server does not know us, or does not let us.
    Denied,
    /// The script or command failed.
    Script,
}

/// What is known of a call that gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was not executed.
    NotDone,
    /// It may have been.
    Unknown,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Timeout,
        Self::Disconnected,
        Self::Refused,
        Self::Overloaded,
        Self::ClusterDown,
        Self::Loading,
        Self::Busy,
        Self::ReadOnly,
        Self::Moved,
        Self::Oom,
        Self::Denied,
        Self::Script,
    ];

    /// Its word in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Disconnected => "disconnected",
            Self::Refused => "refused",
            Self::Overloaded => "overloaded",
            Self::ClusterDown => "cluster_down",
            Self::Loading => "loading",
            Self::Busy => "busy",
            Self::ReadOnly => "read_only",
            Self::Moved => "moved",
            Self::Oom => "oom",
            Self::Denied => "denied",
            Self::Script => "script",
        }
    }
}

impl CallError {
    /// What may have become of the call. A timeout or a failed script says nothing; whoever charges must not
    /// send such a call again.
    pub fn fate(&self) -> Fate {
        match self.kind {
            Kind::Timeout | Kind::Disconnected | Kind::Script if self.sent => Fate::Unknown,
            _ => Fate::NotDone,
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Timeout => "the store gave no answer in time",
            Kind::Disconnected => "the connection to the store ended",
            Kind::Refused => "the store is not reachable",
            Kind::Overloaded => "too many calls of the store are under way",
            Kind::ClusterDown => "the cluster does not serve this key now",
            Kind::Loading => "the store is loading its data",
            Kind::Busy => "the store is busy with a script",
            Kind::ReadOnly => "the store is a replica",
            Kind::Moved => "the cluster sent the call in circles",
            Kind::Oom => "the store takes no writes",
            Kind::Denied => "the store does not let us",
            Kind::Script => "the store failed to execute the call",
        })?;
        match &self.detail {
            Some(detail) => write!(f, ": {detail}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for CallError {}

/// What a node answered.
#[derive(Debug)]
pub(super) enum Reply {
    Value(Value),
    /// The script is not known there.
    NoScript,
    /// The slot is elsewhere, for good or for this once.
    Moved(String),
    Ask(String),
    /// It was not done, or failed.
    Error(Kind, Box<str>),
}

impl Reply {
    pub(super) fn read(value: Value) -> Self {
        match value {
            Value::ServerError(error) => Self::error(&error),
            value => Self::Value(value),
        }
    }

    fn error(error: &ServerError) -> Self {
        let detail = error.details().unwrap_or_default();
        let elsewhere = || {
            detail
                .split_ascii_whitespace()
                .nth(1)
                .unwrap_or_default()
                .to_owned()
        };
        match error.code() {
            "NOSCRIPT" => Self::NoScript,
            "MOVED" => Self::Moved(elsewhere()),
            "ASK" => Self::Ask(elsewhere()),
            code => Self::Error(kind(code, detail), shown(code, detail)),
        }
    }
}

fn kind(code: &str, detail: &str) -> Kind {
    match code {
        "CLUSTERDOWN" | "TRYAGAIN" => Kind::ClusterDown,
        "LOADING" | "MASTERDOWN" => Kind::Loading,
        "BUSY" => Kind::Busy,
        "READONLY" => Kind::ReadOnly,
        "OOM" | "MISCONF" | "NOREPLICAS" => Kind::Oom,
        "NOAUTH" | "WRONGPASS" | "NOPERM" => Kind::Denied,
        // Before version 7 an error that a script met is wrapped in text.
        "ERR" => ["READONLY", "OOM", "MISCONF", "NOREPLICAS"]
            .into_iter()
            .find(|code| detail.contains(&format!(": -{code} ")))
            .map_or(Kind::Script, |code| kind(code, "")),
        _ => Kind::Script,
    }
}

/// What the server said, fit for a log: bounded, on one line.
pub(super) fn shown(code: &str, detail: &str) -> Box<str> {
    let text: String = code
        .chars()
        .chain(if detail.is_empty() { "" } else { " " }.chars())
        .chain(detail.chars())
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(200)
        .collect();
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(line: &str) -> Reply {
        Reply::read(redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap())
    }

    #[test]
    fn an_error_is_told_by_its_code() {
        for (line, expected) in [
            ("CLUSTERDOWN Hash slot not served", Kind::ClusterDown),
            (
                "TRYAGAIN Multiple keys request during rehashing of slot",
                Kind::ClusterDown,
            ),
            ("LOADING Redis is loading the dataset in memory", Kind::Loading),
            ("MASTERDOWN Link with MASTER is down", Kind::Loading),
            ("BUSY Redis is busy running a script.", Kind::Busy),
            (
                "READONLY You can't write against a read only replica. script: abc",
                Kind::ReadOnly,
            ),
            (
                "ERR Error running script (call to f_ab): @user_script:1: -READONLY You can't write",
                Kind::ReadOnly,
            ),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                Kind::Oom,
            ),
            (
                "ERR Error running script (call to f_ab): @user_script:9: -OOM command not allowed",
                Kind::Oom,
            ),
            ("NOAUTH Authentication required.", Kind::Denied),
            ("NOPERM this user has no permissions", Kind::Denied),
            ("ERR user_script:1: attempt to index a nil value", Kind::Script),
            ("WRONGTYPE Operation against a key", Kind::Script),
        ] {
            assert!(
                matches!(reply(line), Reply::Error(kind, _) if kind == expected),
                "{line}: {:?}",
                reply(line)
            );
        }
        assert!(matches!(reply("NOSCRIPT No matching script."), Reply::NoScript));
        assert!(matches!(reply("MOVED 3999 127.0.0.1:6381"), Reply::Moved(to) if to == "127.0.0.1:6381"));
        assert!(matches!(reply("ASK 3999 127.0.0.1:6381"), Reply::Ask(to) if to == "127.0.0.1:6381"));
    }

    #[test]
    fn only_what_was_surely_not_executed_is_said_to_be_not_done() {
        let unknown = Kind::ALL.into_iter().filter(|&kind| {
            let error = CallError {
                kind,
                shard: ShardId::UNKNOWN,
                sent: true,
                detail: None,
            };
            error.fate() == Fate::Unknown
        });
        let unknown: Vec<_> = unknown.map(Kind::name).collect();
        assert_eq!(unknown, ["timeout", "disconnected", "script"]);
    }

    #[test]
    fn what_the_server_says_is_bounded_and_on_one_line() {
        let text = shown("ERR", &format!("a\nb{}", "x".repeat(1000)));
        assert!(text.starts_with("ERR a bxx"), "{text}");
        assert_eq!(text.chars().count(), 200);
    }
}
