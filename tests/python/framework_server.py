"""Runs scenarios of framework_script.py in forks of one process that has
the imports behind it; they take most of a small training's time.

Reads a job a line, JSON, from stdin: scenario, run, ranks, out (a path),
seconds. Starts all ranks of the plain and of the traced training at once;
each has OUT-MODE-RANK.txt as its output. Answers with a line: how each ended,
as {"MODE": [code, ...]}.
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import time
import traceback

import framework_script

MODES = ("plain", "traced")
GRACE = 10  # seconds that a rank has when another one has failed

IMPORTS = (
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    "torch._dynamo",
    "transformers.models.llama.modeling_llama",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.t5.modeling_t5",
    "transformers.trainer",
)


def environment_of(job, mode, rank):
    if job["ranks"] == 1:
        return {}
    return {
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": job["ranks"],
        "LOCAL_WORLD_SIZE": job["ranks"], "GROUP_RANK": 0,
        "TORCHELASTIC_RUN_ID": job["run"],
        "TRD_STORE": f"{job['out']}-{mode}-store",
    }


def rank_of(job, mode, rank):
    """The process of a rank; does not return."""
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        out = os.open(
            f"{job['out']}-{mode}-{rank}.txt", os.O_WRONLY | os.O_CREAT, 0o600
        )
        os.dup2(out, 1)
        os.dup2(out, 2)
        more = environment_of(job, mode, rank)
        os.environ.update({k: str(v) for k, v in more.items()})
        os.environ["TRACERD_DIR"] = job["folder"]
        framework_script.main(job["scenario"], mode, job["run"], job["out"])
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


def finished(job):
    """Starts the ranks and waits for them."""
    sys.stdout.flush()
    pids = {}
    for mode in MODES:
        for rank in range(job["ranks"]):
            pid = os.fork()
            if not pid:
                rank_of(job, mode, rank)
            pids[pid] = mode, rank
    codes = {mode: [None] * job["ranks"] for mode in MODES}
    end = time.monotonic() + job["seconds"]
    while pids:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in pids:
            mode, rank = pids.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            codes[mode][rank] = code
            if code:  # the other ranks wait for it
                end = min(end, time.monotonic() + GRACE)
        elif time.monotonic() > end:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            end += GRACE
        else:
            time.sleep(0.01)
    return codes


def main():
    for name in IMPORTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # frameworks talk on stdout, too
    for line in sys.stdin:
        answers.write(json.dumps(finished(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
