//! Attention, one value at a time.

super::kernels!(scalar);
