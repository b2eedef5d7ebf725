//! Text that is no YAML: what to say instead of the parser's own words.

use granit_parser::{ErrorKind, ScanError};

use super::fault::{Faults, Span};

/// Notes a syntax fault with its likely cause.
pub(super) fn report(error: &ScanError, faults: &mut Faults<'_>) {
    let mark = error.marker();
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let line = number(mark.line());
    let (message, help) = explain(error.kind());
    // The parser stops behind the tab; the tab is what has to be found.
    let tab = faults
        .line(line)
        .chars()
        .position(|c| c == '\t')
        .filter(|_| message == Some(TAB));
    let column = number(tab.unwrap_or(mark.col()).saturating_add(1));
    let span = Span {
        line,
        column,
        end_line: line,
        end_column: column.saturating_add(1),
    };
    let message = message.map_or_else(|| format!("no valid YAML: {}", error.info()), str::to_owned);
    let fault = faults.error(span, message);
    if let Some(help) = help {
        fault.help(help);
    }
}

const TAB: &str = "a tab where YAML wants spaces";

fn explain(kind: &ErrorKind) -> (Option<&'static str>, Option<&'static str>) {
    use ErrorKind as E;
    match kind {
        E::TabInIndentation | E::TabInBlockIndentation | E::TabNotAllowed | E::TabAtBlockScalarStart => (
            Some("a tab where YAML wants spaces"),
            Some("indent with spaces only"),
        ),
        E::MissingAnchorOrAliasName => (
            Some("`*` and `&` mean something else in YAML when unquoted"),
            Some("to mean the text itself, quote it: \"*\""),
        ),
        E::UnclosedQuotedScalar => (
            Some("a quoted text that does not end"),
            Some("add the closing quote"),
        ),
        E::UnclosedFlowCollection { open: '{' } | E::UnexpectedEofFlowMapping => {
            (Some("`{` without its `}`"), None)
        }
        E::UnclosedFlowCollection { .. } | E::UnexpectedEofFlowSequence => {
            (Some("`[` without its `]`"), None)
        }
        E::MappingValueNotAllowed => (
            Some("`:` where no key can stand"),
            Some("check the indentation of this line; a text that contains `: ` must be quoted"),
        ),
        E::ExpectedBlockMappingKey | E::InvalidIndentation | E::SimpleKeyExpected | E::InvalidSimpleKey => (
            Some("this line fits neither the block above nor a new key"),
            Some("keys of one map start in the same column and are followed by `: `"),
        ),
        E::ExpectedBlockSequenceEntry | E::BlockSequenceEntryNotAllowed => (
            Some("this line does not fit the list around it"),
            Some("items of one list start in the same column with `- `"),
        ),
        E::RecursionLimitExceeded => (Some("nested too deeply"), Some("255 levels are the most")),
        E::UnexpectedCharacter {
            character: '@' | '`' | '%',
        } => (
            Some("an unquoted text cannot start with this character"),
            Some("quote the text"),
        ),
        _ => (None, None),
    }
}

/// Notes that the file is a template.
pub(super) fn report_template(text: &str, faults: &mut Faults<'_>) {
    let Some((line, column, marker)) = template_at(text) else {
        return;
    };
    let width = u32::try_from(marker.chars().count()).unwrap_or(1);
    let span = Span {
        line,
        column,
        end_line: line,
        end_column: column.saturating_add(width),
    };
    if marker == "{{" {
        faults
            .error(span, "looks like a template (Helm/Go): render it first")
            .help("for a chart: `helm template`, and take the policy out of the ConfigMap it prints");
    } else {
        faults
            .error(span, "looks like a template: render it first")
            .help("words in `<…>` stand for values that you choose");
    }
}

/// The first thing outside comments that only a template has: `{{`, or `<several words>` as a value.
pub(super) fn template_at(text: &str) -> Option<(u32, u32, &str)> {
    text.lines().zip(1u32..).find_map(|(line, number)| {
        let code = match line.find(" #") {
            Some(at) => &line[..at],
            None if line.starts_with('#') => "",
            None => line,
        };
        // In quotes, braces may be a value that somebody means.
        let unquoted = |at: &usize| {
            ['"', '\'']
                .iter()
                .all(|q| code[..*at].matches(*q).count() % 2 == 0)
        };
        let (at, marker) = match code.find("{{").filter(unquoted) {
            Some(at) => (at, &code[at..at + 2]),
            None => placeholder(code)?,
        };
        let column = u32::try_from(code[..at].chars().count())
            .unwrap_or(u32::MAX)
            .saturating_add(1);
        Some((number, column, marker))
    })
}

fn placeholder(code: &str) -> Option<(usize, &str)> {
    let at = code.find(": <")? + 2;
    let end = at + code[at..].find('>')? + 1;
    let inside = &code[at..end];
    inside.contains(' ').then_some((at, inside))
}
