//! The shape of a policy file as a JSON Schema, for editors.
//!
//! Which keys stand where comes from [`keys`](super::keys), which words a value may be from the tables of the reader. A schema sees
//! one value at a time, and as YAML 1.2 reads it; what keys mean together is for `cota check`.

use serde_json::{Map, Value, json};

use super::keys::Place;
use super::words;
use crate::engine::limit::{FailureMode, Unit};

/// Words of YAML 1.1 for truth, which YAML 1.2 reads as text.
const TRUTH: &str = "[Yy]|[Yy]es|YES|[Oo]n|ON|[Nn]|[Nn]o|NO|[Oo]ff|OFF";

/// Numbers of Go that YAML 1.2 reads as text.
const NUMBERS: &str = r"\+?(0[bB][01_]+|0[oO][0-7_]+|0[xX][0-9a-fA-F_]+|[0-9]+_[0-9_]*)";

/// The schema of one document.
pub fn schema() -> Value {
    let parts = Place::ALL.into_iter().filter(|place| *place != Place::Root);
    let parts: Map<String, Value> = parts.map(|place| (id(place).into(), object(place))).collect();
    let mut schema = object(Place::Root);
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "A policy file of cota".into();
    schema["$defs"] = parts.into();
    schema
}

/// A map of which keys are known.
fn object(place: Place) -> Value {
    let properties: Map<String, Value> = place
        .keys()
        .iter()
        .map(|key| {
            let (mut value, description) = value(key, place);
            value["description"] = description.into();
            ((*key).to_owned(), value)
        })
        .collect();
    let required: &[&str] = match place {
        Place::Root => &["domain"],
        Place::Descriptor => &["key"],
        Place::Costs => &["entry"],
        Place::Override => &["match", "limit"],
        Place::Excess => &["action"],
        Place::Replaces => &["name"],
        Place::Capacity | Place::SafetyCeiling => &["requests_per_unit"],
        Place::Limit | Place::Defaults | Place::PlanRow | Place::Response | Place::Address => &[],
    };
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

/// What may stand under a key, and what it means in a few words.
fn value(key: &str, place: Place) -> (Value, &'static str) {
    match (key, place) {
        ("name", Place::Root) => (json!({}), "not read; Envoy Gateway writes it"),
        ("metadata", Place::Root) => (json!({}), "not read; a place for YAML anchors"),
        ("domain", _) => (text(), "the `domain` of Envoy's rate limit filter"),
        ("descriptors", _) => (
            list(part(Place::Descriptor)),
            "what Envoy sends, one level for each entry",
        ),
        ("capacity", _) => (part(Place::Capacity), "what the service behind sustains"),
        ("safety_ceiling", _) => (
            part(Place::SafetyCeiling),
            "what may pass by local decisions while the store is gone, all replicas together",
        ),
        ("expected", _) => {
            let callers = json!({"anyOf": [number(0), map(&number(0))]});
            (map(&callers), "how many callers a limit has, by its name")
        }
        ("costs", _) => (part(Place::Costs), "what requests cost, by one of their entries"),
        ("defaults", _) => (
            or_nothing(&part(Place::Defaults)),
            "what every limit has unless it says otherwise",
        ),
        ("response", _) => (part(Place::Response), "what Envoy is told to answer"),
        ("overrides", _) => (list(part(Place::Override)), "other numbers for single callers"),

        ("key", _) => (text(), "the key of the entry"),
        ("value", _) => (
            json!({"type": ["string", "number", "boolean", "null"]}),
            "the value of the entry; `*` stands for any bytes; none: any value",
        ),
        ("rate_limit", _) => (or_nothing(&part(Place::Limit)), "the limit of what ends here"),
        ("rate_limits", _) => (list(part(Place::Limit)), "several limits, which all hold at once"),
        ("address", _) => (part(Place::Address), "read the value as a network address"),
        ("normalize", _) => (one_of(&words::NORMALIZE), "read the value as a path"),

        ("unit", _) => (unit(), "the period of the limit"),
        ("period", _) => (duration(), "the period of the limit, if it is no unit"),
        ("requests_per_unit", Place::Limit | Place::PlanRow) => (
            or_nothing(&number(0)),
            "units of cost per period; 0 refuses everything",
        ),
        ("requests_per_unit", Place::Override) => (number(0), "the new number"),
        ("requests_per_unit", _) => (number(1), "units of cost per period"),
        ("unlimited", Place::Override) => (truth(), "no ceiling"),
        ("unlimited", _) => (or_nothing(&truth()), "no ceiling; nothing is counted"),
        ("name", Place::Replaces) => (text(), "the limit to drop"),
        ("name", _) => (
            or_nothing(&text()),
            "what headers, bodies, metrics and overrides call the limit",
        ),
        ("replaces", _) => (list(part(Place::Replaces)), "other limits of the request to drop"),
        ("algorithm", _) => (
            one_of(&words::ALGORITHMS),
            "how the budget is spent and comes back",
        ),
        ("burst", _) => (number(1), "token bucket: what may come at once"),
        ("max_wait", _) => (duration(), "hold the answer this long rather than refuse"),
        ("max_overshoot", _) => (share(), "how much replicas may take ahead, all together"),
        ("counts", _) => (one_of(&words::COUNTS), "what of a request is counted"),
        ("overdraft", _) => (truth(), "charge even when refused"),
        ("excess", _) => (part(Place::Excess), "let the excess pass, marked"),
        ("failure_mode", _) => (
            one_of(&FailureMode::ALL.map(|mode| (mode.name(), mode))),
            "what a request gets while the store is gone",
        ),
        ("local_barrier", _) => (
            json!({"anyOf": [{"type": "number", "minimum": 1}, {"const": "off"}]}),
            "how many times the limit one replica asks a shared store for",
        ),
        ("time_zone", _) => (text(), "whose midnight: an IANA name"),
        ("plan_entry", _) => (text(), "the entry that picks the row of `plans`"),
        ("plans", _) => (map(&part(Place::PlanRow)), "rows of numbers"),
        ("default_plan", _) => (text(), "the row when the entry names none"),
        ("attribute_to", _) => (text(), "the entry that use is attributed to"),
        ("shadow_mode", _) => (or_nothing(&truth()), "observe, do not enforce"),
        ("quota_mode", _) => (or_nothing(&truth()), "refuse only together with the others"),
        ("share_threshold", _) => (
            or_nothing(&truth()),
            "all values that fit the `*` share one budget",
        ),
        ("detailed_metric" | "value_to_metric", _) => (or_nothing(&truth()), "accepted, without effect"),
        ("metadata", _) => (
            or_nothing(&json!({"type": "object"})),
            "answered in the dynamic metadata of requests that pass",
        ),

        ("entry", _) => (text(), "the entry whose value decides"),
        ("default", _) => (number(0), "the weight of what is not listed"),
        ("values", _) => (map(&number(0)), "weights by value; 0 frees"),
        ("headers", _) => (list(one_of(&words::HEADER_STYLES)), "headers on every answer"),
        ("body", _) => (one_of(&words::BODIES), "the body of a refusal"),
        ("message", _) => (text(), "the message in the body, with placeholders"),
        ("documentation_url", _) => (
            json!({"type": "string", "pattern": "^https?://"}),
            "where the body sends readers",
        ),

        ("match", _) => {
            let mut entries = map(&text());
            entries["minProperties"] = 1.into();
            (entries, "entries of the budget and their values; others are free")
        }
        ("limit", _) => (text(), "the name of the limit"),
        ("multiply", _) => (
            json!({"type": "number", "minimum": 0}),
            "scales the number and the burst",
        ),
        ("expires_at", _) => (
            json!({"type": "string", "format": "date-time", "pattern": "[Tt ].*([Zz]|[+-][0-9]{2})"}),
            "when the policy holds again, by itself",
        ),
        ("author" | "reason", _) => (text(), "for whoever asks later"),

        ("ipv4_prefix", _) => (at_most(0, 32), "the bits that tell IPv4 callers apart"),
        ("ipv6_prefix", _) => (at_most(0, 128), "the bits that tell IPv6 callers apart"),
        ("trusted_hops", _) => (
            at_most(1, 255),
            "the value is a forwarding chain: take the N-th address from the right",
        ),
        ("action", _) => (
            one_of(&words::EXCESS_ACTIONS),
            "the word in the request header `x-ratelimit-excess`",
        ),
        ("up_to", _) => (share(), "how far above the limit the lane reaches"),
        // A key without a shape is one that the tests do not let pass.
        _ => (json!({}), ""),
    }
}

/// What a part is called.
fn id(place: Place) -> &'static str {
    match place {
        Place::Root => "policy",
        Place::Descriptor => "descriptor",
        Place::Limit => "limit",
        Place::Defaults => "defaults",
        Place::PlanRow => "plan",
        Place::Capacity => "capacity",
        Place::SafetyCeiling => "safety_ceiling",
        Place::Costs => "costs",
        Place::Response => "response",
        Place::Override => "override",
        Place::Address => "address",
        Place::Excess => "excess",
        Place::Replaces => "replaced",
    }
}

