"""A small JAX training on the CPU, traced through the C interface.

    python jax_train.py               four steps, run "jax"
    python jax_train.py --no-trace    the same numbers untraced

Inside jax.jit a callback gets the arrays, reads them where they lie (DLPack)
and hands them to the library libtracerd.so.0 (LD_LIBRARY_PATH), by ctypes:
nothing else is needed. What a callback looks at has to be in memory, so XLA
may compile other code than without; records have the label materialized.
Prints the bits of each loss, and a SHA-256 of the parameters at the end.
"""

import argparse
import ctypes
import hashlib
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_int,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)

import jax
import jax.numpy as jnp
import numpy as np

FORWARD, BACKWARD, GRAD = 1, 2, 3  # enum trd_pass
NONE, INPUT, OUTPUT = 0, 1, 2  # enum trd_io
MATERIALIZED = 1 << 12  # enum trd_label
DTYPES = {  # enum trd_dtype
    "float64": 1, "float32": 2, "float16": 3, "bfloat16": 4, "int8": 10,
    "int16": 11, "int32": 12, "int64": 13, "uint8": 14, "bool": 18,
}


class Options(ctypes.Structure):
    """The first members of struct trd_client_options, and room for all."""

    _fields_ = [
        ("size", c_size_t), ("dir", c_char_p), ("run", c_char_p),
        ("job", c_char_p), ("info", c_char_p), ("journal_bytes", c_uint64),
        ("attempt", c_uint32), ("rank", c_uint32), ("world", c_uint32),
        ("others", ctypes.c_char * 1024),
    ]


class Site(ctypes.Structure):
    _fields_ = [
        ("pass_", c_int), ("io", c_int), ("position", c_uint32),
        ("instance", c_uint32), ("class_name", c_char_p),
        ("module", c_char_p), ("path", c_char_p),
    ]


class When(ctypes.Structure):
    _fields_ = [
        ("step", c_uint64), ("iteration", c_uint64), ("microbatch", c_uint32),
        ("labels", c_uint32), ("note", c_uint32),
    ]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p), ("dtype", c_int), ("ndim", c_int),
        ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
    ]


def in_place(value):
    """A view of an array's memory; dtypes of its own numpy lends no DLPack."""
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError):
        return np.asarray(value)


class Trace:
    """One client of the library; off, it does nothing."""

    def __init__(self, on):
        self.on = on
        if not on:
            return
        self.library = ctypes.CDLL("libtracerd.so.0")
        self.library.trd_client_close.restype = None
        self.client = c_void_p()
        options = Options()
        self.library.trd_client_options_init(byref(options))
        options.run = b"jax"
        options.world = 1
        failed = self.library.trd_client_open(
            byref(options), byref(self.client)
        )
        if failed:
            print(f"not traced: error {failed}")
            self.on = False

    def record(self, site, step, value):
        """Called by JAX while the program runs; its threads may be any."""
        array = in_place(value)
        number = c_uint32()
        extents = c_int64 * max(array.ndim, 1)
        tensor = Tensor(
            array.ctypes.data, DTYPES.get(array.dtype.name, 0), array.ndim,
            extents(*array.shape),
            extents(*(s // array.itemsize for s in array.strides)),
        )
        when = When(int(step), int(step), 1, MATERIALIZED, 0)
        self.library.trd_site(self.client, byref(site), byref(number))
        self.library.trd_submit_cpu(
            self.client, number, byref(when), byref(tensor), c_uint32(16)
        )

    def see(self, site, step, value):
        """In a function that is compiled: records a value there."""
        if self.on:
            jax.debug.callback(
                lambda s, v: self.record(site, s, v), step, value
            )

    def close(self):
        if self.on:
            jax.effects_barrier()
            self.library.trd_flush(self.client, 5000)
            self.library.trd_client_close(self.client)


def watched(trace, name, instance, step):
    """An identity that records the output of a layer and its gradient."""

    def site(pass_, io):
        return Site(pass_, io, 0, instance, b"Dense", name.encode(), b"0")

    @jax.custom_vjp
    def identity(x):
        return x

    def forward(x):
        trace.see(site(FORWARD, OUTPUT), step, x)
        return x, None

    def backward(_, gradient):
        trace.see(site(BACKWARD, INPUT), step, gradient)
        return (gradient,)

    identity.defvjp(forward, backward)
    return identity


def loss_of(parameters, x, wanted, step, trace):
    h = x @ parameters["a"]
    h = jnp.tanh(watched(trace, "a", 1, step)(h))
    y = h.astype(jnp.bfloat16) @ parameters["b"].astype(jnp.bfloat16)
    y = watched(trace, "b", 2, step)(y)
    return jnp.mean((y.astype(jnp.float32) - wanted) ** 2)


def train(trace):
    rng = np.random.default_rng(1)
    x, wanted, a, b = (
        jnp.asarray(rng.standard_normal(shape), jnp.float32)
        for shape in ((32, 8), (32, 4), (8, 16), (16, 4))
    )
    parameters = {"a": a, "b": b}

    @jax.jit
    def update(parameters, step):
        loss, gradients = jax.value_and_grad(loss_of)(
            parameters, x, wanted, step, trace
        )
        for n, name in enumerate(sorted(gradients), 1):
            site = Site(
                GRAD, NONE, 0, n, b"Dense", name.encode(),
                f"{name}.weight".encode(),
            )
            trace.see(site, step, gradients[name])
        return loss, jax.tree.map(
            lambda p, g: p - 0.05 * g, parameters, gradients
        )

    for step in range(1, 5):
        loss, parameters = update(parameters, step)
        print(f"loss {np.float32(loss).view(np.uint32):08x}")
    whole = hashlib.sha256()
    for name in sorted(parameters):
        whole.update(np.asarray(parameters[name]).tobytes())
    print(f"parameters {whole.hexdigest()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--no-trace", action="store_true")
    trace = Trace(not parser.parse_args().no_trace)
    train(trace)
    trace.close()


if __name__ == "__main__":
    main()
