//! RoPE, one pair at a time.

super::kernels!(scalar);
