//! What the generated message would have read.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use prost::Message as _;

use super::super::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::super::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor as parts;
use super::super::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use super::*;

fn entry() -> impl Strategy<Value = parts::Entry> {
    ("[a-z]{0,3}|\\PC{0,200}", "\\PC{0,8}").prop_map(|(value, key)| parts::Entry { key, value })
}

fn limit() -> impl Strategy<Value = parts::RateLimitOverride> {
    let multiplier = option::of(any::<u32>());
    (any::<u32>(), any::<i32>(), -2..9, any::<bool>(), multiplier).prop_map(
        |(requests_per_unit, any, known, odd, unit_multiplier)| parts::RateLimitOverride {
            requests_per_unit,
            unit: if odd { any } else { known },
            unit_multiplier,
        },
    )
}

fn message() -> impl Strategy<Value = RateLimitRequest> {
    let addend = option::of(prop_oneof![Just(0), any::<u64>()]);
    let descriptor = (vec(entry(), 0..4), option::of(limit()), addend, any::<bool>()).prop_map(
        |(entries, limit, hits_addend, is_negative_hits)| RateLimitDescriptor {
            entries,
            limit,
            hits_addend,
            is_negative_hits,
        },
    );
    ("\\PC{0,8}", vec(descriptor, 0..5), any::<u32>()).prop_map(|(domain, descriptors, hits_addend)| {
        RateLimitRequest {
            domain,
            descriptors,
            hits_addend,
        }
    })
}

/// Both readings, in the same form.
fn both(bytes: &[u8]) -> (Option<String>, Option<String>) {
    let mut room = Vec::new();
    let ours = request(bytes, &mut room).ok().map(|read| format!("{read:?}"));
    let theirs = RateLimitRequest::decode(bytes).ok();
    (
        ours,
        theirs.map(|message| format!("{:?}", Request::from(&message))),
    )
}

proptest! {
    #[test]
    fn what_was_written_is_read(message in message()) {
        let (ours, theirs) = both(&message.encode_to_vec());
        prop_assert!(theirs.is_some());
        prop_assert_eq!(ours, theirs);
    }

    /// Fields again, which replace or join those before them, and unknown ones between them.
    #[test]
    fn messages_in_a_row_are_one(first in message(), unknown in vec((5_u32..40, any::<u64>()), 0..3), second in message()) {
        let mut bytes = first.encode_to_vec();
        for (tag, n) in unknown {
            prost::encoding::uint64::encode(tag, &n, &mut bytes);
        }
        bytes.extend(second.encode_to_vec());
        let (ours, theirs) = both(&bytes);
        prop_assert!(theirs.is_some());
        prop_assert_eq!(ours, theirs);
    }

    #[test]
    fn a_broken_message_is_refused_where_it_was(message in message(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let mut bytes = message.encode_to_vec();
        prop_assume!(!bytes.is_empty());
        let at = at.index(bytes.len());
        if cut {
            bytes.truncate(at);
        } else {
            bytes[at] = byte;
        }
        let mut room = Vec::new();
        let ours = request(&bytes, &mut room).ok().map(|read| format!("{read:?}"));
        let theirs = RateLimitRequest::decode(&*bytes).ok().map(|message| format!("{:?}", Request::from(&message)));
        // Text that is none is not refused here.
        if theirs.is_some() || room.is_empty() {
            prop_assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn no_bytes_end_it(bytes in vec(any::<u8>(), 0..200)) {
        let _ = request(&bytes, &mut Vec::new());
    }
}

/// A descriptor of one entry whose value is these bytes.
fn with_value(value: &[u8]) -> Vec<u8> {
    let mut entry = vec![0x0a, 1, b'k', 0x12, value.len() as u8];
    entry.extend(value);
    let mut descriptor = vec![0x0a, entry.len() as u8];
    descriptor.extend(entry);
    let mut bytes = vec![0x0a, 1, b'd', 0x12, descriptor.len() as u8];
    bytes.extend(descriptor);
    bytes
}

#[test]
fn a_value_that_is_no_text_counts_with_a_mark_for_each_byte_that_is_none() {
    for (value, counted) in [
        (&b"acme"[..], "acme"),
        (b"ac\xffme", "ac\x7fme"),
        (b"\xff\xfe", "\x7f\x7f"),
        ("gr\u{fc}n".as_bytes(), "gr\u{fc}n"),
        // Cut within a character, and a character beyond the last one.
        (b"gr\xc3", "gr\x7f"),
        (b"a\xf4\x90\x80\x80z", "a\x7f\x7f\x7f\x7fz"),
    ] {
        let bytes = with_value(value);
        let mut room = Vec::new();
        let read = request(&bytes, &mut room).unwrap();
        assert_eq!(read.domain, "d");
        assert_eq!(
            read.descriptors[0].entries[0],
            Entry {
                key: "k",
                value: counted
            }
        );
    }
}

#[test]
fn a_request_of_nothing_but_empty_parts_is_refused() {
    let descriptors = |n: usize| [0x12, 0].repeat(n);
    assert!(request(&descriptors(MOST), &mut Vec::new()).is_ok());
    let many = request(&descriptors(MOST + 1), &mut Vec::new()).unwrap_err();
    assert_eq!(many.to_string(), "more than 1000 of field 2");
    let mut entries = vec![0x12, 0xd2, 0x0f];
    entries.extend([0x0a, 0].repeat(MOST + 1));
    let many = request(&entries, &mut Vec::new()).unwrap_err();
    assert_eq!(many.to_string(), "more than 1000 of field 1");
}
