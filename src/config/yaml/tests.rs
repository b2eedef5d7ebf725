//! What the tree makes of YAML's corners.

use super::super::fault::{Fault, Faults};
use super::{Document, Kind, Node, parse};

fn read(text: &str) -> (Vec<Document>, Vec<Fault>) {
    let mut faults = Faults::new("t".into(), text);
    let documents = parse(text, &mut faults).documents;
    (documents, faults.into_sorted())
}

/// The only document of a file without faults, written shortly: plain scalars bare, others quoted.
fn shown(text: &str) -> String {
    let (documents, faults) = read(text);
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(documents.len(), 1);
    short(&documents[0].root)
}

fn short(node: &Node) -> String {
    let join = |parts: Vec<String>| parts.join(", ");
    match &node.kind {
        Kind::Null => "null".to_owned(),
        Kind::Scalar { text, plain: true } => text.clone(),
        Kind::Scalar { text, plain: false } => format!("{text:?}"),
        Kind::Seq(items) => format!("[{}]", join(items.iter().map(short).collect())),
        Kind::Map(pairs) => {
            format!(
                "{{{}}}",
                join(
                    pairs
                        .iter()
                        .map(|(k, v)| format!("{}: {}", short(k), short(v)))
                        .collect()
                )
            )
        }
        Kind::Bad => "BAD".to_owned(),
    }
}

/// The faults of a file, as `LINE:COLUMN message`.
fn faults(text: &str) -> Vec<String> {
    let (_, faults) = read(text);
    faults
        .iter()
        .map(|f| format!("{}:{} {}", f.span.line, f.span.column, f.message))
        .collect()
}

#[test]
fn scalars_stay_as_written() {
    assert_eq!(
        shown("a: 1.10\nb: NO\nc: 0x1F\nd: '1'\ne: \"x\\ny\"\nf: 2024-01-01\ng: 12:30\n"),
        r#"{a: 1.10, b: NO, c: 0x1F, d: "1", e: "x\ny", f: 2024-01-01, g: 12:30}"#
    );
}

#[test]
fn nothing_is_null_only_unquoted() {
    assert_eq!(
        shown("a:\nb: ~\nc: null\nd: ''\ne: 'null'"),
        r#"{a: null, b: null, c: null, d: "", e: "null"}"#
    );
}

#[test]
fn byte_order_mark_and_crlf_change_no_position() {
    assert_eq!(shown("\u{feff}a: 1\r\nb:\r\n- c\r\n"), "{a: 1, b: [c]}");
    assert_eq!(
        faults("\u{feff}a: 1\r\na: 2\r\n"),
        ["2:1 the key `a` stands twice; first on line 1, column 1"]
    );
}

#[test]
fn columns_count_characters() {
    assert_eq!(
        faults("{'é→': 1, 'é→': 2}"),
        ["1:11 the key `é→` stands twice; first on line 1, column 2"]
    );
}

#[test]
fn documents_are_all_read_and_empty_ones_left_out() {
    let (documents, faults) = read("---\n# nothing\n---\na: 1\n...\n---\nb: 2\n---\n");
    assert!(faults.is_empty());
    assert_eq!(
        documents.iter().map(|d| short(&d.root)).collect::<Vec<_>>(),
        ["{a: 1}", "{b: 2}"]
    );
    assert!(read("").0.is_empty());
    assert!(read("# only a comment\n").0.is_empty());
}

#[test]
fn a_broken_document_hides_no_other() {
    let (documents, faults) = read("a: 'x\n---\nb: 2\nb: 3\n---\nc: [1\n---\nd: 4\n");
    let shown: Vec<_> = documents.iter().map(|d| (short(&d.root), d.broken)).collect();
    assert_eq!(
        faults
            .iter()
            .map(|f| f.span.line)
            .filter(|line| *line > 3)
            .count(),
        2,
        "{faults:?}"
    );
    assert_eq!(shown.last(), Some(&("{d: 4}".to_owned(), false)));
}

#[test]
fn a_key_twice_is_noted_and_both_are_kept() {
    let (documents, faults) = read("a: 1\nb: 2\na: 3\n");
    assert!(documents[0].broken);
    assert_eq!(short(&documents[0].root), "{a: 1, b: 2, a: 3}");
    assert_eq!(
        faults[0].message,
        "the key `a` stands twice; first on line 1, column 1"
    );
    assert_eq!((faults[0].span.line, faults[0].span.column), (3, 1));
}

