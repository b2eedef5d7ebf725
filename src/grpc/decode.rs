//! A request read in place: what is decided on borrows from the bytes that came.
//!
//! The generated message owns every key and value, some twenty allocations for four descriptors, only to be
//! borrowed from and dropped: `request_from_wire` of `make bench` has both ways. What is taken and what is
//! refused are the same (the tests compare), but for text that is not UTF-8. A client's header may be any
//! bytes, Envoy passes them on as they are, and an error would make it let the request pass: such text counts
//! with [`NO_TEXT`] in the place of each byte that does not fit.

use std::ops::Range;

use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use smallvec::SmallVec;

use super::convert::unit;
use crate::engine::descriptor::{Descriptor, Entry, Request, WireOverride};

/// Stands for a byte that is no text. It is none that a header may hold, so no other caller's value has it.
pub const NO_TEXT: u8 = 0x7f;

/// How many descriptors a request may have, and entries each of them: more than anybody configures, and few
/// enough that a message of nothing else stays small.
const MOST: usize = 1_000;

/// Why bytes are no request.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The encoding is broken.
    #[error(transparent)]
    Encoding(#[from] DecodeError),
    /// A field is not of its type.
    #[error("field {0} has another type")]
    Type(u32),
    /// A field is longer than what came.
    #[error("field {0} is cut short")]
    Short(u32),
    /// There is no end of descriptors or entries.
    #[error("more than {MOST} of field {0}")]
    Many(u32),
}

/// Reads a request. `mended` is room for a copy, made only if some text is not UTF-8.
///
/// # Errors
/// When the bytes are no request.
pub fn request<'a>(bytes: &'a [u8], mended: &'a mut Vec<u8>) -> Result<Request<'a>, Unreadable> {
    let mut reader = Reader::new(bytes);
    let request = reader.request()?;
    if reader.garbled.is_empty() {
        return Ok(request);
    }
    mended.extend_from_slice(bytes);
    for range in reader.garbled {
        mend(&mut mended[range]);
    }
    Reader::new(mended).request()
}

fn mend(text: &mut [u8]) {
    let mut at = 0;
    while let Err(error) = str::from_utf8(&text[at..]) {
        at += error.valid_up_to();
        let end = error.error_len().map_or(text.len(), |length| at + length);
        text[at..end].fill(NO_TEXT);
        at = end;
    }
}

struct Reader<'a> {
    whole: &'a [u8],
    /// All of it as text, as it mostly is: tags and lengths are small numbers. Its parts then need no look of
    /// their own.
    legible: Option<&'a str>,
    /// Where text is no text.
    garbled: SmallVec<[Range<usize>; 0]>,
}

/// One field: its number, its type, and after it the rest.
type Field<'f, 'a> = (u32, WireType, &'f mut &'a [u8]);

impl<'a> Reader<'a> {
    fn new(whole: &'a [u8]) -> Self {
        Self {
            whole,
            legible: str::from_utf8(whole).ok(),
            garbled: SmallVec::new(),
        }
    }

    fn request(&mut self) -> Result<Request<'a>, Unreadable> {
        let mut request = Request::default();
        fields(self.whole, |field| {
            match field.0 {
                1 => request.domain = self.text(field)?,
                2 => {
                    let descriptor = self.descriptor(delimited(field)?)?;
                    one_more(2, request.descriptors.len())?;
                    request.descriptors.push(descriptor);
                }
                3 => request.hits_addend = number(field)? as u32,
                _ => skip(field)?,
            }
            Ok(())
        })?;
        Ok(request)
    }

    fn descriptor(&mut self, bytes: &'a [u8]) -> Result<Descriptor<'a>, Unreadable> {
        let mut descriptor = Descriptor::default();
        fields(bytes, |field| {
            match field.0 {
                1 => {
                    let entry = self.entry(delimited(field)?)?;
                    one_more(1, descriptor.entries.len())?;
                    descriptor.entries.push(entry);
                }
                2 => wire_override(descriptor.limit.get_or_insert(NO_LIMIT), delimited(field)?)?,
                3 => wrapped(descriptor.hits_addend.get_or_insert(0), delimited(field)?)?,
                4 => descriptor.is_negative_hits = number(field)? != 0,
                _ => skip(field)?,
            }
            Ok(())
        })?;
        Ok(descriptor)
    }

    fn entry(&mut self, bytes: &'a [u8]) -> Result<Entry<'a>, Unreadable> {
        let mut entry = Entry { key: "", value: "" };
        fields(bytes, |field| {
            match field.0 {
                1 => entry.key = self.text(field)?,
                2 => entry.value = self.text(field)?,
                _ => skip(field)?,
            }
            Ok(())
        })?;
        Ok(entry)
    }

    fn text(&mut self, field: Field<'_, 'a>) -> Result<&'a str, Unreadable> {
        let bytes = delimited(field)?;
        let at = bytes.as_ptr().addr() - self.whole.as_ptr().addr();
        let range = at..at + bytes.len();
        let text = match self.legible {
            Some(whole) => whole.get(range.clone()),
            None => str::from_utf8(bytes).ok(),
        };
        Ok(text.unwrap_or_else(|| {
            self.garbled.push(range);
            ""
        }))
    }
}

