//! Elementwise operations, one value at a time.

super::kernels!(scalar);
