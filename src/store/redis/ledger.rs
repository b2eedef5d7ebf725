//! The ledger in Redis: a hash of entries and a stream, in one slot, each change one script.
//!
//! Scripts and not plain commands, for a proxy in between passes those already, and one call both asks for
//! the version and brings what changed. They are sent whole: changes are rare, and the question is short.

use redis::{Cmd, Value, cmd, from_redis_value};

use super::error::CallError;
use super::{BEAT, Redis};
use crate::engine::time::Timestamp;
use crate::store::ledger::{
    Entry, LedgerError, Line, MOST_ENTRIES, MOST_LINES, MOST_TOLD, NewEntry, News, Note, event,
};

/// A hash: what each field holds is its line, when it ends (us), its id and its body.
const ENTRIES: &str = "c:{overrides}";

/// The log.
const LOG: &str = "c:{overrides}:audit";

/// How long the log lives after its last line, and the entries after the last of them has ended: as long as
/// a replica may take to see that it has.
const LOG_LIVES: &str = "7776000";
const ENTRIES_LIVE: &str = "86400";

/// What the scripts share: `line` writes one to the log, `keep` lets a key live that many seconds at least.
const WRITE: &str = "
local function keep(key, seconds)
  if redis.call('TTL', key) < seconds then redis.call('EXPIRE', key, seconds) end
end
local function line(event, id, replaced, body)
  return redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[1], '*',
    'event', event, 'id', id, 'replaced', replaced, 'body', body)
end
local function done()
  local left = redis.call('TTL', KEYS[1])
  local lives = tonumber(ARGV[2])
  keep(KEYS[2], left > lives and left or lives)
end
";

/// ARGV[3..]: the version that is known, how many lines to tell.
const NEWS: &str = "
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
local version = last[1] and last[1][1] or '0-0'
if version == ARGV[3] then return false end
local notes = redis.call('XRANGE', KEYS[2], '(' .. ARGV[3], '+', 'COUNT', ARGV[4])
return { version, redis.call('HGETALL', KEYS[1]), notes }";

/// ARGV[3..]: event, field, id, end (us), seconds to live, body, how many there may be.
const PUT: &str = "
local old = redis.call('HGET', KEYS[1], ARGV[4])
if old and ARGV[3] == 'restored' then return 1 end
if not old and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[9]) then return 0 end
local replaced = old and string.match(old, '^%S+ %S+ (%S+)') or ''
local made = line(ARGV[3], ARGV[5], replaced, ARGV[8])
redis.call('HSET', KEYS[1], ARGV[4], table.concat({ made, ARGV[6], ARGV[5], ARGV[8] }, ' '))
local time = redis.call('TIME')
keep(KEYS[1], math.max(math.ceil(tonumber(ARGV[6]) / 1000000) - time[1], 0) + tonumber(ARGV[7]))
done()
return 1";

/// ARGV[3..]: event, field, id, body.
const REMOVE: &str = "
local old = redis.call('HGET', KEYS[1], ARGV[4])
if not old or string.match(old, '^%S+ %S+ (%S+)') ~= ARGV[5] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[4])
line(ARGV[3], ARGV[5], '', ARGV[6])
done()
return 1";

/// ARGV[3..]: event, fields.
const SWEEP: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
for i = 4, #ARGV do
  local old = redis.call('HGET', KEYS[1], ARGV[i])
  if old then
    local ends, id, body = string.match(old, '^%S+ (%S+) (%S+) (.*)$')
    if tonumber(ends) <= now then
      redis.call('HDEL', KEYS[1], ARGV[i])
      line(ARGV[3], id, '', body)
    end
  end
end
done()
return 1";

/// ARGV[3..]: event, body.
const NOTE: &str = "
line(ARGV[3], '', '', ARGV[4])
done()
return 1";

const TELL: &str = "return redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', ARGV[3])";

impl Redis {
    pub(in crate::store) async fn news(&self, known: Line) -> Result<Option<News>, CallError> {
        let known = format!("{}-{}", known.0, known.1);
        let answer = self.tell(NEWS, &[&known, &MOST_TOLD.to_string()]).await?;
        match answer {
            Value::Nil => Ok(None),
            answer => match news(answer) {
                Some(news) => Ok(Some(news)),
                None => Err(self.client.nonsense(ENTRIES.as_bytes(), "no news")),
            },
        }
    }

