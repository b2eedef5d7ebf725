use super::*;

#[test]
fn without_traces_nobody_asks_where_a_call_comes_from() {
    let span = Traces::default().decision(|| panic!("it was asked"));
    assert!(span.is_none());
}

#[test]
fn a_state_longer_than_the_standard_asks_for_is_left_out() {
    let state = |length| "s".repeat(length);
    for (length, kept) in [(LONGEST_STATE, true), (LONGEST_STATE + 1, false)] {
        let state = state(length);
        let origin = Origin {
            tracestate: Some(&state),
            ..Origin::default()
        };
        assert_eq!(origin.get("tracestate").is_some(), kept, "{length}");
    }
}
