//! Which of a cluster's slots a key is in, and who serves which.

use redis::Value;

use super::target::Address;

/// How many slots a cluster has.
pub(super) const SLOTS: usize = 16_384;

/// The slot of a key: a checksum of what stands in its first pair of braces, or of all of it.
pub(super) fn slot(key: &[u8]) -> usize {
    usize::from(crc16(tag(key))) % SLOTS
}

fn tag(key: &[u8]) -> &[u8] {
    let find = |from: usize, byte| key[from..].iter().position(|&b| b == byte).map(|at| from + at);
    match find(0, b'{').and_then(|open| Some((open + 1, find(open + 1, b'}')?))) {
        Some((from, to)) if from < to => &key[from..to],
        _ => key,
    }
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    const TABLE: [u16; 256] = {
        let mut table = [0; 256];
        let mut i = 0;
        while i < 256 {
            let mut crc = (i as u16) << 8;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x8000 == 0 {
                    crc << 1
                } else {
                    crc << 1 ^ 0x1021
                };
                bit += 1;
            }
            table[i] = crc;
            i += 1;
        }
        table
    };
    bytes.iter().fold(0, |crc, &byte| {
        crc << 8 ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)]
    })
}

/// Slots in a row with one owner.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) primary: Address,
    pub(super) replicas: Vec<Address>,
}

/// Reads the answer to CLUSTER SLOTS from the node at `asked`. `None` if it is none, or knows no slots.
pub(super) fn read(answer: &Value, asked: &Address) -> Option<Vec<Range>> {
    let Value::Array(rows) = answer else { return None };
    let ranges: Option<Vec<_>> = rows.iter().map(|row| range(row, asked)).collect();
    ranges.filter(|ranges| !ranges.is_empty())
}

fn range(row: &Value, asked: &Address) -> Option<Range> {
    let Value::Array(row) = row else { return None };
    let [first, last, primary, replicas @ ..] = row.as_slice() else {
        return None;
    };
    let (first, last) = (number(first)?, number(last)?);
    (first <= last && last < SLOTS).then_some(Range {
        first,
        last,
        primary: address(primary, asked)?,
        replicas: replicas
            .iter()
            .filter_map(|replica| address(replica, asked))
            .collect(),
    })
}

fn address(node: &Value, asked: &Address) -> Option<Address> {
    let Value::Array(node) = node else { return None };
    let [host, port, ..] = node.as_slice() else {
        return None;
    };
    let host = match host {
        Value::Nil => "",
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        Value::SimpleString(host) => host,
        _ => return None,
    };
    let port = u16::try_from(number(port)?).ok().filter(|&port| port != 0)?;
    Some(Address::named(host, port, asked))
}

fn number(value: &Value) -> Option<usize> {
    match value {
        Value::Int(number) => usize::try_from(*number).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_in_the_slot_that_the_specification_says() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b""), 0);
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(slot(b"foo{bar}{zap}"), slot(b"bar"));
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        // Empty or open braces are no tag.
        assert_eq!(tag(b"foo{}{bar}"), b"foo{}{bar}");
        assert_eq!(tag(b"foo{bar"), b"foo{bar");
        assert_eq!(tag(b"a}b{"), b"a}b{");
    }

    #[test]
    fn a_table_of_slots_is_read() {
        let asked = Address {
            host: "here".to_owned(),
            port: 1,
        };
        let at = |host: &str, port| Address {
            host: host.to_owned(),
            port,
        };
        let text = b"*2\r\n*4\r\n:0\r\n:99\r\n*3\r\n$3\r\none\r\n:7\r\n$2\r\nid\r\n*3\r\n$3\r\ntwo\r\n:8\r\n$2\r\nid\r\n\
            *3\r\n:100\r\n:16383\r\n*3\r\n$0\r\n\r\n:9\r\n$2\r\nid\r\n";
        let table = read(&redis::parse_redis_value(text).unwrap(), &asked).unwrap();
        assert_eq!(
            table,
            [
                Range {
                    first: 0,
                    last: 99,
                    primary: at("one", 7),
                    replicas: vec![at("two", 8)]
                },
                Range {
                    first: 100,
                    last: 16_383,
                    primary: at("here", 9),
                    replicas: vec![]
                }
            ]
        );
        for text in [
            &b"*0\r\n"[..],
            b":1\r\n",
            b"*1\r\n*3\r\n:5\r\n:16384\r\n*2\r\n$1\r\na\r\n:7\r\n",
        ] {
            assert_eq!(read(&redis::parse_redis_value(text).unwrap(), &asked), None);
        }
    }
}
