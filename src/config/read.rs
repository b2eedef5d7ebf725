//! Node tree to raw policy: every key in its place, every scalar of its kind.
//!
//! Reading never stops at a fault: what cannot be read is noted and left out. A misspelt key whose
//! meaning is certain is read as if it were right, so that the faults beneath it show as well.

mod limit;
mod section;
mod value;

use super::fault::{Fault, Faults, Span, quoted};
use super::keys::{self, Place};
use super::raw::{At, RawDescriptor, RawPolicy};
use super::words;
use super::yaml::{Document, Kind, Node};

/// Reads one document.
pub(super) fn policy(document: &Document, faults: &mut Faults<'_>) -> RawPolicy {
    let before = faults.errors();
    let mut reader = Reader {
        faults,
        uses_new_keys: false,
    };
    let mut policy = reader.root(&document.root);
    policy.uses_new_keys = reader.uses_new_keys;
    policy.broken = document.broken || faults.errors() > before;
    policy
}

struct Reader<'f, 't> {
    faults: &'f mut Faults<'t>,
    uses_new_keys: bool,
}

/// A key that may stand where it stands, and its value.
struct Field<'n> {
    name: &'static str,
    key: Span,
    value: &'n Node,
}

impl Reader<'_, '_> {
    fn root(&mut self, node: &Node) -> RawPolicy {
        let mut policy = RawPolicy {
            span: node.span,
            ..RawPolicy::default()
        };
        if self.is_manifest(node) {
            return policy;
        }
        if !matches!(node.kind, Kind::Map(_) | Kind::Bad) {
            self.error(node.span, "a policy file is a map that starts with `domain:`")
                .help("a file that is no policy does not belong in the policy directory");
            return policy;
        }
        let mut domain = None;
        for field in self.fields(node, Place::Root) {
            match field.name {
                "domain" => {
                    domain = Some((field.key, self.is_empty(field.value)));
                    policy.domain = self.name(&field);
                }
                "descriptors" => policy.descriptors = self.descriptors(&field),
                "capacity" => policy.capacity = self.rate(&field, Place::Capacity),
                "safety_ceiling" => policy.safety_ceiling = self.rate(&field, Place::SafetyCeiling),
                "expected" => policy.expected = self.expected(&field),
                "costs" => policy.costs = self.costs(&field),
                "defaults" => policy.defaults = self.limit(field.value, Place::Defaults),
                "response" => policy.response = self.response(&field),
                "overrides" => policy.overrides = self.overrides(&field),
                // `name` is what Envoy Gateway's resources have; `metadata` may hold anchors.
                _ => {}
            }
        }
        let fault = match domain {
            Some((key, true)) => Some((key, "`domain` is empty")),
            None if !matches!(node.kind, Kind::Bad) => Some((node.span, "the file has no `domain`")),
            _ => None,
        };
        if let Some((span, message)) = fault {
            self.error(span, message)
                .help("write the `domain` of Envoy's rate limit filter, as in `domain: api`");
        }
        policy
    }

    /// Kubernetes manifests around the policy are a frequent mistake with its own answer.
    fn is_manifest(&mut self, node: &Node) -> bool {
        let Kind::Map(pairs) = &node.kind else {
            return false;
        };
        let text = |name: &str| {
            pairs
                .iter()
                .find_map(|(key, value)| match (&key.kind, &value.kind) {
                    (Kind::Scalar { text: key, .. }, Kind::Scalar { text, .. }) if key == name => {
                        Some(text.clone())
                    }
                    _ => None,
                })
        };
        let (Some(_), Some(kind)) = (text("apiVersion"), text("kind")) else {
            return false;
        };
        self.error(
            node.span,
            format!(
                "this is a Kubernetes manifest ({}), not a policy file",
                quoted(&kind)
            ),
        )
        .help(if kind == "ConfigMap" {
            "the policy is the text under `data:`; take it out, from `domain:` on"
        } else {
            "a policy file starts with `domain:`"
        });
        true
    }

    fn descriptors(&mut self, field: &Field<'_>) -> Vec<RawDescriptor> {
        self.items(field)
            .iter()
            .filter_map(|item| self.descriptor(item))
            .collect()
    }

    fn descriptor(&mut self, node: &Node) -> Option<RawDescriptor> {
        if !matches!(node.kind, Kind::Map(_)) {
            self.not_a_map(node, "an item of `descriptors`", "write `- key: …`");
            return None;
        }
        let mut descriptor = RawDescriptor {
            span: node.span,
            ..RawDescriptor::default()
        };
        let mut key = None;
        for field in self.fields(node, Place::Descriptor) {
            let before = self.faults.errors();
            match field.name {
                "key" => {
                    key = Some((field.key, self.is_empty(field.value)));
                    descriptor.key = self.name(&field);
                }
                "value" => descriptor.value = self.descriptor_value(&field),
                "rate_limit" | "rate_limits" => self.limits(&field, &mut descriptor),
                "descriptors" => descriptor.descriptors = self.descriptors(&field),
                "address" => descriptor.address = self.address(&field),
                "normalize" => {
                    descriptor.normalize = self.choice(&field, &words::NORMALIZE);
                }
                _ => self.flag(&field, &mut descriptor.flags),
            }
            descriptor.broken |= matches!(field.name, "key" | "value") && self.faults.errors() > before;
        }
        let fault = match key {
            Some((key, true)) => Some((key, "`key` is empty")),
            None => Some((node.span, "this descriptor has no `key`")),
            _ => None,
        };
        if let Some((span, message)) = fault {
            self.error(span, message)
                .help("write the key that Envoy sends, as in `key: remote_address`");
        }
        descriptor.broken |= descriptor.key.is_none();
        Some(descriptor)
    }

