//! Which keys stand where, and what somebody meant who wrote another one.

/// A kind of map in a policy file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The document itself.
    Root,
    /// An item of `descriptors`.
    Descriptor,
    /// `rate_limit`, or an item of `rate_limits`.
    Limit,
    /// `defaults`.
    Defaults,
    /// A row of `plans`.
    PlanRow,
    /// `capacity`.
    Capacity,
    /// `safety_ceiling`.
    SafetyCeiling,
    /// `costs`.
    Costs,
    /// `response`.
    Response,
    /// An item of `overrides`.
    Override,
    /// `address`.
    Address,
    /// `excess`.
    Excess,
    /// An item of `replaces`.
    Replaces,
}

/// A key that stands where it has no meaning: what is wrong, and what to write.
pub(super) struct Unknown {
    pub(super) message: String,
    pub(super) help: String,
    /// The key that was meant, when it is certain enough to read the value as its own.
    pub(super) meant: Option<&'static str>,
}

#[rustfmt::skip]
const ROOT: &[&str] = &[
    "domain", "name", "descriptors", "capacity", "safety_ceiling", "expected", "costs", "defaults", "response",
    "overrides", "metadata",
];
#[rustfmt::skip]
const DESCRIPTOR: &[&str] = &[
    "key", "value", "rate_limit", "rate_limits", "descriptors", "shadow_mode", "quota_mode",
    "detailed_metric", "value_to_metric", "share_threshold", "metadata", "address", "normalize",
];
#[rustfmt::skip]
const LIMIT: &[&str] = &[
    "unit", "period", "requests_per_unit", "name", "unlimited", "replaces", "algorithm", "burst",
    "max_wait", "counts", "overdraft", "excess", "failure_mode", "local_barrier", "time_zone", "plan_entry", "plans",
    "default_plan", "attribute_to", "shadow_mode", "quota_mode", "share_threshold", "detailed_metric",
    "value_to_metric", "metadata",
];
#[rustfmt::skip]
const DEFAULTS: &[&str] = &[
    "algorithm", "burst", "max_wait", "counts", "overdraft", "excess", "failure_mode", "local_barrier", "time_zone",
    "plan_entry", "default_plan", "attribute_to", "unlimited", "replaces", "shadow_mode", "quota_mode",
    "detailed_metric", "value_to_metric",
];

/// The keys that a policy file for the incumbent can have.
#[rustfmt::skip]
const INCUMBENT: &[&str] = &[
    "domain", "name", "descriptors", "key", "value", "rate_limit", "unit", "requests_per_unit", "unlimited",
    "replaces", "shadow_mode", "quota_mode", "detailed_metric", "value_to_metric", "share_threshold",
    "metadata",
];

/// Keys of the policy language whose behaviour this version does not have. Refused by name: a limit
/// that silently lacks its barrier is worse than none.
const NOT_BUILT: &[(&str, &[Place])] = &[("max_overshoot", &[Place::Limit, Place::Defaults, Place::PlanRow])];

/// Fields of Envoy's own `rate_limits` actions and of its filter.
#[rustfmt::skip]
const ENVOY: &[&str] = &[
    "actions", "header_name", "headers", "descriptor_key", "descriptor_value", "entries", "token_bucket",
    "request_headers", "header_value_match", "generic_key", "remote_address", "masked_remote_address",
    "destination_cluster", "source_cluster", "query_parameter_value_match", "query_parameters",
    "expect_match", "skip_if_absent", "default_value", "disable_key", "stage", "hits_addend",
    "rate_limit_service", "failure_mode_deny", "timeout", "request_type",
];

/// Keys of other products whose files look alike at first sight.
#[rustfmt::skip]
const FOREIGN: &[&str] = &[
    "separator", "bucket", "namespace", "max_value", "seconds", "conditions", "variables", "limits",
    "buckets",
];

/// Words that people use for one of our keys.
#[rustfmt::skip]
const SYNONYMS: &[(&str, &str)] = &[
    ("window", "period"), ("interval", "period"), ("duration", "period"), ("requests", "requests_per_unit"),
    ("rate", "requests_per_unit"), ("max_requests", "requests_per_unit"), ("limit", "rate_limit"),
    ("plan", "plan_entry"), ("timezone", "time_zone"), ("tz", "time_zone"), ("shadow", "shadow_mode"),
    ("expires", "expires_at"), ("cost", "costs"), ("weights", "values"), ("addend", "counts"),
];

/// The keys that are refused by name because this version does not have their behaviour.
pub fn not_built() -> impl Iterator<Item = &'static str> {
    NOT_BUILT.iter().map(|(key, _)| *key)
}

