//! Calls functions of ggml that its graph API does not expose: conversions of rows
//! between tensor types, and dot products of single rows.

use std::ffi::c_void;

use llama_cpp_sys_2 as sys;
use serde_json::{Value, json};

use crate::ggml::{row_bytes, type_of};
use crate::graph::Reply;
use crate::wire;

unsafe extern "C" {
    /// Quantises four rows of `k` floats at `x` to interleaved Q8_K blocks at `y`
    /// (repack.h).
    fn ggml_quantize_mat_q8_K_4x8(x: *const f32, y: *mut c_void, k: i64);
}

/// Calls the ggml function that a request names on the tensors that came with the
/// request.
///
/// # Errors
/// An unknown function, or operands that it does not take.
pub(crate) fn run(
    name: &str,
    params: &Value,
    tensors: &[wire::Tensor],
    data: &[Vec<u8>],
) -> Result<Reply, String> {
    let made = match (name, tensors) {
        ("from_float", [x]) => from_float(params, x, &data[0]),
        ("to_float", [x]) => to_float(x, &data[0]),
        ("quantize_4x8", [x]) => quantize_4x8(x, &data[0]),
        ("vec_dot", [w, x]) => vec_dot([w, x], [&data[0], &data[1]]),
        _ => Err(format!("no call {name} of {} tensors", tensors.len())),
    }?;
    let head = wire::Tensor {
        name: "y".into(),
        kind: made.0,
        ne: made.1,
        bytes: made.2.len(),
        weight: false,
        keep: false,
    };
    Ok((json!({ "ok": true, "tensors": [head] }), vec![made.2]))
}

type Made = Result<(String, Vec<i64>, Vec<u8>), String>;

/// Copies the f32 values of a tensor that a request sent to aligned memory. Returns
/// them with the row length and the number of rows.
fn floats(t: &wire::Tensor, data: &[u8]) -> Result<(Vec<f32>, usize, usize), String> {
    let n = *t.ne.first().unwrap_or(&0);
    let rows: i64 = t.ne[1.min(t.ne.len())..].iter().product();
    let (n, rows) = match (usize::try_from(n), usize::try_from(rows)) {
        (Ok(n), Ok(r)) if t.kind == "f32" && n.checked_mul(r) == Some(data.len() / 4) => (n, r),
        _ => return Err(format!("tensor {}: not {:?} of f32", t.name, t.ne)),
    };
    let x = data
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    Ok((x, n, rows))
}

/// Converts f32 rows to a ggml type with the CPU backend's function, one call for each
/// row.
fn from_float(params: &Value, t: &wire::Tensor, data: &[u8]) -> Made {
    let name = params["type"].as_str().ok_or("parameter type is missing")?;
    let kind = type_of(name)?;
    let (x, n, rows) = floats(t, data)?;
    let row = row_bytes(kind, t.ne[0])?;
    // SAFETY: the traits are a static table indexed by a type of ggml's.
    let f = unsafe { (*sys::ggml_get_type_traits_cpu(kind)).from_float }
        .ok_or_else(|| format!("no conversion to {name}"))?;
    let mut y = vec![0u8; row * rows];
    for (src, dst) in x.chunks_exact(n).zip(y.chunks_exact_mut(row)) {
        // SAFETY: `src` has n floats and `dst` the bytes of n elements.
        unsafe { f(src.as_ptr(), dst.as_mut_ptr().cast(), t.ne[0]) };
    }
    Ok((name.to_owned(), t.ne.clone(), y))
}

/// Converts rows of a ggml type to f32 with ggml-base's function, one call for each
/// row.
fn to_float(t: &wire::Tensor, data: &[u8]) -> Made {
    let kind = type_of(&t.kind)?;
    let row = row_bytes(kind, t.ne.first().copied().unwrap_or(0))?;
    // SAFETY: as in `from_float`.
    let f = unsafe { (*sys::ggml_get_type_traits(kind)).to_float }
        .ok_or_else(|| format!("no conversion from {}", t.kind))?;
    let n = usize::try_from(t.ne[0]).map_err(|e| e.to_string())?;
    let mut y = vec![0f32; n * (data.len() / row)];
    for (src, dst) in data.chunks_exact(row).zip(y.chunks_exact_mut(n)) {
        // SAFETY: `src` has the bytes of n elements and `dst` n floats.
        unsafe { f(src.as_ptr().cast(), dst.as_mut_ptr(), t.ne[0]) };
    }
    Ok((
        "f32".into(),
        t.ne.clone(),
        y.iter().flat_map(|v| v.to_le_bytes()).collect(),
    ))
}

/// Quantises four rows of f32 to the interleaved Q8_K blocks that products of repacked
/// weights take: for each block of 256 columns four f32 scales, 1,024 quantised values
/// (codes) and 64 sums, 1,168 bytes.
fn quantize_4x8(t: &wire::Tensor, data: &[u8]) -> Made {
    let (x, n, rows) = floats(t, data)?;
    if rows != 4 || n % 256 != 0 {
        return Err(format!(
            "tensor {}: {n} x {rows}, wants four rows of whole blocks",
            t.name
        ));
    }
    let mut y = vec![0u8; n / 256 * 1168];
    // SAFETY: four rows of n floats, and room for n / 256 blocks of 1,168 bytes.
    unsafe { ggml_quantize_mat_q8_K_4x8(x.as_ptr(), y.as_mut_ptr().cast(), t.ne[0]) };
    Ok(("q8_Kx4".into(), vec![t.ne[0], 4], y))
}

/// Computes ggml's dot product of one weight row with an activation row of the type
/// that ggml pairs with it.
fn vec_dot(t: [&wire::Tensor; 2], data: [&[u8]; 2]) -> Made {
    let kind = type_of(&t[0].kind)?;
    // SAFETY: as in `from_float`.
    let traits = unsafe { &*sys::ggml_get_type_traits_cpu(kind) };
    let f = traits
        .vec_dot
        .ok_or_else(|| format!("no dot product of {}", t[0].kind))?;
    let other = type_of(&t[1].kind)?;
    let n = t[0].ne.first().copied().unwrap_or(0);
    let fits = other == traits.vec_dot_type
        && data[0].len() == row_bytes(kind, n)?
        && data[1].len() == row_bytes(other, n)?;
    if !fits {
        return Err(format!(
            "vec_dot of {} and {}: types or sizes",
            t[0].kind, t[1].kind
        ));
    }
    let mut s = 0f32;
    let n = i32::try_from(n).map_err(|e| e.to_string())?;
    // SAFETY: both rows hold n elements of the types that the function takes.
    unsafe {
        f(
            n,
            &mut s,
            0,
            data[0].as_ptr().cast(),
            0,
            data[1].as_ptr().cast(),
            0,
            1,
        )
    };
    Ok(("f32".into(), vec![1], s.to_le_bytes().to_vec()))
}
