//! Where the store is, as an operator writes it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where the store is: `redis://[user:pass@]host:port[/db]`, `redis-cluster://h1:p1,h2:p2`,
/// `redis-sentinel://h1:p1,h2:p2/master-name`, and the same with `rediss` for TLS. Credentials may stand in
/// each; odd characters in them are percent-encoded.
#[derive(Clone)]
pub struct Target {
    pub(super) topology: Topology,
    pub(super) tls: bool,
    credentials: Option<Credentials>,
    /// Where it was read from; the password in it may be another one tomorrow.
    file: Option<PathBuf>,
}

/// How the nodes are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Topology {
    Single { address: Address, db: u32 },
    Cluster { seeds: Vec<Address> },
    Sentinel { sentinels: Vec<Address>, master: String },
}

/// A host, by name or number, and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

/// Who we are to the store. Without a user, the store's default one.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) user: Option<String>,
    pub(super) password: String,
}

/// Why a text names no store.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTarget {
    /// It begins like no store that is known.
    #[error(
        "unknown store `{0}`: expected redis://, redis-cluster:// or redis-sentinel://, or rediss… for TLS"
    )]
    Scheme(String),
    /// No host where one belongs.
    #[error("a host is missing")]
    NoHost,
    /// Several hosts where one belongs.
    #[error("redis:// takes one host; for several use redis-cluster:// or redis-sentinel://")]
    ManyHosts,
    /// A port that is no number from 1 to 65535.
    #[error("`{0}` is not a port")]
    Port(String),
    /// Brackets around an IPv6 address that do not match.
    #[error("`{0}` is not a host: write an IPv6 address as [::1]:6379")]
    Host(String),
    /// A database that is no number.
    #[error("`{0}` is not the number of a database")]
    Database(String),
    /// A cluster has one database.
    #[error("a cluster has one database; `/{0}` cannot follow its hosts")]
    ClusterDatabase(String),
    /// Sentinels watch several masters.
    #[error("the master's name is missing: redis-sentinel://host:26379/NAME")]
    NoMaster,
    /// A user alone.
    #[error("a user needs a password: user:password@host")]
    NoPassword,
    /// A percent sign that encodes nothing.
    #[error("credentials: `%` must be followed by two hexadecimal digits (`%25` is the sign itself)")]
    Escape,
    /// A slash that would end the credentials.
    #[error("credentials: `/` is written %2F")]
    Slash,
    /// Options, of which there are none.
    #[error("options after `?` are not known")]
    Options,
    /// The file cannot be read.
    #[error("{path}: {problem}")]
    File {
        /// Which file.
        path: String,
        /// What the system says.
        problem: String,
    },
}

impl Target {
    /// The target that stands in a file, which is read again whenever a connection is made: the password may
    /// have been changed.
    ///
    /// # Errors
    /// When it cannot be read, or names no store.
    pub fn from_file(path: &Path) -> Result<Self, BadTarget> {
        let text = fs::read_to_string(path).map_err(|problem| BadTarget::File {
            path: path.display().to_string(),
            problem: problem.to_string(),
        })?;
        let mut target = text.trim().parse::<Self>()?;
        target.file = Some(path.to_owned());
        Ok(target)
    }

    /// The credentials as they are now. A file that is being replaced, or wrong, leaves the old ones.
    pub(super) fn credentials(&self) -> Option<Credentials> {
        if let Some(path) = &self.file
            && let Ok(now) = Self::from_file(path)
        {
            return now.credentials;
        }
        self.credentials.clone()
    }

    /// The addresses that were given.
    pub(super) fn seeds(&self) -> &[Address] {
        match &self.topology {
            Topology::Single { address, .. } => std::slice::from_ref(address),
            Topology::Cluster { seeds: hosts } | Topology::Sentinel { sentinels: hosts, .. } => hosts,
        }
    }

    /// The database to select; zero needs no selecting.
    pub(super) fn db(&self) -> u32 {
        match self.topology {
            Topology::Single { db, .. } => db,
            Topology::Cluster { .. } | Topology::Sentinel { .. } => 0,
        }
    }
}