impl Place {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Root,
        Self::Descriptor,
        Self::Limit,
        Self::Defaults,
        Self::PlanRow,
        Self::Capacity,
        Self::SafetyCeiling,
        Self::Costs,
        Self::Response,
        Self::Override,
        Self::Address,
        Self::Excess,
        Self::Replaces,
    ];

    /// The keys that may stand here.
    pub fn keys(self) -> &'static [&'static str] {
        match self {
            Place::Root => ROOT,
            Place::Descriptor => DESCRIPTOR,
            Place::Limit => LIMIT,
            Place::Defaults => DEFAULTS,
            Place::PlanRow => &[
                "unit",
                "period",
                "requests_per_unit",
                "burst",
                "max_wait",
                "unlimited",
            ],
            Place::Capacity => &["unit", "period", "requests_per_unit"],
            Place::SafetyCeiling => &["unit", "period", "requests_per_unit", "burst"],
            Place::Costs => &["entry", "default", "values"],
            Place::Response => &["headers", "body", "message", "documentation_url"],
            Place::Override => &[
                "match",
                "limit",
                "multiply",
                "requests_per_unit",
                "burst",
                "unlimited",
                "expires_at",
                "author",
                "reason",
            ],
            Place::Address => &["ipv4_prefix", "ipv6_prefix", "trusted_hops"],
            Place::Excess => &["action", "up_to"],
            Place::Replaces => &["name"],
        }
    }

    /// What a message calls the place.
    pub fn called(self) -> &'static str {
        match self {
            Place::Root => "the root of a policy file",
            Place::Descriptor => "a descriptor",
            Place::Limit => "a limit",
            Place::Defaults => "`defaults`",
            Place::PlanRow => "a row of `plans`",
            Place::Capacity => "`capacity`",
            Place::SafetyCeiling => "`safety_ceiling`",
            Place::Costs => "`costs`",
            Place::Response => "`response`",
            Place::Override => "an override",
            Place::Address => "`address`",
            Place::Excess => "`excess`",
            Place::Replaces => "an item of `replaces`",
        }
    }

    /// Where a key of this place belongs, told to somebody who wrote it elsewhere.
    fn directions(self) -> &'static str {
        match self {
            Place::Root => "at the root of the file, beside `domain:`",
            Place::Descriptor => "in an item of `descriptors:`, beside `key:`",
            Place::Limit => "one level deeper, under `rate_limit:`",
            Place::Defaults => "under `defaults:` at the root",
            Place::PlanRow => "in a row of `plans:`",
            Place::Capacity => "under `capacity:` at the root",
            Place::SafetyCeiling => "under `safety_ceiling:` at the root",
            Place::Costs => "under `costs:` at the root",
            Place::Response => "under `response:` at the root",
            Place::Override => "in an item of `overrides:` at the root",
            Place::Address => "under `address:` of a descriptor",
            Place::Excess => "under `excess:` of a limit",
            Place::Replaces => "in an item of `replaces:`",
        }
    }
}

/// Whether only cota knows this key.
pub(super) fn is_new(key: &str) -> bool {
    !INCUMBENT.contains(&key)
}

/// The key as the tables have it, if it may stand here.
pub(super) fn known(key: &str, place: Place) -> Option<&'static str> {
    place.keys().iter().find(|known| **known == key).copied()
}

