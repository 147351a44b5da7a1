//! Wraps ggml's objects (contexts, buffers, backends) in types that free them when
//! dropped, and reads the properties of ggml's tensor types.

use std::ffi::{CStr, CString};
use std::ptr::{self, NonNull};

use llama_cpp_sys_2 as sys;

/// A pointer to a ggml tensor, owned by a [`Context`].
pub(crate) type Raw = *mut sys::ggml_tensor;

/// Names of the tensor types that a request may use, with ggml's constants for them.
const TYPES: [(&str, sys::ggml_type); 9] = [
    ("f32", sys::GGML_TYPE_F32),
    ("f16", sys::GGML_TYPE_F16),
    ("bf16", sys::GGML_TYPE_BF16),
    ("q4_K", sys::GGML_TYPE_Q4_K),
    ("q5_K", sys::GGML_TYPE_Q5_K),
    ("q6_K", sys::GGML_TYPE_Q6_K),
    ("q8_K", sys::GGML_TYPE_Q8_K),
    ("i32", sys::GGML_TYPE_I32),
    ("i64", sys::GGML_TYPE_I64),
];

/// Returns the ggml tensor type that a request names, such as `q4_K`.
pub(crate) fn type_of(name: &str) -> Result<sys::ggml_type, String> {
    TYPES
        .iter()
        .find(|(n, _)| *n == name)
        .map(|(_, t)| *t)
        .ok_or_else(|| format!("type {name}: not one of {:?}", TYPES.map(|(n, _)| n)))
}

/// Returns the name of a ggml tensor type: the one that requests use, else ggml's own.
pub(crate) fn type_name(kind: sys::ggml_type) -> String {
    match TYPES.iter().find(|(_, t)| *t == kind) {
        Some((n, _)) => (*n).to_owned(),
        // SAFETY: the type comes from a tensor that ggml made.
        None => text(unsafe { sys::ggml_type_name(kind) }),
    }
}

/// Returns the number of bytes of a tensor row of `n` elements of a ggml type.
///
/// # Errors
/// `n` is not a positive multiple of the type's block size.
pub(crate) fn row_bytes(kind: sys::ggml_type, n: i64) -> Result<usize, String> {
    // SAFETY: `kind` is one of TYPES.
    let block = unsafe { sys::ggml_blck_size(kind) };
    if n <= 0 || n % block != 0 {
        return Err(format!(
            "{n} elements of {}: blocks are of {block}",
            type_name(kind)
        ));
    }
    // SAFETY: as above, and `n` is whole blocks.
    Ok(unsafe { sys::ggml_row_size(kind, n) })
}

/// Copies a NUL-terminated C string that ggml returned.
pub(crate) fn text(p: *const std::ffi::c_char) -> String {
    if p.is_null() {
        return String::new();
    }
    // SAFETY: ggml's names are NUL-terminated and outlive this copy.
    unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
}

/// A ggml context, which holds the descriptions of tensors; their data lives in a
/// [`Buffer`].
pub(crate) struct Context(NonNull<sys::ggml_context>);

impl Context {
    /// Creates a ggml context with room for `tensors` tensors and one graph of as many
    /// nodes.
    pub(crate) fn new(tensors: usize) -> Result<Self, String> {
        // SAFETY: both only compute sizes.
        let mem = unsafe {
            sys::ggml_tensor_overhead() * tensors + sys::ggml_graph_overhead_custom(tensors, false)
        };
        let params = sys::ggml_init_params {
            mem_size: mem,
            mem_buffer: ptr::null_mut(),
            no_alloc: true,
        };
        // SAFETY: a null buffer makes ggml allocate `mem_size` bytes itself.
        NonNull::new(unsafe { sys::ggml_init(params) })
            .map(Self)
            .ok_or_else(|| format!("no ggml context of {mem} bytes"))
    }

    pub(crate) fn raw(&self) -> *mut sys::ggml_context {
        self.0.as_ptr()
    }

    /// Creates a ggml tensor of a name, type and shape, without data.
    pub(crate) fn tensor(
        &self,
        name: &str,
        kind: sys::ggml_type,
        ne: &[i64],
    ) -> Result<Raw, String> {
        if ne.is_empty() || ne.len() > 4 || ne.iter().any(|&n| n <= 0) {
            return Err(format!("tensor {name}: shape {ne:?}"));
        }
        row_bytes(kind, ne[0])?;
        let c = CString::new(name).map_err(|_| format!("name {name:?} holds a NUL"))?;
        let dims = i32::try_from(ne.len()).map_err(|_| "dimensions".to_owned())?;
        // SAFETY: the context is live, `ne` has `dims` entries, and ggml copies
        // the name.
        Ok(unsafe {
            let t = sys::ggml_new_tensor(self.raw(), kind, dims, ne.as_ptr());
            sys::ggml_set_name(t, c.as_ptr())
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made by ggml_init and freed once.
        unsafe { sys::ggml_free(self.raw()) }
    }
}

/// A ggml buffer: memory that holds the data of tensors.
pub(crate) struct Buffer(NonNull<sys::ggml_backend_buffer>);

impl Buffer {
    pub(crate) fn raw(&self) -> *mut sys::ggml_backend_buffer {
        self.0.as_ptr()
    }

    pub(crate) fn own(p: *mut sys::ggml_backend_buffer) -> Result<Self, String> {
        NonNull::new(p)
            .map(Self)
            .ok_or_else(|| "ggml could not allocate a buffer".to_owned())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: owned, freed once; its tensors are not read after it.
        unsafe { sys::ggml_backend_buffer_free(self.0.as_ptr()) }
    }
}

/// Owns ggml's CPU backend and frees it when dropped.
pub(crate) struct Backend(NonNull<sys::ggml_backend>);

impl Backend {
    pub(crate) fn cpu() -> Result<Self, String> {
        // SAFETY: takes nothing.
        NonNull::new(unsafe { sys::ggml_backend_cpu_init() })
            .map(Self)
            .ok_or_else(|| "no CPU backend".to_owned())
    }

    pub(crate) fn raw(&self) -> sys::ggml_backend_t {
        self.0.as_ptr()
    }

    /// Returns the CPU backend's buffer types besides the plain one: on x86, the one
    /// that repacks weights.
    pub(crate) fn extra_buffer_types(&self) -> Vec<sys::ggml_backend_buffer_type_t> {
        // SAFETY: the backend is live; the function found under this name has
        // this type (ggml-backend.h), and its list ends with a null pointer.
        unsafe {
            let dev = sys::ggml_backend_get_device(self.raw());
            let reg = sys::ggml_backend_dev_backend_reg(dev);
            let name = c"ggml_backend_dev_get_extra_bufts";
            let f = sys::ggml_backend_reg_get_proc_address(reg, name.as_ptr());
            if f.is_null() {
                return Vec::new();
            }
            type ExtraBufts = unsafe extern "C" fn(
                sys::ggml_backend_dev_t,
            )
                -> *mut sys::ggml_backend_buffer_type_t;
            let f: ExtraBufts = std::mem::transmute(f);
            let list = f(dev);
            (0..)
                .map(|i| *list.add(i))
                .take_while(|b| !b.is_null())
                .collect()
        }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // SAFETY: owned, freed once.
        unsafe { sys::ggml_backend_free(self.raw()) }
    }
}
