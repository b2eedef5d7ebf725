//! YAML text to a tree of nodes that know where they stand.
//!
//! The tree keeps scalars as they were written, because the policy file does: `1.10` as a value is
//! text, `NO` is text, `0100` as a number is octal. What a scalar means is decided where its key is
//! known ([`super::scalar`]). Reading goes on after a fault wherever YAML allows it, so that all
//! faults of a file are reported together: a broken document does not hide the next one.
//!
//! Aliases share their target, so a file of aliases to aliases costs no memory here; it would cost
//! time in whoever walks the tree, and is therefore refused past [`ALIAS_BUDGET`] nodes.

use std::collections::HashMap;
use std::rc::Rc;

use granit_parser::{Event, Parser, ScalarStyle, StructureStyle, Tag};

use super::fault::{Faults, Span, quoted};
use super::syntax;

/// Most nodes that the aliases of one file may stand for, all together.
pub const ALIAS_BUDGET: u64 = 250_000;

/// A value and where it stands.
#[derive(Debug, Clone)]
pub struct Node {
    /// What it is.
    pub kind: Kind,
    /// Where it stands; of an aliased node, where it is defined.
    pub span: Span,
}

/// What a node is.
#[derive(Debug, Clone)]
pub enum Kind {
    /// Nothing, `~` or `null`, unquoted.
    Null,
    /// Any other scalar, as written.
    Scalar {
        /// The text; escapes of quoted scalars are resolved.
        text: String,
        /// Without quotes (and no `!!str`): the text may mean a number or a truth value.
        plain: bool,
    },
    /// A list.
    Seq(Rc<Vec<Node>>),
    /// A map in the order of the file, merge keys resolved. A key that stands twice (a fault) is
    /// kept twice, so that what is under both is checked.
    Map(Rc<Vec<(Node, Node)>>),
    /// Something already reported; readers pass over it.
    Bad,
}

/// One document of a file.
#[derive(Debug)]
pub struct Document {
    /// Its content.
    pub root: Node,
    /// Whether reading it noted an error.
    pub broken: bool,
}

/// What a file holds.
#[derive(Debug)]
pub struct Parsed {
    /// Its documents, without empty ones and those that are no YAML.
    pub documents: Vec<Document>,
    /// Whether all of the file was YAML.
    pub complete: bool,
}

/// Reads all documents of `text`.
pub fn parse(text: &str, faults: &mut Faults<'_>) -> Parsed {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut options = granit_parser::options! { emit_unresolved_aliases: true };
    options.set_emit_comments(false);
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut tree = Tree {
        text,
        faults,
        anchors: HashMap::new(),
        open: Vec::new(),
        root: None,
        expanded: 0,
    };
    let mut documents = Vec::new();
    let mut complete = true;
    let mut errors = 0;
    loop {
        match parser.next_event() {
            None => break,
            Some(Ok((Event::DocumentStart(..), _))) => errors = tree.faults.errors(),
            Some(Ok((Event::DocumentEnd, _))) => {
                let root = tree.root.take().filter(|root| !matches!(root.kind, Kind::Null));
                let broken = tree.faults.errors() > errors;
                documents.extend(root.map(|root| Document { root, broken }));
            }
            Some(Ok((event, span))) => {
                if tree.event(event, to_span(&span)).is_err() {
                    return template(text, tree.faults);
                }
            }
            Some(Err(error)) => {
                if syntax::template_at(text).is_some() {
                    return template(text, tree.faults);
                }
                syntax::report(&error, tree.faults);
                complete = false;
                tree.open.clear();
                tree.root = None;
                match parser.proceed_next_document() {
                    Ok(true) => {}
                    Ok(false) | Err(_) => break,
                }
            }
        }
    }
    Parsed { documents, complete }
}

/// A template makes nonsense of all else that could be said of the file.
fn template(text: &str, faults: &mut Faults<'_>) -> Parsed {
    faults.clear();
    syntax::report_template(text, faults);
    Parsed {
        documents: Vec::new(),
        complete: false,
    }
}

/// The source has template braces where a value should be.
struct IsTemplate;

struct Tree<'r, 't> {
    text: &'r str,
    faults: &'r mut Faults<'t>,
    /// Anchored nodes with the number of nodes in them.
    anchors: HashMap<usize, (Node, u64)>,
    open: Vec<Open>,
    root: Option<Node>,
    expanded: u64,
}

/// A list or map whose end was not read yet.
struct Open {
    items: Items,
    span: Span,
    anchor: usize,
    size: u64,
}

enum Items {
    Seq(Vec<Node>),
    Map {
        pairs: Vec<(Node, Node)>,
        key: Option<Node>,
        flow: bool,
    },
}