/// Why `key` cannot stand in `place`, for a key that [`known`] does not find there.
pub(super) fn unknown(key: &str, shown: &str, place: Place) -> Unknown {
    let told = |message: String, help: String| Unknown {
        message,
        help,
        meant: None,
    };
    let message = format!("unknown key {shown} in {}", place.called());

    if let Some((name, _)) = NOT_BUILT
        .iter()
        .find(|(name, places)| *name == key && places.contains(&place))
    {
        return told(
            format!("`{name}` is not built yet in this version of cota"),
            format!("take `{name}` out; it would have no effect"),
        );
    }
    if key == "requests" && place == Place::Root {
        return told(
            "`requests` at the root is reserved".to_owned(),
            "descriptors come from Envoy; take the key out".to_owned(),
        );
    }
    if let Some(meant) = place
        .keys()
        .iter()
        .copied()
        .find(|known| fold(known) == fold(key))
    {
        let help = if key.eq_ignore_ascii_case(meant) {
            format!("keys are lower case: `{meant}`")
        } else {
            format!("written `{meant}` here")
        };
        return Unknown {
            message,
            help,
            meant: Some(meant),
        };
    }
    if matches!(place, Place::Descriptor | Place::Limit) && ENVOY.contains(&key) {
        return told(
            message,
            "this belongs to Envoy's `rate_limits`; here only the key and value it sends".to_owned(),
        );
    }
    let synonym = SYNONYMS
        .iter()
        .find(|(word, _)| *word == key)
        .and_then(|(_, meant)| known(meant, place));
    if let Some(meant) = synonym {
        return told(message, format!("did you mean `{meant}`?"));
    }
    let list = || {
        place
            .keys()
            .iter()
            .map(|key| format!("`{key}`"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    if LIMIT.contains(&key) {
        let help = match place {
            // `share_threshold` and `metadata` say something of values, which only a descriptor has.
            Place::Defaults if DESCRIPTOR.contains(&key) => {
                Some(format!("it belongs {}", Place::Descriptor.directions()))
            }
            Place::Defaults => Some("each limit has its own; write it there".to_owned()),
            Place::PlanRow => Some("rows change numbers only; write it beside `plans:`".to_owned()),
            Place::Override | Place::Capacity | Place::SafetyCeiling | Place::Costs => {
                Some(format!("known here: {}", list()))
            }
            _ => None,
        };
        if let Some(help) = help {
            return told(format!("{shown} has no meaning in {}", place.called()), help);
        }
    }
    if let Some((home, meant)) = home(key, place) {
        let message = format!("{shown} has no meaning in {}", place.called());
        let spelling = if meant == key {
            String::new()
        } else {
            format!(" (written `{meant}`)")
        };
        return told(message, format!("it belongs {}{spelling}", home.directions()));
    }
    if ENVOY.contains(&key) {
        return told(
            message,
            "this belongs to Envoy's configuration, not to the policy".to_owned(),
        );
    }
    if let Some(meant) = nearest(key, place.keys()) {
        return told(message, format!("did you mean `{meant}`?"));
    }
    if FOREIGN.contains(&key) {
        return told(
            message,
            format!("this is a key of another product's limits file; here: {}", list()),
        );
    }
    told(message, format!("known here: {}", list()))
}

/// The word of `list` that `word` is a slip of, if there is one.
pub(super) fn nearest<'l>(word: &str, list: &[&'l str]) -> Option<&'l str> {
    let most = if word.chars().count() < 5 { 1 } else { 2 };
    list.iter()
        .map(|known| (strsim::osa_distance(&word.to_lowercase(), known), *known))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// The place that does know the key, and how it is written there.
fn home(key: &str, not: Place) -> Option<(Place, &'static str)> {
    const SEARCH: [Place; 8] = [
        Place::Limit,
        Place::Descriptor,
        Place::Root,
        Place::Override,
        Place::Costs,
        Place::Response,
        Place::Address,
        Place::Excess,
    ];
    SEARCH
        .into_iter()
        .filter(|place| *place != not)
        .find_map(|place| {
            place
                .keys()
                .iter()
                .find(|known| fold(known) == fold(key))
                .map(|known| (place, *known))
        })
}

fn fold(key: &str) -> String {
    key.chars()
        .filter(|c| !matches!(c, '_' | '-'))
        .flat_map(char::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn help(key: &str, place: Place) -> String {
        assert_eq!(known(key, place), None);
        unknown(key, &format!("`{key}`"), place).help
    }

    #[test]
    fn other_spellings_are_recognised() {
        assert_eq!(help("rateLimit", Place::Descriptor), "written `rate_limit` here");
        assert_eq!(
            help("requestsperunit", Place::Limit),
            "written `requests_per_unit` here"
        );
        assert_eq!(help("Value", Place::Descriptor), "keys are lower case: `value`");
        assert_eq!(
            unknown("rate-limit", "", Place::Descriptor).meant,
            Some("rate_limit")
        );
    }

    #[test]
    fn slips_get_the_nearest_key() {
        assert_eq!(help("unlimied", Place::Limit), "did you mean `unlimited`?");
        assert_eq!(help("descritpors", Place::Root), "did you mean `descriptors`?");
        assert_eq!(help("window", Place::Limit), "did you mean `period`?");
        assert!(help("xyz", Place::Limit).starts_with("known here: `unit`"));
    }

    #[test]
    fn known_keys_elsewhere_are_sent_home() {
        assert_eq!(
            help("unit", Place::Descriptor),
            "it belongs one level deeper, under `rate_limit:`"
        );
        assert_eq!(
            help("key", Place::Root),
            "it belongs in an item of `descriptors:`, beside `key:`"
        );
        assert_eq!(
            help("domain", Place::Descriptor),
            "it belongs at the root of the file, beside `domain:`"
        );
        assert_eq!(
            help("multiply", Place::Limit),
            "it belongs in an item of `overrides:` at the root"
        );
        assert!(help("requestsPerUnit", Place::Descriptor).ends_with("(written `requests_per_unit`)"));
    }

    #[test]
    fn keys_of_envoy_and_of_others_are_named_as_such() {
        assert!(help("header_name", Place::Descriptor).contains("Envoy's `rate_limits`"));
        assert!(help("headers", Place::Descriptor).contains("Envoy's `rate_limits`"));
        assert!(help("separator", Place::Root).contains("another product"));
    }

    #[test]
    fn what_is_not_built_is_refused_by_name() {
        for (name, places) in NOT_BUILT {
            for place in *places {
                assert_eq!(known(name, *place), None);
                assert!(unknown(name, "", *place).message.contains("not built yet"));
            }
        }
    }

    #[test]
    fn every_key_of_defaults_is_a_key_of_limits() {
        for key in DEFAULTS {
            assert!(LIMIT.contains(key), "{key}");
        }
    }
}
