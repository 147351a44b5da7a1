//! F16 rows at the scalar level.

crate::kernels::matvec::float_kernel!(scalar, load_f16_bytes, 2);
