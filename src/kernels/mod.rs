//! Kernels over slices and packed weights: pure functions that know no tensor and no graph.