#[test]
fn aliases_and_merge_keys_are_resolved() {
    assert_eq!(shown("a: &x {p: 1}\nb: *x\n"), "{a: {p: 1}, b: {p: 1}}");
    assert_eq!(
        shown("a: &x {p: 1, q: 2}\nb: {<<: *x, q: 3}\n"),
        "{a: {p: 1, q: 2}, b: {q: 3, p: 1}}"
    );
    assert_eq!(
        shown("a: &x {p: 1}\nb: &y {p: 2, q: 2}\nc: {<<: [*x, *y]}\n"),
        "{a: {p: 1}, b: {p: 2, q: 2}, c: {p: 1, q: 2}}"
    );
    assert_eq!(faults("a: {<<: 5}"), ["1:5 `<<` takes a map, or a list of maps"]);
    assert_eq!(shown("a: {'<<': 5}"), r#"{a: {"<<": 5}}"#);
}

#[test]
fn an_unquoted_star_is_told_to_be_quoted() {
    for text in ["value: *", "value: *foo", "- *.example.com"] {
        let (_, faults) = read(text);
        assert_eq!(faults.len(), 1, "{text}: {faults:?}");
        assert!(
            faults[0]
                .help
                .as_deref()
                .is_some_and(|help| help.contains("quote it")),
            "{faults:?}"
        );
    }
}

#[test]
fn an_alias_of_itself_is_a_fault() {
    assert_eq!(
        faults("a: &x [*x]"),
        ["1:8 this alias stands inside the value that it refers to"]
    );
}

#[test]
fn aliases_of_aliases_are_bounded() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for n in 1..60 {
        let last = n - 1;
        text += &format!(
            "a{n}: &a{n} [*a{last}, *a{last}, *a{last}, *a{last}, *a{last}, *a{last}, *a{last}, *a{last}]\n"
        );
    }
    let messages = faults(&text);
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(messages[0].contains("stand for more than"));
}

#[test]
fn nesting_is_bounded() {
    for text in ["[".repeat(100_000), "{a: ".repeat(100_000), "- ".repeat(100_000)] {
        let messages = faults(&text);
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert!(messages[0].contains("nested too deeply"), "{messages:?}");
    }
}

#[test]
fn tabs_are_named() {
    let messages = faults("a:\n\tb: 1\n");
    assert_eq!(messages, ["2:1 a tab where YAML wants spaces"]);
}

#[test]
fn templates_are_named_instead_of_their_yaml() {
    let template = "looks like a template (Helm/Go): render it first";
    for (text, place) in [
        ("domain: {{ .Values.domain }}\n", "1:9"),
        ("domain: a\n{{- range .Values.x }}\n- key: b\n{{- end }}\n", "2:1"),
        ("domain: a\ndescriptors:\n{{ toYaml .x | indent 2 }}\n", "3:1"),
        ("# {{ not this }}\ndomain: '{{ nor this }}'\nx: {{ .y }}\n", "3:4"),
    ] {
        assert_eq!(faults(text), [format!("{place} {template}")], "{text}");
        assert!(read(text).0.is_empty());
    }
    assert_eq!(
        faults("domain: <your domain>\nkey: <rule key: required>\n"),
        ["1:9 looks like a template: render it first"]
    );
}

#[test]
fn braces_in_quotes_are_text() {
    assert_eq!(shown("value: \"/users/{{id}}\""), r#"{value: "/users/{{id}}"}"#);
    assert_eq!(shown("value: a{{b}}"), "{value: a{{b}}}");
}

#[test]
fn tags_have_no_effect_but_str() {
    assert_eq!(
        shown("a: !!str 5\nb: ! 6\nc: !!int 7"),
        r#"{a: "5", b: "6", c: 7}"#
    );
    assert_eq!(
        faults("a: !include other.yaml"),
        ["1:13 the tag `!include` is ignored"]
    );
}

#[test]
fn no_text_makes_the_reader_panic() {
    let pieces = [
        "a: ", "- ", "{", "}", "[", "]", "&x ", "*x", "<<: ", "\n", "  ", "\t", "'", "\"", "|", "---\n", "#",
        "é", "\r", "? ", ": ", "!", "%", "\u{feff}", "{{",
    ];
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..20_000 {
        let text: String = (0..random.usize(1..20))
            .map(|_| pieces[random.usize(..pieces.len())])
            .collect();
        let (_, faults) = read(&text);
        for fault in faults {
            assert!(fault.to_string().contains(": error: ") || fault.to_string().contains(": warning: "));
        }
    }
}
