//! From plain to blocked values and back.

use super::{BLOCK, DOMAIN, blocked_dims, plain_dims, plain_shape};
use crate::error::{Result, bail};
use crate::kernels::{Serial, from_blocked, to_blocked};
use crate::ops::def::types::F32S;
use crate::ops::{Infer, OpDef, Port, batch, cost, kernel_fn};
use crate::tensor::{DType, Tensor};

/// The blocked form of a plain value.
pub(super) static TO_BLOCKED: OpDef = OpDef {
    name: "ToBlocked",
    domain: DOMAIN,
    since: 1,
    attributes: &[],
    inputs: &[Port::required("X", F32S)],
    outputs: &[Port::required("Y", F32S)],
    infer: |i| {
        let Some(x) = i.shape(0) else { return unknown(i) };
        let Some(y) = blocked_dims(&x) else {
            bail!(Shape, "a value of shape {x:?} has no blocked form");
        };
        i.set(0, i.dtype(0), Some(y));
        Ok(())
    },
    batch: batch::leading,
    cost: cost::copy,
    prepare: |_| {
        Ok(kernel_fn(|io| {
            let x = io.take_tensor(0)?;
            let shape = blocked_shape(x.shape())?;
            if shape[2] * shape[3] == 1 {
                io.emit(x.reshape(shape)?);
                return Ok(());
            }
            let (n, c, plane) = (shape[0], shape[1] * BLOCK, shape[2] * shape[3]);
            let mut out = io.allocate(DType::F32, shape)?;
            let threads = io.threads().for_work(out.len());
            to_blocked(x.as_slice()?, n, c, plane, out.as_mut_slice()?, threads)?;
            io.emit(out);
            Ok(())
        }))
    },
    cases: Vec::new,
};

/// The plain form of a blocked value.
pub(super) static FROM_BLOCKED: OpDef = OpDef {
    name: "FromBlocked",
    domain: DOMAIN,
    since: 1,
    attributes: &[],
    inputs: &[Port::required("X", F32S)],
    outputs: &[Port::required("Y", F32S)],
    infer: |i| {
        let Some(x) = i.shape(0) else { return unknown(i) };
        let y = plain_dims(&x)?;
        i.set(0, i.dtype(0), Some(y));
        Ok(())
    },
    batch: batch::leading,
    cost: cost::copy,
    prepare: |_| {
        Ok(kernel_fn(|io| {
            let x = io.take_tensor(0)?;
            let shape = plain_shape(x.shape())?;
            let plane = shape[2] * shape[3];
            if plane == 1 {
                io.emit(x.reshape(shape)?);
                return Ok(());
            }
            let (n, c) = (shape[0], shape[1]);
            let mut out = io.allocate(DType::F32, shape)?;
            let threads = io.threads().for_work(out.len());
            from_blocked(x.as_slice()?, n, c, plane, out.as_mut_slice()?, threads)?;
            io.emit(out);
            Ok(())
        }))
    },
    cases: Vec::new,
};

fn unknown(i: &mut Infer<'_>) -> Result<()> {
    i.set(0, i.dtype(0), None);
    Ok(())
}

fn blocked_shape(plain: &[usize]) -> Result<[usize; 5]> {
    Ok(match *plain {
        [n, c, h, w] if c.is_multiple_of(BLOCK) => [n, c / BLOCK, h, w, BLOCK],
        _ => bail!(Shape, "a tensor of shape {plain:?} has no blocked form"),
    })
}

/// The blocked form of a constant.
///
/// # Errors
/// If it has none.
pub(crate) fn block_tensor(x: &Tensor) -> Result<Tensor> {
    let shape = blocked_shape(x.shape())?;
    let (n, c, plane) = (shape[0], shape[1] * BLOCK, shape[2] * shape[3]);
    let mut out = vec![0.0; x.len()];
    to_blocked(x.as_slice()?, n, c, plane, &mut out, &Serial)?;
    Tensor::new(shape, out)
}

/// The plain form of a blocked tensor.
///
/// # Errors
/// If it is none.
pub(crate) fn unblock(x: &Tensor) -> Result<Tensor> {
    let shape = plain_shape(x.shape())?;
    let (n, c, plane) = (shape[0], shape[1], shape[2] * shape[3]);
    let mut out = vec![0.0; x.len()];
    from_blocked(x.as_slice()?, n, c, plane, &mut out, &Serial)?;
    Tensor::new(shape, out)
}
