//! An answer written to the wire at once, without the messages in between.
//!
//! The generated messages own every text and keep metadata in an ordered map, all to be written once and
//! dropped: `answer_to_wire` of `make bench` has both ways. What is written is theirs to the byte (the
//! tests compare); metadata that only some policies have still goes through them.

use hyper::body::Bytes;
use prost::encoding::WireType;
use prost_types::Struct;

use super::convert::{self, EXCESS_HEADER};
use super::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use crate::answer::{self, Answer, CurrentLimit, Metadata};

/// What an answer usually needs and a little more: four statuses, five headers and metadata take 450 bytes.
const ROOM: usize = 768;

/// What gRPC puts before a message: that it is not compressed, and its length.
pub(super) const PREFIX: usize = 5;

/// A `RateLimitResponse` as bytes.
#[derive(Debug, PartialEq)]
pub struct Encoded(Vec<u8>);

impl Encoded {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0[PREFIX..]
    }

    /// The bytes as a gRPC message.
    pub(super) fn framed(mut self) -> Bytes {
        // No answer is four GiB long.
        let length = self.bytes().len() as u32;
        self.0[1..PREFIX].copy_from_slice(&length.to_be_bytes());
        self.0.into()
    }
}

impl From<Answer<'_>> for Encoded {
    fn from(answer: Answer<'_>) -> Self {
        let mut wire = Wire(Vec::with_capacity(ROOM));
        wire.0.extend_from_slice(&[0; PREFIX]);
        wire.number(1, code(answer.refused));
        for status in &answer.statuses {
            wire.nested(2, |wire| wire.status(status));
        }
        for (name, value) in &answer.headers {
            wire.nested(3, |wire| wire.header(name, value));
        }
        if let Some(action) = answer.excess {
            wire.nested(4, |wire| wire.header(EXCESS_HEADER, action.name()));
        }
        wire.text(5, answer.body.as_deref().unwrap_or_default());
        if let Some(metadata) = &answer.metadata {
            wire.nested(6, |wire| wire.metadata(metadata));
        }
        Self(wire.0)
    }
}

fn code(over: bool) -> u64 {
    if over {
        Code::OverLimit as u64
    } else {
        Code::Ok as u64
    }
}

/// Fields in protobuf's encoding. As in proto3, what is zero or empty is left out.
struct Wire(Vec<u8>);

impl Wire {
    fn number(&mut self, tag: u32, n: u64) {
        if n != 0 {
            self.key(tag, WireType::Varint);
            self.varint(n);
        }
    }

    /// No field that we write has a number above fifteen: one byte.
    fn key(&mut self, tag: u32, wire_type: WireType) {
        self.0.push((tag << 3) as u8 | wire_type as u8);
    }

    fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    fn text(&mut self, tag: u32, text: &str) {
        if !text.is_empty() {
            self.member(tag, text);
        }
    }

    /// A text that stands there even when it is empty.
    fn member(&mut self, tag: u32, text: &str) {
        self.key(tag, WireType::LengthDelimited);
        self.varint(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    fn nested(&mut self, tag: u32, write: impl FnOnce(&mut Self)) {
        self.key(tag, WireType::LengthDelimited);
        // The length is known afterwards; nearly always one byte is room enough for it.
        let mut at = self.0.len();
        self.0.push(0);
        write(self);
        let mut length = self.0.len() - at - 1;
        while length >= 0x80 {
            self.0[at] = length as u8 | 0x80;
            length >>= 7;
            at += 1;
            self.0.insert(at, 0);
        }
        self.0[at] = length as u8;
    }

    fn status(&mut self, status: &answer::Status<'_>) {
        self.number(1, code(status.over_limit));
        if let Some(limit) = &status.limit {
            self.nested(2, |wire| wire.limit(limit));
        }
        self.number(3, status.remaining.into());
        if let Some(seconds) = status.reset_seconds {
            self.nested(4, |wire| wire.number(1, convert::seconds(seconds).unsigned_abs()));
        }
    }

    fn limit(&mut self, limit: &CurrentLimit<'_>) {
        self.number(1, limit.requests_per_unit.into());
        self.number(2, convert::wire_unit(limit.unit) as u64);
        self.text(3, &limit.name);
        if let Some(multiplier) = limit.multiplier {
            self.nested(4, |wire| wire.number(1, multiplier.into()));
        }
    }

    fn header(&mut self, name: &str, value: &str) {
        self.text(1, name);
        self.text(2, value);
    }

    /// A `google.protobuf.Struct`, its keys in order.
    fn metadata(&mut self, metadata: &Metadata<'_>) {
        self.text_member("code", Some(metadata.code));
        self.number_member("cost", metadata.cost);
        if metadata.degraded {
            self.value("degraded", |wire| {
                wire.key(4, WireType::Varint);
                wire.0.push(1);
            });
        }
        self.text_member("excess", metadata.excess);
        self.number_member("limit", metadata.limit);
        self.struct_member("metadata", convert::merged(metadata));
        self.text_member("override", metadata.changed_by);
        self.number_member("remaining", metadata.remaining);
        self.number_member("retry_after_ms", metadata.retry_after_ms);
        self.text_member("scope", metadata.scope);
        self.struct_member("shadow", convert::shadow(metadata));
    }

    fn text_member(&mut self, key: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.value(key, |wire| wire.member(3, text));
        }
    }

    fn number_member(&mut self, key: &str, n: Option<u64>) {
        if let Some(n) = n {
            self.value(key, |wire| {
                wire.key(2, WireType::SixtyFourBit);
                wire.0.extend_from_slice(&(n as f64).to_le_bytes());
            });
        }
    }

    fn struct_member(&mut self, key: &str, fields: Option<Struct>) {
        if let Some(fields) = fields {
            self.value(key, |wire| {
                prost::encoding::message::encode(5, &fields, &mut wire.0)
            });
        }
    }

    fn value(&mut self, key: &str, write: impl FnOnce(&mut Self)) {
        self.nested(1, |wire| {
            wire.text(1, key);
            wire.nested(2, write);
        });
    }
}

#[cfg(test)]
mod tests;
