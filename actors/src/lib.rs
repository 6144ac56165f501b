//! A dataflow runtime of device actors.
