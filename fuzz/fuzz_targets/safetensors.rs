#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| brigade::import::fuzz_safetensors(bytes));
