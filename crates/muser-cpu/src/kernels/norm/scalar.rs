//! RMS norms, one value at a time.

super::kernels!(scalar);