impl FromStr for Target {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Self, BadTarget> {
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| BadTarget::Scheme(redacted(text)))?;
        let (family, tls) = match scheme.strip_prefix("rediss") {
            Some(family) => (family, true),
            None => match scheme.strip_prefix("redis") {
                Some(family) => (family, false),
                None => return Err(BadTarget::Scheme(scheme.to_owned())),
            },
        };
        if rest.contains('?') {
            return Err(BadTarget::Options);
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if path.contains('@') {
            return Err(BadTarget::Slash);
        }
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (Some(credentials.parse()?), hosts),
            None => (None, authority),
        };
        let port = if family == "-sentinel" { 26_379 } else { 6_379 };
        let mut addresses = hosts
            .split(',')
            .map(|host| Address::read(host.trim(), port))
            .collect::<Result<Vec<_>, _>>()?;
        let topology = match (family, path) {
            ("", _) if addresses.len() > 1 => return Err(BadTarget::ManyHosts),
            ("", path) => Topology::Single {
                address: addresses.swap_remove(0),
                db: match path {
                    "" => 0,
                    db => db.parse().map_err(|_| BadTarget::Database(db.to_owned()))?,
                },
            },
            ("-cluster", "" | "0") => Topology::Cluster { seeds: addresses },
            ("-cluster", path) => return Err(BadTarget::ClusterDatabase(path.to_owned())),
            ("-sentinel", "") => return Err(BadTarget::NoMaster),
            ("-sentinel", master) => Topology::Sentinel {
                sentinels: addresses,
                master: decode(master)?,
            },
            _ => return Err(BadTarget::Scheme(scheme.to_owned())),
        };
        Ok(Self {
            topology,
            tls,
            credentials,
            file: None,
        })
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("topology", &self.topology)
            .field("tls", &self.tls)
            .field("credentials", &self.credentials)
            .field("file", &self.file)
            .finish()
    }
}

impl Address {
    /// `host`, `host:port`, `[v6]:port`.
    fn read(text: &str, default_port: u16) -> Result<Self, BadTarget> {
        let bad = || BadTarget::Host(text.to_owned());
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, after) = rest.split_once(']').ok_or_else(bad)?;
            match after {
                "" => (host, None),
                after => (host, Some(after.strip_prefix(':').ok_or_else(bad)?)),
            }
        } else {
            match text.split_once(':') {
                Some((_, port)) if port.contains(':') => return Err(bad()),
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            }
        };
        if host.is_empty() {
            return Err(BadTarget::NoHost);
        }
        let port = match port {
            None => default_port,
            Some(port) => match port.parse() {
                Ok(0) | Err(_) => return Err(BadTarget::Port(port.to_owned())),
                Ok(port) => port,
            },
        };
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }

    /// As the nodes of a cluster write it in redirections: the last colon parts host and port, and an empty or
    /// unknown host is that of the node that was asked.
    pub(super) fn redirected(text: &str, asked: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok().filter(|&port| port != 0)?;
        Some(Self::named(host, port, asked))
    }

    /// The address of a host as a node of the cluster calls it.
    pub(super) fn named(host: &str, port: u16, asked: &Self) -> Self {
        let host = match host {
            "" | "?" => &asked.host,
            host => host,
        };
        Self {
            host: host.to_owned(),
            port,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Credentials {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Self, BadTarget> {
        let (user, password) = text.split_once(':').ok_or(BadTarget::NoPassword)?;
        if password.is_empty() {
            return Err(BadTarget::NoPassword);
        }
        Ok(Self {
            user: if user.is_empty() {
                None
            } else {
                Some(decode(user)?)
            },
            password: decode(password)?,
        })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .field("password", &"<redacted>")
            .finish()
    }
}

/// What may be shown of a text that could hold a password.
fn redacted(text: &str) -> String {
    let shown = text.rsplit('@').next().unwrap_or_default();
    shown.chars().take(40).collect()
}

fn decode(text: &str) -> Result<String, BadTarget> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || {
            rest.next()
                .and_then(|digit| char::from(digit).to_digit(16))
                .ok_or(BadTarget::Escape)
        };
        bytes.push((digit()? * 16 + digit()?) as u8);
    }
    String::from_utf8(bytes).map_err(|_| BadTarget::Escape)
}

#[cfg(test)]
mod tests;
