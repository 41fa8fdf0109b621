"""What is kept with a run about its process: versions, devices, switches that
change numbers, the command, the state of the sources. JSON in `v_run.info`.

Nothing is imported, no device is opened, and no secret is kept.
"""

import json
import os
import subprocess
import sys
import threading
import time

from . import redact
from .coordinates import coordinates

MAX_BYTES = 32768  # of the whole text, as UTF-8
MAX_ARGUMENTS = 64
MAX_TEXT = 1024  # of one argument or variable
GIT_SECONDS = 1.0  # a repository may be huge, or on a server that is gone

FRAMEWORKS = (
    "accelerate", "apex", "bitsandbytes", "datasets", "deepspeed",
    "flash_attn", "lightning", "megatron.core", "peft", "pytorch_lightning",
    "torchao", "torchtitan", "torchvision", "transformer_engine",
    "transformers", "triton", "trl", "vllm", "xformers",
)

# variables that change numbers or how they are computed
VARIABLES = (
    "ATEN_CPU_CAPABILITY", "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "PYTHONHASHSEED",
    "XLA_FLAGS",
)
PREFIXES = (
    "CUBLAS", "CUDNN_", "DNNL_", "FLASH_ATTENTION_", "GLOO_", "HIPBLAS",
    "KMP_", "MIOPEN_", "MKL_", "NCCL_", "NVIDIA_", "NVTE_", "OMP_",
    "ONEDNN_", "PYTORCH_", "RCCL_", "ROCBLAS_", "TORCH", "TRITON_",
)

# name -> where it is read; an old or a new torch lacks some of them
SWITCHES = {
    "float32_matmul_precision": "get_float32_matmul_precision()",
    "default_dtype": "get_default_dtype()",
    "deterministic_algorithms": "are_deterministic_algorithms_enabled()",
    "deterministic_warn_only":
        "is_deterministic_algorithms_warn_only_enabled()",
    "cudnn.enabled": "backends.cudnn.enabled",
    "cudnn.deterministic": "backends.cudnn.deterministic",
    "cudnn.benchmark": "backends.cudnn.benchmark",
    "cudnn.allow_tf32": "backends.cudnn.allow_tf32",
    "cudnn.fp32_precision": "backends.cudnn.fp32_precision",
    "matmul.allow_tf32": "backends.cuda.matmul.allow_tf32",
    "matmul.fp32_precision": "backends.cuda.matmul.fp32_precision",
    "matmul.fp16_reduction":
        "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "matmul.bf16_reduction":
        "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "mkldnn.fp32_precision": "backends.mkldnn.matmul.fp32_precision",
    "sdp.flash": "backends.cuda.flash_sdp_enabled()",
    "sdp.mem_efficient": "backends.cuda.mem_efficient_sdp_enabled()",
    "sdp.math": "backends.cuda.math_sdp_enabled()",
    "sdp.cudnn": "backends.cuda.cudnn_sdp_enabled()",
    "anomaly_mode": "is_anomaly_enabled()",
    "num_threads": "get_num_threads()",
    "num_interop_threads": "get_num_interop_threads()",
    "seed": "initial_seed()",
}


def info(model, me, tags, speaks):
    """JSON about this process, kept with its records.

    me: the Context. speaks: this process tells what concerns the machine.
    Threads: any. Blocks: for up to GIT_SECONDS, once in a process that
    speaks. Raises TypeError or ValueError where `tags` are no JSON."""
    torch = sys.modules["torch"]
    facts = {
        "model": type(model).__name__,
        "script": redact.scrub(sys.argv[0]) if sys.argv else "",
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
    }
    # what is found out next may be anything; the least important comes last
    later = {
        "tags": lambda: redact.values(tags),
        "coordinates": lambda: coordinates(model),
        "argv": _arguments,
        "world": lambda: {
            "rank": me.rank, "size": me.world, "local_rank": me.local_rank,
            "attempt": me.attempt,
        },
        "versions": lambda: _versions(torch),
        "devices": lambda: _devices(torch),
        "switches": lambda: _switches(torch),
        "git": git if speaks else dict,
        "frameworks": _frameworks,
        "variables": _variables,
    }
    for name, find in later.items():
        try:
            found = find()
        except Exception as error:
            if name == "tags":
                raise
            found = f"unknown: {type(error).__name__}"
        if found:
            facts[name] = found
    return _fitting(facts, later)