    pub(in crate::store) async fn put(&self, new: &NewEntry<'_>) -> Result<(), LedgerError> {
        self.make(event::SET, new).await
    }

    pub(in crate::store) async fn restore(&self, new: &NewEntry<'_>) -> Result<(), LedgerError> {
        self.make(event::RESTORED, new).await
    }

    async fn make(&self, event: &str, new: &NewEntry<'_>) -> Result<(), LedgerError> {
        let (expires, most) = (new.expires.0.to_string(), MOST_ENTRIES.to_string());
        let args = [event, new.field, new.id, &expires, ENTRIES_LIVE, new.body, &most];
        match self.write(PUT, &args).await? {
            true => Ok(()),
            false => Err(LedgerError::Full),
        }
    }

    pub(in crate::store) async fn remove(
        &self,
        field: &str,
        id: &str,
        body: &str,
    ) -> Result<bool, CallError> {
        self.write(REMOVE, &[event::REVOKED, field, id, body]).await
    }

    pub(in crate::store) async fn sweep(&self, fields: &[&str]) -> Result<(), CallError> {
        let args: Vec<&str> = std::iter::once(event::EXPIRED)
            .chain(fields.iter().copied())
            .collect();
        self.write(SWEEP, &args).await.map(drop)
    }

    pub(in crate::store) async fn note(&self, event: &str, body: &str) -> Result<(), CallError> {
        self.write(NOTE, &[event, body]).await.map(drop)
    }

    pub(in crate::store) async fn log(&self) -> Result<Vec<Note>, CallError> {
        let told = self.tell(TELL, &[&MOST_TOLD.to_string()]).await?;
        notes(told).ok_or_else(|| self.client.nonsense(LOG.as_bytes(), "no log"))
    }

    async fn write(&self, script: &str, args: &[&str]) -> Result<bool, CallError> {
        match self.tell(&format!("{WRITE}{script}"), args).await? {
            Value::Int(done) => Ok(done == 1),
            _ => Err(self.client.nonsense(ENTRIES.as_bytes(), "neither done nor not")),
        }
    }

    /// Off the way of requests: it may take as long as it is useful.
    async fn tell(&self, script: &str, args: &[&str]) -> Result<Value, CallError> {
        let mut command: Cmd = cmd("EVAL");
        command.arg(script).arg(2).arg(ENTRIES).arg(LOG);
        command.arg(MOST_LINES).arg(LOG_LIVES).arg(args);
        self.client.command(ENTRIES.as_bytes(), &command, BEAT / 2).await
    }
}

fn news(answer: Value) -> Option<News> {
    let (version, held, told): (String, Vec<(String, String)>, Value) = from_redis_value(answer).ok()?;
    let entries = held.into_iter().map(|(field, text)| entry(field, &text));
    Some(News {
        version: line(&version)?,
        entries: entries.collect::<Option<_>>()?,
        notes: notes(told)?,
    })
}

fn entry(field: String, text: &str) -> Option<Entry> {
    let mut parts = text.splitn(4, ' ');
    Some(Entry {
        field,
        made: line(parts.next()?)?,
        expires: Timestamp(parts.next()?.parse().ok()?),
        id: parts.next()?.into(),
        body: parts.next()?.into(),
    })
}

fn notes(told: Value) -> Option<Vec<Note>> {
    let told: Vec<(String, Vec<(String, String)>)> = from_redis_value(told).ok()?;
    let note = |(place, fields): (String, Vec<(String, String)>)| {
        let field = |name| {
            let mut found = fields.iter().filter(|(field, _)| field == name);
            found.next().map(|(_, text)| text.clone())
        };
        Some(Note {
            line: line(&place)?,
            event: field("event")?,
            id: field("id")?,
            replaced: field("replaced")?,
            body: field("body")?,
        })
    };
    told.into_iter().map(note).collect()
}

fn line(text: &str) -> Option<Line> {
    let (ms, n) = text.split_once('-')?;
    Some(Line(ms.parse().ok()?, n.parse().ok()?))
}
