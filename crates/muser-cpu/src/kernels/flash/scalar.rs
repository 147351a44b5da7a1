//! The pinned lane's attention, one value at a time.

super::kernels!(scalar);
