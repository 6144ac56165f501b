#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| brigade::ops::fuzz_images(bytes));
