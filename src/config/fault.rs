//! What is wrong with a policy file, and how it is shown.
//!
//! A fault carries everything needed to print it, so that it can outlive the file: the log, the
//! metrics and the HTTP port show faults long after the text was read. Text from the file is
//! escaped and clipped wherever it is shown; a policy file must not be able to write to a terminal.

use std::fmt;
use std::sync::Arc;

/// A place in a file: 1-based lines and columns, columns counted in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span {
    /// Line of the first character.
    pub line: u32,
    /// Column of the first character.
    pub column: u32,
    /// Line of the first character after the end.
    pub end_line: u32,
    /// Column of the first character after the end.
    pub end_column: u32,
}

/// Whether a fault keeps its domain from being used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The domain is refused.
    Error,
    /// The domain is used; somebody should look.
    Warning,
}

/// One fault of a policy file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Error or warning.
    pub severity: Severity,
    /// The file, as it was named to the loader.
    pub file: Arc<str>,
    /// Where in the file.
    pub span: Span,
    /// What is wrong: lower case, no full stop.
    pub message: String,
    /// What to write instead; may have several lines.
    pub help: Option<String>,
    /// The part of the file that shows it.
    pub excerpt: Excerpt,
}

/// What is shown of the line that a fault stands on: escaped, and clipped to a screen's width.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Excerpt {
    /// The text; empty when there is nothing to show.
    pub text: String,
    /// How many characters stand before the fault.
    pub indent: usize,
    /// How many characters are the fault.
    pub width: usize,
}

impl Fault {
    /// Adds what to write instead.
    pub fn help(&mut self, text: impl Into<String>) {
        self.help = Some(text.into());
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let Span { line, column, .. } = self.span;
        writeln!(
            f,
            "{}:{line}:{column}: {severity}: {}",
            escape(&self.file),
            self.message
        )?;
        let Excerpt { text, indent, width } = &self.excerpt;
        if !text.is_empty() {
            writeln!(f, "  | {text}")?;
            writeln!(
                f,
                "  | {:indent$}{:^<width$}",
                "",
                "^",
                indent = *indent,
                width = *width
            )?;
        }
        for (n, line) in self.help.iter().flat_map(|help| help.lines()).enumerate() {
            writeln!(f, "{} {line}", if n == 0 { "help:" } else { "     " })?;
        }
        Ok(())
    }
}

/// The faults of one file while it is being read.
#[derive(Debug)]
pub struct Faults<'t> {
    file: Arc<str>,
    lines: Vec<&'t str>,
    list: Vec<Fault>,
    errors: usize,
    /// What is written to once the list is full.
    spare: Fault,
    dropped: usize,
}

/// Most faults of one file that are kept: nobody reads more, and a generated file can have millions.
const MOST_FAULTS: usize = 1_000;

impl<'t> Faults<'t> {
    /// A collector for the file called `file` that holds `text`.
    pub fn new(file: Arc<str>, text: &'t str) -> Self {
        let spare = Fault {
            severity: Severity::Error,
            file: Arc::clone(&file),
            span: Span::default(),
            message: String::new(),
            help: None,
            excerpt: Excerpt::default(),
        };
        Faults {
            file,
            lines: split_lines(text),
            list: Vec::new(),
            errors: 0,
            spare,
            dropped: 0,
        }
    }

    /// Notes something that keeps the domain from being used.
    pub fn error(&mut self, span: Span, message: impl Into<String>) -> &mut Fault {
        self.errors += 1;
        self.push(Severity::Error, span, message.into())
    }

    /// Notes something that somebody should look at.
    pub fn warning(&mut self, span: Span, message: impl Into<String>) -> &mut Fault {
        self.push(Severity::Warning, span, message.into())
    }

    /// How many errors were noted so far: a document is good if reading it added none.
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// The file's name.
    pub fn file(&self) -> &Arc<str> {
        &self.file
    }

    /// A line of the file, counted from 1.
    pub fn line(&self, line: u32) -> &'t str {
        (line as usize)
            .checked_sub(1)
            .and_then(|index| self.lines.get(index))
            .copied()
            .unwrap_or("")
    }

    /// Drops what was noted so far, when one fault explains all of it.
    pub fn clear(&mut self) {
        self.list.clear();
        self.errors = 0;
        self.dropped = 0;
    }

    /// The faults by position. A block that an alias repeats is reported once.
    pub fn into_sorted(self) -> Vec<Fault> {
        let mut list = self.list;
        list.sort_by(|a, b| {
            let place = |f: &Fault| (f.span.line, f.span.column, f.severity);
            place(a).cmp(&place(b))
        });
        let mut seen = std::collections::HashSet::new();
        list.retain(|f| seen.insert((f.severity, f.span, f.message.clone())));
        if let Some(last) = list.last().filter(|_| self.dropped > 0) {
            let message = format!("{} more faults in this file are not shown", self.dropped);
            let excerpt = Excerpt::default();
            list.push(Fault {
                message,
                excerpt,
                severity: if self.errors > 0 {
                    Severity::Error
                } else {
                    Severity::Warning
                },
                help: None,
                ..last.clone()
            });
        }
        list
    }

    fn push(&mut self, severity: Severity, span: Span, message: String) -> &mut Fault {
        if self.list.len() >= MOST_FAULTS {
            self.dropped += 1;
            return &mut self.spare;
        }
        let excerpt = Excerpt::new(self.line(span.line), span);
        let file = Arc::clone(&self.file);
        self.list.push(Fault {
            severity,
            file,
            span,
            message,
            help: None,
            excerpt,
        });
        let last = self.list.len() - 1;
        &mut self.list[last]
    }
}

