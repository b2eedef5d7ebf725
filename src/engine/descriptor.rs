//! The request side: what a caller's descriptors say, borrowed from the wire and normalised.

use std::borrow::Cow;
use std::net::IpAddr;

use ipnet::IpNet;
use smallvec::SmallVec;

use super::limit::{MAX_UNITS, Unit};

/// One question of Envoy's.
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    /// Which rules apply.
    pub domain: &'a str,
    /// The facets of the request, in order.
    pub descriptors: SmallVec<[Descriptor<'a>; 4]>,
    /// The addend of descriptors without their own; 0 means it was not sent.
    pub hits_addend: u32,
}

/// One facet of a request.
#[derive(Clone, Debug, Default)]
pub struct Descriptor<'a> {
    /// Its entries, in order.
    pub entries: SmallVec<[Entry<'a>; 4]>,
    /// A limit sent along, instead of the policy's.
    pub limit: Option<WireOverride>,
    /// Its own addend; an explicit 0 only looks.
    pub hits_addend: Option<u64>,
    /// Gives the addend back instead of spending it.
    pub is_negative_hits: bool,
}

/// One key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key, as configured in Envoy.
    pub key: &'a str,
    /// The value; any bytes a caller chose.
    pub value: &'a str,
}

/// A limit that came with the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireOverride {
    /// Units per window.
    pub requests_per_unit: u32,
    /// The window's unit; `None` when the wire said UNKNOWN.
    pub unit: Option<Unit>,
    /// How many units a window spans; 0 is 1.
    pub multiplier: u32,
}

/// What a descriptor asks of the budgets it meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addend {
    /// One request, of whatever weight.
    One,
    /// Look, spend nothing.
    Look,
    /// That many units.
    Units(u64),
    /// Give back one request.
    RefundOne,
    /// Give back that many units.
    Refund(u64),
}

impl<'a> Request<'a> {
    /// The value of the first entry of that name in any descriptor: a request's attribute.
    pub fn attribute(&self, name: &str) -> Option<&'a str> {
        let mut entries = self.descriptors.iter().flat_map(|d| d.entries.iter());
        entries.find(|entry| entry.key == name).map(|entry| entry.value)
    }

    /// What this descriptor of the request asks for.
    pub fn addend(&self, descriptor: &Descriptor<'_>) -> Addend {
        let units = match (descriptor.hits_addend, self.hits_addend) {
            (Some(units), _) => units.min(MAX_UNITS),
            (None, 0) => 1,
            (None, units) => u64::from(units),
        };
        match (units, descriptor.is_negative_hits) {
            (0, _) => Addend::Look,
            (1, false) => Addend::One,
            (1, true) => Addend::RefundOne,
            (units, false) => Addend::Units(units),
            (units, true) => Addend::Refund(units),
        }
    }
}

/// How an entry's value is read as a network address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRule {
    /// Bits of an IPv4 address that tell callers apart.
    pub ipv4_prefix: u8,
    /// Bits of an IPv6 address that tell callers apart.
    pub ipv6_prefix: u8,
    /// The value is a forwarding chain: the client is that many addresses from its right end.
    pub trusted_hops: Option<usize>,
}

impl Default for AddressRule {
    fn default() -> Self {
        Self {
            ipv4_prefix: 32,
            ipv6_prefix: 64,
            trusted_hops: None,
        }
    }
}

/// The value under which all callers without a readable address share one budget.
pub const NO_ADDRESS: &str = "no-address";

impl AddressRule {
    /// The address of the caller; `None` when the value holds none at the trusted place.
    pub fn parse(&self, value: &str) -> Option<IpAddr> {
        let text = match self.trusted_hops {
            None => value,
            Some(hops) => value.rsplit(',').nth(hops.checked_sub(1)?)?,
        };
        let text = text.trim();
        // A zone belongs to the host that wrote it, not to the address.
        let text = text.split_once('%').map_or(text, |(address, _)| address);
        let address: IpAddr = text.parse().ok()?;
        Some(address.to_canonical())
    }

    /// The network that the caller is counted as: `10.1.2.3`, `10.1.0.0/16`, `2001:db8:0:1::/64`.
    pub fn network<'v>(&self, value: &'v str) -> Cow<'v, str> {
        self.parse(value)
            .map_or(Cow::Borrowed(NO_ADDRESS), |address| self.counted(address, value))
    }

    /// The same for an address that was parsed from `value`.
    pub fn counted<'v>(&self, address: IpAddr, value: &'v str) -> Cow<'v, str> {
        let prefix = match address {
            IpAddr::V4(_) => self.ipv4_prefix,
            IpAddr::V6(_) => self.ipv6_prefix,
        };
        // Wider than an address is long means the address itself.
        match IpNet::new(address, prefix) {
            Ok(network) if prefix < network.max_prefix_len() => Cow::Owned(network.trunc().to_string()),
            _ => spelled(address, value),
        }
    }
}

