//! Whether traces are exported: the standard variables. The SDK reads those that only say how.

/// Whether traces are exported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TraceSettings {
    /// Nobody asked for them.
    #[default]
    Off,
    /// Somebody asked for what is not there; why.
    Refused(String),
    /// They are.
    On {
        /// Only what Envoy traces: no sampler was asked for.
        sampled_by_parent: bool,
    },
}

impl TraceSettings {
    /// Reads the variables through `read`.
    pub fn from_variables(read: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name: &str| read(name).filter(|value| !value.trim().is_empty());
        let first =
            |names: [&'static str; 2]| names.into_iter().find_map(|name| Some((name, variable(name)?)));
        if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.trim().eq_ignore_ascii_case("true")) {
            return Self::Off;
        }
        if first([
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
        ])
        .is_none()
        {
            return Self::Off;
        }
        match variable("OTEL_TRACES_EXPORTER").as_deref().map(str::trim) {
            None | Some("otlp") => {}
            Some("none") => return Self::Off,
            Some(other) => {
                return Self::Refused(format!("OTEL_TRACES_EXPORTER is {other:?}, not otlp or none"));
            }
        }
        let protocol = first([
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "OTEL_EXPORTER_OTLP_PROTOCOL",
        ]);
        if let Some((name, other)) = protocol.filter(|(_, value)| value.trim() != "grpc") {
            return Self::Refused(format!("{name} is {other:?}, only grpc is spoken"));
        }
        Self::On {
            sampled_by_parent: variable("OTEL_TRACES_SAMPLER").is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_on_when_an_endpoint_is_given_and_nothing_says_otherwise() {
        let on = TraceSettings::On {
            sampled_by_parent: true,
        };
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317");
        for (variables, wanted) in [
            (vec![], TraceSettings::Off),
            (vec![endpoint], on.clone()),
            (
                vec![("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:4317")],
                on.clone(),
            ),
            (vec![("OTEL_EXPORTER_OTLP_ENDPOINT", " ")], TraceSettings::Off),
            (vec![endpoint, ("OTEL_SDK_DISABLED", "TRUE")], TraceSettings::Off),
            (vec![endpoint, ("OTEL_SDK_DISABLED", "no")], on.clone()),
            (
                vec![endpoint, ("OTEL_TRACES_EXPORTER", "none")],
                TraceSettings::Off,
            ),
            (vec![endpoint, ("OTEL_TRACES_EXPORTER", "otlp")], on.clone()),
            (vec![endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], on),
            (
                vec![endpoint, ("OTEL_TRACES_SAMPLER", "parentbased_always_on")],
                TraceSettings::On {
                    sampled_by_parent: false,
                },
            ),
            (vec![("OTEL_TRACES_EXPORTER", "zipkin")], TraceSettings::Off),
        ] {
            assert_eq!(settings(&variables), wanted, "{variables:?}");
        }
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        for (name, value, part) in [
            ("OTEL_TRACES_EXPORTER", "zipkin", "not otlp"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "only grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "only grpc"),
        ] {
            let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317");
            let TraceSettings::Refused(why) = settings(&[endpoint, (name, value)]) else {
                panic!("{name}={value} was taken");
            };
            assert!(why.starts_with(name) && why.contains(part), "{why}");
        }
    }

    fn settings(variables: &[(&str, &str)]) -> TraceSettings {
        TraceSettings::from_variables(|name| {
            let found = variables.iter().find(|(n, _)| *n == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }
}
