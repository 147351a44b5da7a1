//! The KV store, one value at a time.

super::kernels!(scalar);
