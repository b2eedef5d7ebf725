//! How the search for a descriptor's rule ends, and what can be broken about a request.

/// How the search for a descriptor's rule ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Found {
    /// At a rule with limits, or with a limit sent along.
    Limits,
    /// At a rule that sets no limit on purpose.
    #[default]
    NoLimit,
    /// Nowhere.
    Unmatched(Unmatched),
    /// The descriptor itself is broken.
    Malformed(Malformed),
}

/// Why a descriptor met no rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unmatched {
    /// No policy has this domain.
    UnknownDomain,
    /// No rule has this key at this place.
    UnknownKey,
    /// The key is known here, its value is not, and there is no rule for every value.
    UnknownValue,
    /// Rules need more entries.
    TooShort,
    /// Rules end before the entries do.
    TooLong,
    /// The keys are known, in another order.
    Order,
}

impl Unmatched {
    /// All reasons.
    pub const ALL: [Self; 6] = [
        Self::UnknownDomain,
        Self::UnknownKey,
        Self::UnknownValue,
        Self::TooShort,
        Self::TooLong,
        Self::Order,
    ];

    /// Its word in metrics and in `explain`.
    pub fn name(self) -> &'static str {
        match self {
            Self::UnknownDomain => "unknown_domain",
            Self::UnknownKey => "unknown_key",
            Self::UnknownValue => "unknown_value",
            Self::TooShort => "too_short",
            Self::TooLong => "too_long",
            Self::Order => "order",
        }
    }
}

/// What is broken about a request or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Malformed {
    /// The request names no domain.
    NoDomain,
    /// The request has no descriptors.
    NoDescriptors,
    /// A descriptor has no entries.
    NoEntries,
    /// An entry has an empty key.
    EmptyKey,
    /// A limit sent along has no unit.
    OverrideUnit,
    /// What came is no request: broken, compressed or too long.
    Unreadable,
}

impl Malformed {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::NoDomain,
        Self::NoDescriptors,
        Self::NoEntries,
        Self::EmptyKey,
        Self::OverrideUnit,
        Self::Unreadable,
    ];

    /// Its word in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoDomain => "no_domain",
            Self::NoDescriptors => "no_descriptors",
            Self::NoEntries => "no_entries",
            Self::EmptyKey => "empty_key",
            Self::OverrideUnit => "override_unit",
            Self::Unreadable => "unreadable",
        }
    }
}
