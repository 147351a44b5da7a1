//! Builds the operations of a requested ggml graph: each operation that a request may
//! name is a call of ggml's API.

use std::collections::HashMap;

use llama_cpp_sys_2 as sys;
use serde::Deserialize;
use serde_json::Value;

use crate::ggml::{Context, Raw, type_of};

/// One operation of the ggml graph that a request describes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Node {
    /// Name of the tensor that holds the result of the ggml operation.
    pub(crate) name: String,
    /// Name of the ggml operation: `mul_mat`, `rope`, …
    pub(crate) op: String,
    /// Names of the tensors that are the ggml operation's operands.
    pub(crate) src: Vec<String>,
    /// Parameters of the ggml operation, such as `eps` or `scale`, by ggml's names.
    #[serde(default)]
    pub(crate) params: Value,
}

impl Node {
    fn err(&self, what: &str) -> String {
        format!("node {} ({}): {what}", self.name, self.op)
    }

    fn number(&self, key: &str) -> Result<f64, String> {
        self.params[key]
            .as_f64()
            .ok_or_else(|| self.err(&format!("parameter {key} is missing")))
    }

    /// Reads a parameter of a ggml operation as f32. JSON numbers are parsed as f64,
    /// which is exact for any f32 written in full.
    fn float(&self, key: &str) -> Result<f32, String> {
        Ok(self.number(key)? as f32)
    }

    fn float_or(&self, key: &str, default: f32) -> Result<f32, String> {
        if self.params[key].is_null() {
            Ok(default)
        } else {
            self.float(key)
        }
    }

    fn int(&self, key: &str) -> Result<i32, String> {
        self.params[key]
            .as_i64()
            .and_then(|v| i32::try_from(v).ok())
            .ok_or_else(|| self.err(&format!("parameter {key} is not an i32")))
    }

    /// Reads a parameter of a ggml operation that is a list of four integers.
    fn four(&self, key: &str) -> Result<[i64; 4], String> {
        let list: Option<Vec<i64>> = self.params[key]
            .as_array()
            .and_then(|a| a.iter().map(Value::as_i64).collect());
        list.and_then(|l| <[i64; 4]>::try_from(l).ok())
            .ok_or_else(|| self.err(&format!("parameter {key} is not four integers")))
    }

    fn kind(&self) -> Result<sys::ggml_type, String> {
        type_of(
            self.params["type"]
                .as_str()
                .ok_or_else(|| self.err("parameter type is missing"))?,
        )
    }
}

/// Adds an operation of the requested graph to the ggml context and returns the tensor
/// of its result.
///
/// # Errors
/// An operation, operand or parameter is unknown; the error names it. ggml
/// checks shapes itself: a failed assertion ends the process.
pub(crate) fn build(
    ctx: &Context,
    node: &Node,
    known: &HashMap<String, Raw>,
) -> Result<Raw, String> {
    let src = node
        .src
        .iter()
        .map(|n| {
            known
                .get(n)
                .copied()
                .ok_or_else(|| node.err(&format!("no tensor {n}")))
        })
        .collect::<Result<Vec<Raw>, String>>()?;
    let c = ctx.raw();
    // SAFETY: the context is live and every operand belongs to it or to the
    // weights' context, which lives as long. ggml checks shapes itself.
    let made = unsafe {
        match (node.op.as_str(), src.as_slice()) {
            ("mul_mat", &[w, x]) => sys::ggml_mul_mat(c, w, x),
            ("get_rows", &[w, i]) => sys::ggml_get_rows(c, w, i),
            ("rms_norm", &[x]) => sys::ggml_rms_norm(c, x, node.float("eps")?),
            ("mul", &[a, b]) => sys::ggml_mul(c, a, b),
            ("add", &[a, b]) => sys::ggml_add(c, a, b),
            ("silu", &[x]) => sys::ggml_silu(c, x),
            ("sigmoid", &[x]) => sys::ggml_sigmoid(c, x),
            ("tanh", &[x]) => sys::ggml_tanh(c, x),
            ("swiglu_split", &[a, b]) => sys::ggml_swiglu_split(c, a, b),
            ("scale", &[x]) => sys::ggml_scale(c, x, node.float("s")?),
            ("cpy", &[a, b]) => sys::ggml_cpy(c, a, b),
            ("cast", &[a]) => sys::ggml_cast(c, a, node.kind()?),
            ("cont", &[a]) => sys::ggml_cont(c, a),
            ("set_rows", &[a, b, i]) => sys::ggml_set_rows(c, a, b, i),
            ("soft_max", &[x]) => soft_max(c, node, x, std::ptr::null_mut())?,
            ("soft_max", &[x, m]) => soft_max(c, node, x, m)?,
            ("rope", &[x, p]) => rope(c, node, x, p)?,
            ("flash_attn", &[q, k, v, m]) => flash(c, node, [q, k, v, m])?,
            ("reshape", &[a]) => {
                let [n0, n1, n2, n3] = node.four("ne")?;
                sys::ggml_reshape_4d(c, a, n0, n1, n2, n3)
            }
            ("permute", &[a]) => {
                let axes = node.four("axes")?;
                if axes.iter().any(|a| !(0..4).contains(a)) {
                    return Err(node.err("axes are not a permutation of 0, 1, 2, 3"));
                }
                let [a0, a1, a2, a3] = axes.map(|a| a as i32);
                sys::ggml_permute(c, a, a0, a1, a2, a3)
            }
            ("view", &[a]) => view(c, node, a)?,
            (op, src) => {
                return Err(node.err(&format!("no operation {op} of {} operands", src.len())));
            }
        }
    };
    let name =
        std::ffi::CString::new(node.name.as_str()).map_err(|_| node.err("the name holds a NUL"))?;
    // SAFETY: `made` is a live tensor of the context; ggml copies the name.
    Ok(unsafe { sys::ggml_set_name(made, name.as_ptr()) })
}