def _fitting(facts, order):
    """The facts as text; where it would be too long, without those that
    come last in the order."""
    text = json.dumps(facts, default=str)
    dropped = []
    for name in reversed(order):
        if len(text.encode()) <= MAX_BYTES:
            break
        if facts.pop(name, None) is not None:
            dropped.append(name)
            text = json.dumps({**facts, "dropped": dropped}, default=str)
    return text


def _arguments():
    kept = redact.command_line([str(a) for a in sys.argv[1:]])
    return [_short(a) for a in kept[:MAX_ARGUMENTS]]


def _short(text):
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."


def _versions(torch):
    system = os.uname()
    found = {
        "os": f"{system.sysname} {system.release} {system.machine}",
        "numpy": getattr(sys.modules.get("numpy"), "__version__", None),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "git": getattr(torch.version, "git_version", None),
    }
    if _opened(torch.cuda):
        found["cudnn"] = torch.backends.cudnn.version()
        nccl = getattr(torch.cuda, "nccl", None)
        if nccl is not None and torch.distributed.is_available():
            found["nccl"] = ".".join(map(str, nccl.version()))
    return {name: str(v) for name, v in found.items() if v is not None}


def _opened(device):
    ask = getattr(device, "is_initialized", None)
    return ask is not None and ask()


def _devices(torch):
    """Names of the devices that the program has opened, by type. To open
    one here would keep forked workers from using it."""
    found = {"cpu": os.cpu_count()}
    for kind in ("cuda", "xpu", "npu"):
        device = getattr(torch, kind, None)
        if not _opened(device):
            continue
        found[kind] = [
            device.get_device_name(i) for i in range(device.device_count())
        ]
    return found


def _switches(torch):
    found = {}
    for name, where in SWITCHES.items():
        try:
            thing = torch
            for part in where.removesuffix("()").split("."):
                thing = getattr(thing, part)
            value = thing() if where.endswith("()") else thing
        except Exception:
            continue  # not in this torch, or set in both the ways it has
        plain = value is None or isinstance(value, (bool, int, str))
        found[name] = value if plain else str(value)
    if hasattr(torch, "get_autocast_dtype"):  # the older functions warn
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                found[f"autocast.{kind}"] = str(torch.get_autocast_dtype(kind))
    smallest = sys.float_info.min
    found["flush_denormal"] = smallest / 2 == 0.0  # of this thread
    return found


def _frameworks():
    found = {}
    for name in FRAMEWORKS:
        module = sys.modules.get(name)
        version = getattr(module, "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found


def _variables():
    return {
        name: _short(redact.value(name, text))
        for name, text in sorted(os.environ.items())
        if name in VARIABLES or name.startswith(PREFIXES)
    }


# ---- git ----

_git = []  # one dict, once asked


def git():
    """{"commit": ..., "dirty": ...} of the working directory; what is not
    known within a second is not there. Asked once in a process."""
    if not _git:
        _git.append({})
        found = {}
        # the thread is left behind where even a kill does not help
        thread = threading.Thread(
            target=_ask_git, args=(found,), name="tracerd-git", daemon=True
        )
        thread.start()
        thread.join(GIT_SECONDS)
        _git[0] = dict(found)
    return _git[0]


def _ask_git(found):
    end = time.monotonic() + GIT_SECONDS
    head = _run_git(end, "rev-parse", "HEAD")
    if not head:
        return
    found["commit"] = head.strip()
    changes = _run_git(
        end, "status", "--porcelain", "--untracked-files=no",
        "--ignore-submodules=dirty",
    )
    if changes is not None:
        found["dirty"] = bool(changes.strip())


def _run_git(end, *words):
    """What git prints, or None. It may write nothing and run nothing."""
    process = None
    try:
        process = subprocess.Popen(
            [
                "git", "--no-optional-locks", "-c", "core.fsmonitor=false",
                *words,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        left = max(0.0, end - time.monotonic())
        out, _ = process.communicate(timeout=left)
        return out.decode() if process.returncode == 0 else None
    except Exception:
        if process is not None and process.poll() is None:
            process.kill()  # whoever waits for it may wait for ever
        return None
