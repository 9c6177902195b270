//! Topic names, filters and matching beside a naive matcher.

mod support;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn mqtt_4_7_matching_does_as_the_naive_matcher(
        filter in "(\\$share/)?(([ab$+#]|\u{0}|[ab]{2}|\\+a)?/){0,4}[ab+#$]?",
        name in "([ab$+]?/){0,4}[ab#]?",
    ) {
        support::topics::agree(&filter, &name);
    }
}