/// Calls `ggml_soft_max_ext`, with the operation's parameters; `mask` may be null.
fn soft_max(c: *mut sys::ggml_context, n: &Node, x: Raw, mask: Raw) -> Result<Raw, String> {
    let (scale, bias) = (n.float_or("scale", 1.0)?, n.float_or("max_bias", 0.0)?);
    // SAFETY: as in `build`.
    Ok(unsafe { sys::ggml_soft_max_ext(c, x, mask, scale, bias) })
}

/// Calls `ggml_rope_ext`, with the operation's parameters, without frequency factors.
fn rope(c: *mut sys::ggml_context, n: &Node, x: Raw, pos: Raw) -> Result<Raw, String> {
    let (dims, mode, orig) = (n.int("n_dims")?, n.int("mode")?, n.int("n_ctx_orig")?);
    let (base, scale) = (n.float("freq_base")?, n.float("freq_scale")?);
    let (ext, attn) = (n.float("ext_factor")?, n.float("attn_factor")?);
    let (fast, slow) = (n.float("beta_fast")?, n.float("beta_slow")?);
    // SAFETY: as in `build`; the frequency factors may be null.
    Ok(unsafe {
        sys::ggml_rope_ext(
            c,
            x,
            pos,
            std::ptr::null_mut(),
            dims,
            mode,
            orig,
            base,
            scale,
            ext,
            attn,
            fast,
            slow,
        )
    })
}

/// Calls `ggml_flash_attn_ext`, with the operation's parameters, at the precision that
/// llama.cpp asks for.
fn flash(c: *mut sys::ggml_context, n: &Node, [q, k, v, m]: [Raw; 4]) -> Result<Raw, String> {
    let (scale, bias) = (n.float("scale")?, n.float_or("max_bias", 0.0)?);
    let cap = n.float_or("logit_softcap", 0.0)?;
    // SAFETY: as in `build`.
    Ok(unsafe {
        let t = sys::ggml_flash_attn_ext(c, q, k, v, m, scale, bias, cap);
        sys::ggml_flash_attn_ext_set_prec(t, sys::GGML_PREC_F32);
        t
    })
}

/// Calls `ggml_view_4d` with the operation's parameters: `ne` (sizes), `nb` (strides in
/// bytes; the first is not used) and `offset`.
fn view(c: *mut sys::ggml_context, n: &Node, a: Raw) -> Result<Raw, String> {
    let size = |v: i64| usize::try_from(v).map_err(|_| n.err("a negative size"));
    let [n0, n1, n2, n3] = n.four("ne")?;
    let nb = n.four("nb")?;
    let (b1, b2, b3) = (size(nb[1])?, size(nb[2])?, size(nb[3])?);
    let offset = size(n.params["offset"].as_i64().unwrap_or(0))?;
    // SAFETY: as in `build`; ggml asserts that the view lies inside its source.
    Ok(unsafe { sys::ggml_view_4d(c, a, n0, n1, n2, n3, b1, b2, b3, offset) })
}
