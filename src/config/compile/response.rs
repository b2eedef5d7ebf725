//! The `response` block.

use super::Compiler;
use crate::config::fault::quoted;
use crate::config::keys::nearest;
use crate::config::raw::HeaderStyle;
use crate::engine::response::{HeaderFamily, Message, PLACEHOLDERS, Response};

impl Compiler<'_, '_, '_> {
    /// What answers look like; without the block, as the service is set.
    pub(super) fn response(&mut self) -> Response {
        let Some(raw) = &self.policy.response else {
            return self.unsaid.clone();
        };
        let mut response = Response {
            shown_in_shadow: self.unsaid.shown_in_shadow,
            ..Response::default()
        };
        if let Some(headers) = &raw.headers {
            response.headers = self.headers(headers, raw.span);
        }
        if let Some(body) = &raw.body {
            response.body = body.value;
        }
        if let Some(message) = &raw.message {
            match Message::parse(&message.value) {
                Ok(parsed) => response.message = parsed,
                Err(name) => {
                    let names = PLACEHOLDERS.map(|(name, _)| name);
                    let help = match nearest(&name, &names) {
                        Some(near) => format!("did you mean {{{near}}}?"),
                        None => format!("known: {}", names.map(|name| format!("{{{name}}}")).join(" ")),
                    };
                    let text = if name == "{" {
                        "a `{` that is not closed".to_owned()
                    } else {
                        format!("no placeholder is called {}", quoted(&name))
                    };
                    self.error(message.span, text).help(help);
                }
            }
        }
        if let Some(url) = &raw.documentation_url {
            let known = url.value.starts_with("https://") || url.value.starts_with("http://");
            if !known || url.value.chars().any(|c| c.is_whitespace() || c.is_control()) {
                self.error(url.span, format!("{} is no web address", quoted(&url.value)))
                    .help("write it whole, as in `https://example.com/limits`");
            }
            response.documentation_url = Some(url.value.as_str().into());
        }
        response
    }

    fn headers(
        &mut self,
        styles: &[crate::config::raw::At<HeaderStyle>],
        span: crate::config::fault::Span,
    ) -> Vec<HeaderFamily> {
        let mut families = Vec::new();
        for style in styles {
            let family = match style.value {
                HeaderStyle::Draft03 => HeaderFamily::Draft03,
                HeaderStyle::Draft11 => HeaderFamily::Draft11,
                HeaderStyle::XRateLimit => HeaderFamily::XRateLimit,
                HeaderStyle::None if styles.len() > 1 => {
                    self.error(style.span, "`none` beside other headers")
                        .help("keep `none`, or the others");
                    continue;
                }
                HeaderStyle::None => continue,
            };
            let clash = match family {
                HeaderFamily::Draft03 => families.contains(&HeaderFamily::Draft11),
                HeaderFamily::Draft11 => families.contains(&HeaderFamily::Draft03),
                HeaderFamily::XRateLimit | HeaderFamily::Named(_) => false,
            };
            if clash {
                self.error(
                    style.span,
                    "`draft-03` beside `draft-11`: both define RateLimit-Policy, differently",
                )
                .help("keep one of the two; `x-ratelimit` goes with either");
            }
            if !families.contains(&family) {
                families.push(family);
            }
        }
        if styles.is_empty() && !self.policy.broken {
            self.error(span, "`headers` is an empty list")
                .help("write `headers: [none]` to send none");
        }
        families
    }
}