fn part(place: Place) -> Value {
    json!({"$ref": format!("#/$defs/{}", id(place))})
}

/// What may also be written as nothing, as in the dumps of other programs.
fn or_nothing(value: &Value) -> Value {
    json!({"anyOf": [value, {"enum": [null, "", []]}]})
}

fn list(item: Value) -> Value {
    json!({"type": ["array", "null", "string"], "items": item, "maxLength": 0})
}

fn map(value: &Value) -> Value {
    json!({"type": "object", "additionalProperties": value})
}

/// Whatever was written: `1.10`, `NO` and `313` are texts, too.
fn text() -> Value {
    json!({"type": ["string", "number", "boolean"], "minLength": 1})
}

fn number(least: u32) -> Value {
    at_most(least, u32::MAX)
}

fn at_most(least: u32, most: u32) -> Value {
    json!({
        "type": ["integer", "string"],
        "minimum": least,
        "maximum": most,
        "pattern": format!("^({NUMBERS})$"),
    })
}

fn truth() -> Value {
    json!({"type": ["boolean", "string"], "pattern": format!("^({TRUTH})$")})
}

fn one_of<T>(words: &[(&'static str, T)]) -> Value {
    let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    json!({ "enum": words })
}

fn duration() -> Value {
    let units = ["w", "d", "h", "m", "s", "ms", "us"].map(|unit| format!("([0-9]+{unit})?"));
    json!({"type": "string", "minLength": 1, "pattern": format!("^{}$", units.concat())})
}

fn share() -> Value {
    json!({"type": "string", "pattern": r"^[0-9]+(\.[0-9]{1,2})?%$"})
}

/// A unit, in any case; editors propose the first form.
fn unit() -> Value {
    let words = Unit::ALL.map(Unit::name);
    let any_case = |word: &str| -> String {
        let letter = |c: char| format!("[{c}{}]", c.to_ascii_uppercase());
        word.chars().map(letter).collect()
    };
    let pattern = format!("^({})$", words.map(any_case).join("|"));
    json!({"anyOf": [{"enum": words}, {"type": "string", "pattern": pattern}, {"enum": [null, "", []]}]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_shape_and_a_description() {
        for place in Place::ALL {
            for key in place.keys() {
                let (shape, description) = value(key, place);
                let free = place == Place::Root && ["name", "metadata"].contains(key);
                assert!(free || shape != json!({}), "{key} of {}", place.called());
                assert!(!description.is_empty(), "{key} of {}", place.called());
            }
        }
    }
}
