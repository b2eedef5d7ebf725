//! Single values: the right kind, or a fault that says what was found and what to write.

use std::time::Duration;

use jiff::Timestamp;

use super::super::fault::{Span, quoted};
use super::super::keys::nearest;
use super::super::raw::{Factor, Percent};
use super::super::scalar::{self, Refused};
use super::super::yaml::{Kind, Node};
use super::{At, Field, Reader};
use crate::engine::limit::{Unit, Value};

impl Reader<'_, '_> {
    /// Whether the incumbent would take the value as not written.
    pub(super) fn is_absent(&self, node: &Node) -> bool {
        match &node.kind {
            Kind::Null | Kind::Bad => true,
            Kind::Scalar { text, .. } => text.is_empty(),
            Kind::Seq(items) => items.is_empty(),
            Kind::Map(_) => false,
        }
    }

    /// Whether the value is written, but as nothing.
    pub(super) fn is_empty(&self, node: &Node) -> bool {
        self.is_absent(node) && !matches!(node.kind, Kind::Bad)
    }

    /// A text where nothing and `""` mean absent: names, keys, values.
    pub(super) fn name(&mut self, field: &Field<'_>) -> Option<At<String>> {
        if self.is_absent(field.value) {
            return None;
        }
        self.text(field)
    }

    /// A text that must be there, as it was written.
    pub(super) fn text(&mut self, field: &Field<'_>) -> Option<At<String>> {
        let (text, _) = self.scalar(field)?;
        if text.is_empty() {
            self.no_value(field);
            return None;
        }
        if text.contains("{{") {
            self.faults
                .warning(
                    field.value.span,
                    format!("{} looks like a template that was not rendered", quoted(text)),
                )
                .help("render it first, if it is one; as it stands the braces are taken literally");
        }
        Some(At {
            value: text.to_owned(),
            span: field.value.span,
        })
    }

    /// A number of this language's own keys: it must be there.
    pub(super) fn integer(&mut self, field: &Field<'_>) -> Option<At<u32>> {
        let (text, plain) = self.scalar(field)?;
        let number = self.accept(field, text, scalar::integer(text, plain))?;
        if scalar::is_octal(text) {
            let decimal = text.trim_start_matches(['+', '0']);
            self.faults
                .warning(
                    field.value.span,
                    format!("{} is octal and means {}", quoted(text), number.value),
                )
                .help(format!("write {}, or {decimal} if that was meant", number.value));
        }
        Some(number)
    }

    /// A limit's number: nothing is zero, as for the incumbent.
    pub(super) fn requests_per_unit(&mut self, field: &Field<'_>) -> Option<At<u32>> {
        if self.is_absent(field.value) {
            None
        } else {
            self.integer(field)
        }
    }

    /// A number with a ceiling that the thing itself has.
    pub(super) fn at_most(
        &mut self,
        number: Option<At<u32>>,
        most: u32,
        field: &Field<'_>,
    ) -> Option<At<u32>> {
        let number = number?;
        if number.value <= most {
            return Some(number);
        }
        self.error(number.span, format!("`{}` is at most {most}", field.name))
            .help("write a smaller number");
        None
    }

    /// One of the incumbent's flags: nothing is false.
    pub(super) fn flag_value(&mut self, field: &Field<'_>) -> Option<At<bool>> {
        if self.is_absent(field.value) {
            None
        } else {
            self.boolean(field)
        }
    }

    pub(super) fn boolean(&mut self, field: &Field<'_>) -> Option<At<bool>> {
        let (text, plain) = self.scalar(field)?;
        self.accept(field, text, scalar::boolean(text, plain))
    }

    pub(super) fn unit(&mut self, field: &Field<'_>) -> Option<At<Unit>> {
        if self.is_absent(field.value) {
            return None;
        }
        let (text, _) = self.scalar(field)?;
        self.accept(field, text, scalar::unit(text))
    }

    pub(super) fn duration(&mut self, field: &Field<'_>) -> Option<At<Duration>> {
        let (text, _) = self.scalar(field)?;
        self.accept(field, text, scalar::duration(text))
    }

    pub(super) fn percent(&mut self, field: &Field<'_>) -> Option<At<Percent>> {
        let (text, _) = self.scalar(field)?;
        self.accept(field, text, scalar::percent(text))
    }

