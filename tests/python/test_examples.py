"""The examples in C, C++ and JAX: built as their first lines say, run, and
their records compared with what they compute themselves."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import programs
from programs import TOP

EXAMPLES = TOP / "tools" / "examples"


def shell(command, code=0, **env):
    done = subprocess.run(
        str(command), shell=True, capture_output=True, text=True, timeout=600,
        env=programs.environment(**env),
    )
    assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def refuses(program, env):
    """It runs nothing with arguments that it does not know."""
    for arguments in ("--no-tracing", "--no-trace more", "''"):
        assert not shell(f"{program} {arguments}", code=2, **env)


def library():
    """What the library that was built needs, to compile and to run."""
    build = os.environ.get("TRD_BUILD", "")
    if not os.path.isdir(build + "/meson-uninstalled"):
        pytest.skip("no build of the library")
    for tool in ("cc", "c++", "pkg-config"):
        if not shutil.which(tool):
            pytest.skip(f"no {tool}")
    return dict(
        PKG_CONFIG_PATH=build + "/meson-uninstalled",
        LD_LIBRARY_PATH=build + "/client",
    )


@pytest.mark.parametrize("header", ["base", "record", "stats", "client"])
def test_each_public_header_compiles_alone(header, tmp_path):
    library()
    words = "-Wall -Wextra -Wpedantic -Werror -fsyntax-only"
    for name, compiler in (
        ("alone.c", "cc -std=c11"),
        ("alone.cpp", "c++ -std=c++17"),
    ):
        file = tmp_path / name
        file.write_text(f'#include "tracerd/{header}.h"\n')
        shell(f"{compiler} {words} -I{TOP}/include {file}")


def test_c_example_records_its_training(daemon, tmp_path):
    env = library()
    program = tmp_path / "regression"
    shell(
        f"cc -std=c11 -Wall -Wextra -Wpedantic -Werror -o {program}"
        f" {EXAMPLES}/regression.c"
        " $(pkg-config --cflags --libs tracerd) -lm", **env,
    )
    traced = shell(program, folder=daemon.dir, **env)
    assert traced == shell(f"{program} --no-trace", **env)
    losses = [float(line) for line in traced.split()]
    assert len(losses) == 5 and losses == sorted(losses, reverse=True)
    refuses(program, env)

    records = daemon.query("regression", "*")
    assert len(records) == 5 * 5
    kept = {r["name"]: r for r in records}
    for step, loss in enumerate(losses, 1):
        assert kept[f"user-loss-{step}"]["max"] == torch.tensor(loss).item()
    # the data as the program makes it, column after column
    state, x = 1, torch.empty(32, 4)
    for i in range(32):
        for k in range(4):
            state = (state * 1664525 + 1013904223) % (1 << 32)
            x[i, k] = (state >> 8) / (1 << 24) - 0.5
    first = kept["forward-Regression-1-1-input"]
    assert first["shape"] == [32, 4]
    assert first["samples"] == x.flatten()[
        torch.linspace(0, 127, 16, dtype=torch.float64).long()
    ].tolist()
    assert kept["forward-Regression-1-1-output"]["zero"] == 32
    wanted = x @ torch.tensor([1.0, 2.0, 3.0, 4.0])
    grad = x.T @ (-2 * wanted / 32)
    got = kept["grad-weight-1"]
    assert got["samples"] == pytest.approx(grad.tolist(), rel=1e-5)
    assert got["module"] == "" and got["object"] == "Regression-1"
    assert daemon.runs()[0]["losses"] == 0


def torch_flags():
    """How to compile with the libtorch that this Python has."""
    folder = Path(torch.__file__).parent
    if not (folder / "include/torch/csrc/api/include/torch/torch.h").exists():
        pytest.skip("this torch has no headers of libtorch")
    if not list((folder / "lib").glob("libtorch_cpu.*")):
        pytest.skip("this torch has no libtorch to link with")
    abi = int(torch.compiled_with_cxx11_abi())
    return (
        f"-I{folder}/include -I{folder}/include/torch/csrc/api/include"
        f" -D_GLIBCXX_USE_CXX11_ABI={abi}"
        f" -L{folder}/lib -Wl,-rpath,{folder}/lib -ltorch -ltorch_cpu -lc10"
    )


def test_libtorch_example_is_unchanged_and_records_all(daemon, tmp_path):
    env = library()
    program = tmp_path / "mlp"
    shell(
        f"c++ -std=c++17 -O0 -o {program} {EXAMPLES}/mlp.cpp"
        f" {torch_flags()} $(pkg-config --cflags --libs tracerd)", **env,
    )
    lines = shell(program, folder=daemon.dir, **env).splitlines()
    figures = [line.split()[1:] for line in lines if line[:7] == "record "]
    untraced = shell(f"{program} --no-trace", **env).splitlines()
    assert [line for line in lines if line[:7] != "record "] == untraced
    assert len(untraced) == 3 + 4
    refuses(program, env)

    records = daemon.query("mlp", "*")
    kept = {r["name"]: r for r in records}
    # a step: in, out and gradient of two layers, gradients of four parameters
    assert len(records) == len(kept) == 3 * (2 * 3 + 4)
    assert sorted(kept) == sorted(name for name, *_ in figures)
    for name, n, most, least, mean in figures:
        r = kept[name]
        assert (r["n"], r["max"], r["min"]) == (
            int(n), float(most), float(least)
        )
        assert r["mean"] == pytest.approx(float(mean), rel=1e-12, abs=1e-12)
    assert kept["forward-Linear-1-1-input"]["shape"] == [32, 8]
    assert kept["grad-fc2.weight-3"]["object"] == "Linear-2"
    assert daemon.runs()[0]["losses"] == 0


def test_jax_example_reads_arrays_in_place(daemon):
    env = library()
    for module in ("jax", "numpy"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"no {module}")
    script = EXAMPLES / "jax_train.py"
    lines = programs.python(
        script, folder=daemon.dir, JAX_PLATFORMS="cpu", **env
    ).stdout
    untraced = programs.python(
        script, "--no-trace", JAX_PLATFORMS="cpu", **env
    ).stdout
    assert lines == untraced and lines.count("loss ") == 4

    records = daemon.query("jax", "*")
    kept = {r["name"]: r for r in records}
    # a step: out and gradient of two layers, gradients of two parameters
    assert len(records) == len(kept) == 4 * 6
    assert all("materialized" in r["labels"] for r in records)
    numpy = pytest.importorskip("numpy")
    rng = numpy.random.default_rng(1)
    x, _, a, _ = (
        rng.standard_normal(shape).astype("float32")
        for shape in ((32, 8), (32, 4), (8, 16), (16, 4))
    )
    out = (x @ a).astype("float64")
    first = kept["forward-Dense-1-1-output"]
    assert first["shape"] == [32, 16] and first["dtype"] == "float32"
    assert first["max"] == pytest.approx(out.max(), rel=1e-6)
    assert first["mean"] == pytest.approx(out.mean(), abs=1e-6)
    assert kept["backward-Dense-2-3-input"]["dtype"] == "bfloat16"
    assert kept["grad-a.weight-1"]["shape"] == [8, 16]
    assert daemon.runs()[0]["losses"] == 0
