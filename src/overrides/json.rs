//! JSON of printable ASCII alone: nothing in it acts on a terminal, a log or a page.

use std::io;

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// A value as JSON on one line, with all but printable ASCII escaped.
pub fn to_json<T: Serialize>(value: &T) -> String {
    let mut out = Vec::new();
    let written = value.serialize(&mut Serializer::with_formatter(&mut out, Ascii));
    written.expect("the values have string keys and are written to memory");
    String::from_utf8(out).expect("it is ASCII")
}

struct Ascii;

impl Formatter for Ascii {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        for c in text.chars() {
            if c.is_ascii() && !c.is_ascii_control() {
                out.write_all(&[c as u8])?;
            } else {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_printable_ascii_is_escaped_and_comes_back() {
        let text = "a\"\\\u{1b}[31m\r\n\u{7f}\u{9b}é\u{202e}🦀";
        let json = to_json(&[text]);
        assert!(json.bytes().all(|b| (b' '..=b'~').contains(&b)), "{json}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&json).unwrap(), [text]);
    }
}