/// Text from a file as a message shows it: in backticks, escaped, clipped.
pub fn quoted(text: &str) -> String {
    const MOST: usize = 60;
    let mut shown = escape(&text.chars().take(MOST).collect::<String>());
    if text.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}

/// Replaces what a terminal would act upon (control characters, direction marks) by its escape.
pub fn escape(text: &str) -> String {
    text.chars()
        .fold(String::with_capacity(text.len()), |mut shown, c| {
            push_escaped(&mut shown, c);
            shown
        })
}

fn push_escaped(shown: &mut String, c: char) {
    let invisible =
        matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    if c.is_control() || invisible {
        shown.extend(c.escape_default());
    } else {
        shown.push(c);
    }
}

impl Excerpt {
    fn new(source: &str, span: Span) -> Self {
        const BEFORE: usize = 60;
        const MOST: usize = 110;
        let column = (span.column.max(1) - 1) as usize;
        let end = if span.end_line == span.line {
            span.end_column.saturating_sub(1) as usize
        } else {
            column + 1
        };
        let end = end.max(column + 1);
        let length = source.chars().count();
        let from = if length > MOST && column > BEFORE {
            column - BEFORE
        } else {
            0
        };
        let mut text = String::from(if from > 0 { "…" } else { "" });
        let (mut indent, mut width) = (None, 1);
        for (at, c) in source.chars().enumerate().skip(from).take(MOST) {
            if at == column {
                indent = Some(text.chars().count());
            }
            push_escaped(&mut text, c);
            if at < end {
                width = text.chars().count().saturating_sub(indent.unwrap_or(0)).max(1);
            }
        }
        let indent = indent.unwrap_or_else(|| text.chars().count());
        if from + MOST < length {
            text.push('…');
        }
        let text = text.trim_end().to_owned();
        Excerpt { text, indent, width }
    }
}

/// YAML's own idea of lines: LF, CRLF and a lone CR end one.
fn split_lines(text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['\n', '\r']) {
        lines.push(&rest[..at]);
        rest = &rest[at..];
        rest = rest.strip_prefix("\r\n").unwrap_or_else(|| &rest[1..]);
    }
    lines.push(rest);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(line: u32, column: u32, end_column: u32) -> Span {
        Span {
            line,
            column,
            end_line: line,
            end_column,
        }
    }

    fn shown(text: &str, span: Span) -> String {
        let mut faults = Faults::new("p.yaml".into(), text);
        faults.error(span, "bad");
        faults.into_sorted()[0].to_string()
    }

    #[test]
    fn a_fault_shows_place_line_and_marker() {
        assert_eq!(
            shown("a: 1\n  b: xyz\n", at(2, 6, 9)),
            "p.yaml:2:6: error: bad\n  |   b: xyz\n  |      ^^^\n"
        );
    }

    #[test]
    fn help_of_several_lines_is_aligned() {
        let mut faults = Faults::new("p.yaml".into(), "a");
        faults.error(at(1, 1, 2), "bad").help("write\n  b");
        assert_eq!(
            faults.into_sorted()[0].to_string(),
            "p.yaml:1:1: error: bad\n  | a\n  | ^\nhelp: write\n        b\n"
        );
    }

    #[test]
    fn control_characters_are_escaped_and_the_marker_still_fits() {
        assert_eq!(
            shown("\tk: \u{1b}[31mred\r\n", at(1, 5, 6)),
            "p.yaml:1:5: error: bad\n  | \\tk: \\u{1b}[31mred\n  |      ^^^^^^\n"
        );
        assert_eq!(quoted("a\u{202e}b\n"), "`a\\u{202e}b\\n`");
    }

    #[test]
    fn a_long_line_is_clipped_around_the_fault() {
        let text = format!("{}X{}", "a".repeat(500), "b".repeat(500));
        let shown = shown(&text, at(1, 501, 502));
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[1].chars().count() < 120 && lines[1].ends_with('…'));
        let caret = lines[2].chars().position(|c| c == '^').unwrap();
        assert_eq!(lines[1].chars().nth(caret), Some('X'));
    }

    #[test]
    fn faults_come_in_order_of_position_and_once_each() {
        let mut faults = Faults::new("p.yaml".into(), "a\nb\n");
        faults.warning(at(2, 1, 2), "second");
        faults.error(at(1, 1, 2), "first");
        faults.error(at(1, 1, 2), "first");
        let messages: Vec<String> = faults.into_sorted().into_iter().map(|f| f.message).collect();
        assert_eq!(messages, ["first", "second"]);
    }

    #[test]
    fn a_flood_of_faults_is_counted_and_not_kept() {
        let mut faults = Faults::new("p.yaml".into(), "a");
        for column in 1..=5_000 {
            faults.error(at(1, column, column + 1), "bad").help("x");
        }
        assert_eq!(faults.errors(), 5_000);
        let list = faults.into_sorted();
        assert_eq!(list.len(), 1_001);
        assert_eq!(list[1_000].message, "4000 more faults in this file are not shown");
    }

    #[test]
    fn lines_end_as_yaml_says() {
        assert_eq!(split_lines("a\r\nb\rc\nd"), ["a", "b", "c", "d"]);
    }
}
