#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| brigade::cluster::fuzz_messages(bytes));