impl Tree<'_, '_> {
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), IsTemplate> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && !self.tag(tag.as_deref(), span);
                let kind = match text.as_ref() {
                    "" | "~" | "null" | "Null" | "NULL" if plain => Kind::Null,
                    text => Kind::Scalar {
                        text: text.to_owned(),
                        plain,
                    },
                };
                self.add(Node { kind, span }, anchor, 1);
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.tag(tag.as_deref(), span);
                self.open.push(Open {
                    items: Items::Seq(Vec::new()),
                    span,
                    anchor,
                    size: 1,
                });
            }
            Event::MappingStart(style, anchor, tag) => {
                self.tag(tag.as_deref(), span);
                let flow = style == StructureStyle::Flow;
                let items = Items::Map {
                    pairs: Vec::new(),
                    key: None,
                    flow,
                };
                self.open.push(Open {
                    items,
                    span,
                    anchor,
                    size: 1,
                });
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(open) = self.open.pop() {
                    self.close(open, span)?;
                }
            }
            Event::Alias(id) => self.alias(id, span),
            Event::UnresolvedAlias(name) => {
                let text = format!("*{name}");
                self.faults
                    .error(
                        span,
                        format!("{} refers to an anchor that is not defined above", quoted(&text)),
                    )
                    .help(format!("to mean the text itself, quote it: \"{text}\""));
                self.add(
                    Node {
                        kind: Kind::Bad,
                        span,
                    },
                    0,
                    1,
                );
            }
            _ => {}
        }
        Ok(())
    }

    /// Puts a finished node where it belongs.
    fn add(&mut self, node: Node, anchor: usize, size: u64) {
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), size));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        open.size = open.size.saturating_add(size);
        match &mut open.items {
            Items::Seq(items) => items.push(node),
            Items::Map { pairs, key, .. } => match key.take() {
                None => *key = Some(node),
                Some(key) => pairs.push((key, node)),
            },
        }
    }

    fn close(&mut self, open: Open, end: Span) -> Result<(), IsTemplate> {
        let span = Span {
            end_line: end.line,
            end_column: end.column,
            ..open.span
        };
        let kind = match open.items {
            Items::Seq(items) => Kind::Seq(Rc::new(items)),
            Items::Map { pairs, flow, .. } => {
                let braces = flow && pairs.iter().any(|(key, _)| matches!(key.kind, Kind::Map(_)));
                if braces && syntax::template_at(self.text).is_some_and(|(.., marker)| marker == "{{") {
                    return Err(IsTemplate);
                }
                self.duplicates(&pairs);
                Kind::Map(Rc::new(self.merge(pairs)))
            }
        };
        self.add(Node { kind, span }, open.anchor, open.size);
        Ok(())
    }

    fn alias(&mut self, id: usize, span: Span) {
        let Some((node, size)) = self.anchors.get(&id).cloned() else {
            self.faults
                .error(span, "this alias stands inside the value that it refers to");
            return self.add(
                Node {
                    kind: Kind::Bad,
                    span,
                },
                0,
                1,
            );
        };
        let before = self.expanded;
        self.expanded = before.saturating_add(size);
        if self.expanded <= ALIAS_BUDGET {
            return self.add(node, 0, size);
        }
        if before <= ALIAS_BUDGET {
            self.faults
                .error(
                    span,
                    format!("the aliases of this file stand for more than {ALIAS_BUDGET} values"),
                )
                .help("aliases of aliases multiply; write the values out, or split the file");
            // Whatever comes after is refused as well, silently.
            self.expanded = u64::MAX;
        }
        self.add(
            Node {
                kind: Kind::Bad,
                span,
            },
            0,
            1,
        );
    }

    fn duplicates(&mut self, pairs: &[(Node, Node)]) {
        let mut first: HashMap<&str, Span> = HashMap::with_capacity(pairs.len());
        for (key, _) in pairs {
            let Kind::Scalar { text, .. } = &key.kind else {
                continue;
            };
            if let Some(before) = first.get(text.as_str()) {
                self.faults
                    .error(
                        key.span,
                        format!(
                            "the key {} stands twice; first on line {}, column {}",
                            quoted(text),
                            before.line,
                            before.column
                        ),
                    )
                    .help("keep one of the two; which one counts differs between YAML readers");
            } else {
                first.insert(text, key.span);
            }
        }
    }

    /// Replaces `<<: *defaults` by what it stands for: own keys win, then the earlier map.
    fn merge(&mut self, pairs: Vec<(Node, Node)>) -> Vec<(Node, Node)> {
        let is_merge = |key: &Node| matches!(&key.kind, Kind::Scalar { text, plain: true } if text == "<<");
        if !pairs.iter().any(|(key, _)| is_merge(key)) {
            return pairs;
        }
        let (merges, mut own): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|(key, _)| is_merge(key));
        for (key, value) in merges {
            let sources = match &value.kind {
                Kind::Seq(items) => items.to_vec(),
                _ => vec![value],
            };
            for source in sources {
                match &source.kind {
                    Kind::Map(pairs) => {
                        let fresh = pairs
                            .iter()
                            .filter(|(key, _)| !own.iter().any(|(k, _)| same(k, key)));
                        let fresh: Vec<_> = fresh.cloned().collect();
                        own.extend(fresh);
                    }
                    Kind::Bad => {}
                    _ => {
                        self.faults
                            .error(key.span, "`<<` takes a map, or a list of maps")
                            .help("write `<<: *name`, where `&name` stands before a map");
                    }
                }
            }
        }
        own
    }

    /// Notes a tag that has no meaning here; true if it makes the scalar plain text.
    fn tag(&mut self, tag: Option<&Tag>, span: Span) -> bool {
        let Some(tag) = tag else { return false };
        match tag.core_suffix() {
            Some("str") => true,
            Some("map" | "seq" | "int" | "bool" | "null") => false,
            _ if tag.to_string() == "!" => true,
            _ => {
                self.faults
                    .warning(span, format!("the tag {} is ignored", quoted(&tag.to_string())))
                    .help("a policy file has no tags; nothing is included, decrypted or converted");
                false
            }
        }
    }
}

fn same(a: &Node, b: &Node) -> bool {
    match (&a.kind, &b.kind) {
        (Kind::Scalar { text: a, .. }, Kind::Scalar { text: b, .. }) => a == b,
        _ => false,
    }
}

fn to_span(span: &granit_parser::Span) -> Span {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Span {
        line: number(span.start.line()),
        column: number(span.start.col().saturating_add(1)),
        end_line: number(span.end.line()),
        end_column: number(span.end.col().saturating_add(1)),
    }
}

#[cfg(test)]
mod tests;