    fn descriptor_value(&mut self, field: &Field<'_>) -> Option<At<String>> {
        match &field.value.kind {
            Kind::Null => {
                let span = if field.value.span.end_column > field.value.span.column {
                    field.value.span
                } else {
                    field.key
                };
                self.faults
                    .warning(span, "no value: this descriptor is met by any value of its key")
                    .help("drop `value` to mean that; to mean the word itself, quote it");
                None
            }
            Kind::Seq(_) => {
                self.error(field.value.span, "`value` is one text, not a list")
                    .help("write one descriptor for each value, or one with `*` in it");
                None
            }
            _ => self.name(field),
        }
    }

    // === Maps, lists ===

    /// The fields of a map whose keys may stand there; the others are noted.
    fn fields<'n>(&mut self, node: &'n Node, place: Place) -> Vec<Field<'n>> {
        let Kind::Map(pairs) = &node.kind else {
            return Vec::new();
        };
        let mut fields = Vec::with_capacity(pairs.len());
        for (key, value) in pairs.iter() {
            let Some(word) = self.key(key) else { continue };
            let name = keys::known(&word, place).or_else(|| {
                let unknown = keys::unknown(&word, &quoted(&word), place);
                self.faults.error(key.span, unknown.message).help(unknown.help);
                unknown.meant
            });
            if let Some(name) = name {
                self.uses_new_keys |= keys::is_new(name);
                fields.push(Field {
                    name,
                    key: key.span,
                    value,
                });
            }
        }
        fields
    }

    /// The pairs of a map whose keys are the user's own: plans, costs, matches.
    fn entries<'n>(&mut self, field: &Field<'n>) -> Vec<(At<String>, &'n Node)> {
        if self.map(field).is_none() {
            return Vec::new();
        }
        let Kind::Map(pairs) = &field.value.kind else {
            return Vec::new();
        };
        let pairs = pairs.iter();
        pairs
            .filter_map(|(key, value)| {
                Some((
                    At {
                        value: self.key(key)?,
                        span: key.span,
                    },
                    value,
                ))
            })
            .collect()
    }

    fn integers(&mut self, entries: Vec<(At<String>, &Node)>) -> Vec<(At<String>, At<u32>)> {
        entries
            .into_iter()
            .filter_map(|(name, value)| {
                let number = self.integer(&Field {
                    name: "",
                    key: name.span,
                    value,
                })?;
                Some((name, number))
            })
            .collect()
    }

    fn key(&mut self, key: &Node) -> Option<String> {
        match &key.kind {
            Kind::Scalar { text, .. } => Some(text.clone()),
            Kind::Bad => None,
            Kind::Null => Some("null".to_owned()),
            Kind::Seq(_) | Kind::Map(_) => {
                self.error(key.span, "a key is a word, not a list or map")
                    .help("quote it if the text is meant");
                None
            }
        }
    }

    /// Notes it if the value is no map. Nothing means absent for the incumbent's keys only; `match` has
    /// a message of its own.
    fn map(&mut self, field: &Field<'_>) -> Option<()> {
        match field.value.kind {
            Kind::Map(_) => Some(()),
            Kind::Null if keys::is_new(field.name) && field.name != "match" => {
                self.no_value(field);
                None
            }
            Kind::Null | Kind::Bad => None,
            _ => {
                let what = format!("`{}`", field.name);
                self.not_a_map(field.value, &what, "write its keys below it, indented");
                None
            }
        }
    }

    fn not_a_map(&mut self, node: &Node, what: &str, help: &str) {
        match &node.kind {
            Kind::Map(_) | Kind::Bad => {}
            Kind::Seq(_) => self
                .error(node.span, format!("{what} is a map, not a list"))
                .help(help),
            Kind::Null => self.error(node.span, format!("{what} is empty")).help(help),
            Kind::Scalar { text, .. } => {
                let message = format!("{what} is a map, not the text {}", quoted(text));
                self.error(node.span, message).help(help);
            }
        }
    }

    /// The items of a list; nothing, `""` and `[]` are the empty list.
    fn items<'n>(&mut self, field: &Field<'n>) -> &'n [Node] {
        match &field.value.kind {
            Kind::Seq(items) => items,
            Kind::Null | Kind::Bad => &[],
            Kind::Scalar { text, .. } if text.is_empty() => &[],
            Kind::Map(_) => {
                self.error(field.value.span, format!("`{}` is a list", field.name))
                    .help("put `- ` before the first key of each item");
                &[]
            }
            Kind::Scalar { .. } => {
                let message = format!("`{}` is a list", field.name);
                self.error(field.value.span, message)
                    .help("write one item a line, each after `- `");
                &[]
            }
        }
    }

    fn error(&mut self, span: Span, message: impl Into<String>) -> &mut Fault {
        self.faults.error(span, message)
    }
}
