//! What a domain's answers look like: the `response` block of its policy.

use std::fmt::Write as _;

/// The shape of answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// Which families of headers are sent.
    pub headers: Vec<HeaderFamily>,
    /// What a refusal's body is.
    pub body: Body,
    /// The sentence in the body.
    pub message: Message,
    /// Where the limits are documented.
    pub documentation_url: Option<Box<str>>,
    /// Whether a refusal says when to come back.
    pub retry_after: bool,
    /// Whether a service wholly in shadow mode shows in its statuses what it would have refused.
    pub shown_in_shadow: bool,
}

impl Default for Response {
    fn default() -> Self {
        Self {
            headers: vec![HeaderFamily::Draft03],
            body: Body::Json,
            message: Message::default(),
            documentation_url: None,
            retry_after: true,
            shown_in_shadow: false,
        }
    }
}

/// A family of rate-limit headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFamily {
    /// `RateLimit-Limit`, `-Remaining`, `-Reset` and `RateLimit-Policy`.
    Draft03,
    /// `RateLimit-Policy` and `RateLimit` as structured fields (draft-ietf-httpapi-ratelimit-headers-11).
    Draft11,
    /// `x-ratelimit-limit`, `-remaining`, `-reset`.
    XRateLimit,
    /// Limit, remaining and reset of the tightest descriptor, by names of the operator's choice. They are
    /// chosen once, when the process starts.
    Named([&'static str; 3]),
}

/// The body of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// `application/json`.
    Json,
    /// `application/problem+json` (RFC 9457).
    Problem,
    /// None.
    None,
}

/// A sentence with placeholders.
#[derive(Clone, Debug, PartialEq)]
pub struct Message(Vec<Piece>);

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Text(Box<str>),
    Value(Placeholder),
}

/// What a placeholder of a message stands for. None of them holds a byte of the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placeholder {
    /// `{limit}`
    Limit,
    /// `{remaining}`
    Remaining,
    /// `{window}`
    Window,
    /// `{window_seconds}`
    WindowSeconds,
    /// `{retry_after}`
    RetryAfter,
    /// `{scope}`
    Scope,
    /// `{cost}`
    Cost,
}

/// The names of all placeholders.
pub const PLACEHOLDERS: [(&str, Placeholder); 7] = [
    ("limit", Placeholder::Limit),
    ("remaining", Placeholder::Remaining),
    ("window", Placeholder::Window),
    ("window_seconds", Placeholder::WindowSeconds),
    ("retry_after", Placeholder::RetryAfter),
    ("scope", Placeholder::Scope),
    ("cost", Placeholder::Cost),
];

impl Message {
    /// Reads a template.
    ///
    /// # Errors
    /// The text between braces that is no placeholder, or `{` for a brace that is never closed.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            if !before.is_empty() {
                pieces.push(Piece::Text(before.into()));
            }
            let (name, after) = after.split_once('}').ok_or_else(|| "{".to_owned())?;
            let known = PLACEHOLDERS.iter().find(|(known, _)| *known == name);
            pieces.push(Piece::Value(known.ok_or_else(|| name.to_owned())?.1));
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.into()));
        }
        Ok(Self(pieces))
    }

    /// The sentence with `value` written for each placeholder.
    pub fn render(&self, value: impl Fn(Placeholder, &mut String)) -> String {
        let mut out = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => {
                    let _ = out.write_str(text);
                }
                Piece::Value(placeholder) => value(*placeholder, &mut out),
            }
        }
        out
    }
}

impl Default for Message {
    fn default() -> Self {
        use Piece::{Text, Value};
        Self(vec![
            Text("Budget of ".into()),
            Value(Placeholder::Limit),
            Text(" per ".into()),
            Value(Placeholder::Window),
            Text(" spent. Retry in ".into()),
            Value(Placeholder::RetryAfter),
            Text("s.".into()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_render_and_refuse_strangers() {
        let message = Message::parse("{limit} a {window}, {scope}").unwrap();
        let text = message.render(|p, out| out.push_str(if p == Placeholder::Limit { "5" } else { "x" }));
        assert_eq!(text, "5 a x, x");
        assert_eq!(Message::parse("{tenant}"), Err("tenant".into()));
        assert_eq!(Message::parse("a { b"), Err("{".into()));
        assert_eq!(
            Message::parse("Budget of {limit} per {window} spent. Retry in {retry_after}s."),
            Ok(Message::default())
        );
    }
}
