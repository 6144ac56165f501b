#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| brigade_actors::transport::fuzz_frames(bytes));