    pub(super) fn factor(&mut self, field: &Field<'_>) -> Option<At<Factor>> {
        let (text, plain) = self.scalar(field)?;
        self.accept(field, text, scalar::factor(text, plain))
    }

    pub(super) fn timestamp(&mut self, field: &Field<'_>) -> Option<At<Timestamp>> {
        let (text, _) = self.scalar(field)?;
        self.accept(field, text, scalar::timestamp(text))
    }

    /// One of a few words.
    pub(super) fn choice<T: Copy>(&mut self, field: &Field<'_>, words: &[(&str, T)]) -> Option<At<T>> {
        let (text, _) = self.scalar(field)?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Some(At {
                value: *value,
                span: field.value.span,
            });
        }
        let list: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let folded = text.to_lowercase().replace('-', "_");
        let meant = list.iter().find(|word| word.replace('-', "_") == folded).copied();
        let help = match meant.or_else(|| nearest(text, &list)) {
            Some(word) => format!("did you mean `{word}`?"),
            None => format!("one of {}", list.join(", ")),
        };
        self.error(
            field.value.span,
            format!("`{}` cannot be {}", field.name, quoted(text)),
        )
        .help(help);
        None
    }

    /// What a protobuf Struct can hold, with the words of YAML 1.1, as the incumbent reads them.
    pub(super) fn metadata(&mut self, field: &Field<'_>) -> Option<At<Value>> {
        if self.is_absent(field.value) || self.map(field).is_none() {
            return None;
        }
        let value = self.meta(field.value);
        Some(At {
            value,
            span: field.value.span,
        })
    }

    fn meta(&mut self, node: &Node) -> Value {
        match &node.kind {
            Kind::Null | Kind::Bad => Value::Null,
            Kind::Scalar { text, plain: false } => Value::String(text.as_str().into()),
            Kind::Scalar { text, plain: true } => {
                if let Ok(value) = scalar::boolean(text, true) {
                    Value::Bool(value)
                } else if let Some(number) = scalar::number(text) {
                    Value::Number(number)
                } else {
                    Value::String(text.as_str().into())
                }
            }
            Kind::Seq(items) => Value::List(items.iter().map(|item| self.meta(item)).collect()),
            Kind::Map(pairs) => Value::Map(
                pairs
                    .iter()
                    .filter_map(|(key, value)| Some((self.key(key)?.into(), self.meta(value))))
                    .collect(),
            ),
        }
    }

    /// The scalar of a field that must have one.
    pub(super) fn scalar<'n>(&mut self, field: &Field<'n>) -> Option<(&'n str, bool)> {
        match &field.value.kind {
            Kind::Scalar { text, plain } => Some((text, *plain)),
            Kind::Bad => None,
            Kind::Null => {
                self.no_value(field);
                None
            }
            Kind::Seq(_) | Kind::Map(_) => {
                let found = if matches!(field.value.kind, Kind::Seq(_)) {
                    "a list"
                } else {
                    "a map"
                };
                let message = format!("{} takes a single value, not {found}", self.called(field));
                self.error(field.value.span, message);
                None
            }
        }
    }

    pub(super) fn no_value(&mut self, field: &Field<'_>) {
        let message = format!("{} has no value", self.called(field));
        self.error(field.key, message)
            .help("write a value, or take the key out");
    }

    /// The field's key in backticks; keys of the user's own are read from the file.
    fn called(&self, field: &Field<'_>) -> String {
        if !field.name.is_empty() {
            return format!("`{}`", field.name);
        }
        let Span {
            line,
            column,
            end_line,
            end_column,
        } = field.key;
        let width = if line == end_line {
            end_column.saturating_sub(column)
        } else {
            1
        };
        let text = self.faults.line(line).chars();
        quoted(
            &text
                .skip(column as usize - 1)
                .take(width as usize)
                .collect::<String>(),
        )
    }

    fn accept<T>(&mut self, field: &Field<'_>, text: &str, read: Result<T, Refused>) -> Option<At<T>> {
        match read {
            Ok(value) => Some(At {
                value,
                span: field.value.span,
            }),
            Err(Refused { why, help }) => {
                let message = format!("{}: {} {why}", self.called(field), quoted(text));
                let fault = self.error(field.value.span, message);
                fault.help = help;
                None
            }
        }
    }
}
