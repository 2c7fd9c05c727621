//! Any order of anything: what the fuzz target `engine` runs for long, some dozens of times.

use proptest::prelude::*;

use crate::engine::world::chaos;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_in_every_sample_comes_out_once_and_under_no_name_of_another_time(
        bytes in prop::collection::vec(any::<u8>(), 0..400)
    ) {
        chaos::run(&bytes);
    }
}