const NO_LIMIT: WireOverride = WireOverride {
    requests_per_unit: 0,
    unit: None,
    multiplier: 0,
};

fn wire_override(limit: &mut WireOverride, bytes: &[u8]) -> Result<(), Unreadable> {
    fields(bytes, |field| {
        match field.0 {
            1 => limit.requests_per_unit = number(field)? as u32,
            2 => limit.unit = unit(number(field)? as i32),
            3 => {
                let mut multiplier = limit.multiplier.into();
                wrapped(&mut multiplier, delimited(field)?)?;
                limit.multiplier = multiplier as u32;
            }
            _ => skip(field)?,
        }
        Ok(())
    })
}

/// A number in a message of its own, as protobuf tells absent ones from zero.
fn wrapped(n: &mut u64, bytes: &[u8]) -> Result<(), Unreadable> {
    fields(bytes, |field| {
        match field.0 {
            1 => *n = number(field)?,
            _ => skip(field)?,
        }
        Ok(())
    })
}

/// Calls `read` for each field, which takes the field's content off the rest.
fn fields<'a>(
    mut rest: &'a [u8],
    mut read: impl FnMut(Field<'_, 'a>) -> Result<(), Unreadable>,
) -> Result<(), Unreadable> {
    while let Some(&first) = rest.first() {
        let (tag, wire_type) = match first {
            // Nearly all of them.
            0x08..0x80 => {
                rest = &rest[1..];
                (u32::from(first >> 3), WireType::try_from(u64::from(first & 7))?)
            }
            _ => decode_key(&mut rest)?,
        };
        read((tag, wire_type, &mut rest))?;
    }
    Ok(())
}

fn number((tag, wire_type, rest): Field<'_, '_>) -> Result<u64, Unreadable> {
    match wire_type {
        WireType::Varint => varint(rest),
        _ => Err(Unreadable::Type(tag)),
    }
}

fn delimited<'a>((tag, wire_type, rest): Field<'_, 'a>) -> Result<&'a [u8], Unreadable> {
    if wire_type != WireType::LengthDelimited {
        return Err(Unreadable::Type(tag));
    }
    let length = usize::try_from(varint(rest)?).map_err(|_| Unreadable::Short(tag))?;
    let (content, after) = rest.split_at_checked(length).ok_or(Unreadable::Short(tag))?;
    *rest = after;
    Ok(content)
}

fn varint(rest: &mut &[u8]) -> Result<u64, Unreadable> {
    match rest.split_first() {
        Some((&byte @ ..0x80, after)) => {
            *rest = after;
            Ok(byte.into())
        }
        _ => Ok(decode_varint(rest)?),
    }
}

fn one_more(tag: u32, before: usize) -> Result<(), Unreadable> {
    if before < MOST {
        Ok(())
    } else {
        Err(Unreadable::Many(tag))
    }
}

fn skip((tag, wire_type, rest): Field<'_, '_>) -> Result<(), Unreadable> {
    Ok(skip_field(wire_type, tag, rest, DecodeContext::default())?)
}

#[cfg(test)]
mod tests;