/// An address that was parsed from `value` in its one spelling: nearly always as it came.
pub fn spelled(address: IpAddr, value: &str) -> Cow<'_, str> {
    // Without anything around it; leading zeros are not parsed.
    let bare = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    if address.is_ipv4() && value.bytes().all(bare) {
        Cow::Borrowed(value)
    } else {
        Cow::Owned(address.to_string())
    }
}

/// A path without its query, with `//` collapsed and percent-escapes of unreserved characters decoded:
/// the spellings of one path that Envoy routes alike.
pub fn normalize_path(path: &str) -> Cow<'_, str> {
    let cut = path.split_once('?').map_or(path, |(path, _)| path);
    if !cut.contains("//") && !cut.contains('%') {
        return Cow::Borrowed(cut);
    }
    let bytes = cut.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let mut byte = bytes[i];
        let mut step = 1;
        if byte == b'%' {
            let hex = |at: usize| bytes.get(at).and_then(|&b| char::from(b).to_digit(16));
            if let (Some(high), Some(low)) = (hex(i + 1), hex(i + 2)) {
                let decoded = (high * 16 + low) as u8;
                if decoded.is_ascii_alphanumeric() || matches!(decoded, b'-' | b'.' | b'_' | b'~') {
                    (byte, step) = (decoded, 3);
                }
            }
        }
        if !(byte == b'/' && out.last() == Some(&b'/')) {
            out.push(byte);
        }
        i += step;
    }
    // Only whole ASCII escapes were replaced, so what was UTF-8 still is.
    String::from_utf8(out).map_or(Cow::Borrowed(cut), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_counted_by_network() {
        let rule = AddressRule::default();
        for (value, network) in [
            ("10.1.2.3", "10.1.2.3"),
            (" 10.1.2.3 ", "10.1.2.3"),
            ("::ffff:10.1.2.3", "10.1.2.3"),
            ("2001:DB8:0:1:aaaa::1", "2001:db8:0:1::/64"),
            ("2001:db8:0:1:bbbb::2", "2001:db8:0:1::/64"),
            ("fe80::1%eth0", "fe80::/64"),
            ("1.2.3.4:5678", NO_ADDRESS),
            ("[2001:db8::1]:80", NO_ADDRESS),
            ("garbage", NO_ADDRESS),
            ("", NO_ADDRESS),
        ] {
            assert_eq!(rule.network(value), network, "{value:?}");
        }
        let wide = AddressRule {
            ipv4_prefix: 24,
            ipv6_prefix: 48,
            trusted_hops: None,
        };
        assert_eq!(wide.network("10.1.2.3"), "10.1.2.0/24");
        assert_eq!(wide.network("2001:db8:0:1::1"), "2001:db8::/48");
        assert_eq!(
            AddressRule {
                ipv4_prefix: 0,
                ..wide
            }
            .network("10.1.2.3"),
            "0.0.0.0/0"
        );
    }

    #[test]
    fn chains_are_counted_from_the_right() {
        let chain = "9.9.9.9, 1.1.1.1, 2.2.2.2";
        for (hops, network) in [
            (1, "2.2.2.2"),
            (2, "1.1.1.1"),
            (3, "9.9.9.9"),
            (4, NO_ADDRESS),
            (0, NO_ADDRESS),
        ] {
            let rule = AddressRule {
                trusted_hops: Some(hops),
                ..AddressRule::default()
            };
            assert_eq!(rule.network(chain), network, "{hops} hops");
        }
    }

    #[test]
    fn spellings_of_one_path_are_one() {
        for (path, normal) in [
            ("/login", "/login"),
            ("/login?x=1?y", "/login"),
            ("//login", "/login"),
            ("/%6Cogin", "/login"),
            ("/%6cogin//?", "/login/"),
            ("/a%2Fb", "/a%2Fb"),
            ("/a%", "/a%"),
            ("/a%2", "/a%2"),
            ("/%zz", "/%zz"),
            ("/ü//%41", "/ü/A"),
            ("", ""),
        ] {
            assert_eq!(normalize_path(path), normal, "{path}");
        }
    }
}
