"""What is kept with a run about its process, and what never is."""

import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import tracerd
from tracerd import coordinates, environment, redact

SECRET = "S3cretValue"


@pytest.fixture
def info(recorded, monkeypatch):
    """A function: attaches, and returns what is sent along."""

    def get(model=None, **options):
        monkeypatch.setattr(environment, "_git", [])
        with tracerd.attach(model or nn.Linear(1, 1), **options) as t:
            text = t._connection.client.opened_with[2]
        assert len(text.encode()) <= 32768
        return json.loads(text)

    return get


def test_versions_devices_and_switches(info, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("HOME_OF_MINE", "x")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = True
    try:
        found = info()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = False
    assert found["python"] == sys.version.split()[0]
    assert found["torch"] == torch.__version__
    assert found["versions"]["os"].startswith(os.uname().sysname)
    assert found["devices"]["cpu"] == os.cpu_count()
    assert found["world"] == {
        "rank": 0, "size": 1, "local_rank": 0, "attempt": 0
    }
    switches = found["switches"]
    wanted = {
        "deterministic_algorithms": True, "deterministic_warn_only": True,
        "cudnn.benchmark": True, "cudnn.deterministic": False,
        "float32_matmul_precision": "highest",
        "default_dtype": "torch.float32", "flush_denormal": False,
        "num_threads": torch.get_num_threads(), "seed": torch.initial_seed(),
    }
    assert {k: switches[k] for k in wanted} == wanted
    assert found["variables"]["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert found["variables"]["NCCL_ALGO"] == "Ring"
    assert "HOME_OF_MINE" not in found["variables"]


def test_flushed_subnormals_are_seen(info):
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    try:
        assert info()["switches"]["flush_denormal"] is True
    finally:
        torch.set_flush_denormal(False)


def test_autocast_is_seen(info):
    with torch.autocast("cpu", torch.bfloat16):
        found = info()["switches"]
    assert found["autocast.cpu"] == "torch.bfloat16"
    assert "autocast.cpu" not in info()["switches"]


def test_only_loaded_frameworks_are_named(info, monkeypatch):
    fake = types.ModuleType("deepspeed")
    fake.__version__ = "9.9"
    monkeypatch.setitem(sys.modules, "deepspeed", fake)
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    found = info()["frameworks"]
    assert found["deepspeed"] == "9.9" and "transformers" not in found
    assert "transformers" not in sys.modules


def test_a_virtual_pipeline_is_a_coordinate(monkeypatch):
    state = types.ModuleType("megatron.core.parallel_state")
    state.model_parallel_is_initialized = lambda: True
    for name, place in (
        ("data_parallel", (3, 4)), ("pipeline_model_parallel", (1, 2)),
        ("virtual_pipeline_model_parallel", (0, 2)),
        ("tensor_model_parallel", (None, None)),
    ):
        setattr(state, f"get_{name}_rank", lambda p=place: p[0])
        setattr(state, f"get_{name}_world_size", lambda p=place: p[1])
    monkeypatch.setitem(
        sys.modules, "megatron.core.parallel_state", state
    )
    assert coordinates.coordinates(nn.Linear(1, 1)) == {
        "dp": [3, 4], "pp": [1, 2], "vpp": [0, 2]
    }


# ---- git ----


def git(folder, *words):
    subprocess.run(
        ["git", "-c", "user.name=x", "-c", "user.email=x@x", *words],
        cwd=folder, check=True, capture_output=True,
    )


@pytest.fixture
def repository(tmp_path, monkeypatch):
    try:
        git(tmp_path, "init")
    except OSError:
        pytest.skip("no git")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environment, "GIT_SECONDS", 60.0)
    return tmp_path


def test_the_commit_and_whether_it_was_changed(info, repository):
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], text=True)
    wanted = {"commit": head.strip(), "dirty": False}
    assert info()["git"] == wanted
    (repository / "new").write_text("not of the repository")
    assert info()["git"] == wanted
    (repository / "a").write_text("2")
    assert info()["git"] == {**wanted, "dirty": True}


def test_one_process_of_a_machine_asks_git(info, repository, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "git" not in info()


def test_without_git_or_a_repository(info, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "git" not in info()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git" not in info()


def test_a_git_that_never_ends_is_left_alone(info, tmp_path, monkeypatch):
    """It says the commit, and then hangs at the changes."""
    fake = tmp_path / "git"
    fake.write_text(
        "#!/bin/sh\n"
        f"case $* in *rev-parse*) echo abc;; *) echo $$ > {tmp_path}/pid;\n"
        "exec sleep 600;; esac\n"
    )
    fake.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    monkeypatch.setattr(environment, "GIT_SECONDS", 3.0)
    if info().get("git") != {"commit": "abc"}:
        pytest.skip("too slow here")
    end = time.monotonic() + 60
    while time.monotonic() < end:  # it is killed, and reaped some time
        pid = (tmp_path / "pid").read_text().strip()
        try:
            state = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break
        if state.rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("it still runs")


# ---- size ----


def test_what_is_least_important_goes_first(info, monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["train.py", *(["x" * 1000] * 28)]
    )
    for i in range(20):
        monkeypatch.setenv(f"NCCL_X{i}", "y" * 1000)
    found = info(tags={"a": "b"})
    assert found["dropped"] == ["variables"]
    assert len(found["argv"]) == 28 and found["switches"]
    found = info(tags={"a": "z" * 40000})
    assert found["dropped"][-1] == "tags" and found["model"] == "Linear"


def test_long_arguments_are_cut(info, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "x" * 5000])
    assert info()["argv"] == ["x" * 1024 + "..."]


# ---- secrets ----

BASE64 = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
SHAPES = [
    "AKIAIOSFODNN7EXAMPLE", BASE64, "ghp_" + "a1B2" * 9,
    "github_pat_" + "a1B2" * 9, "glpat-" + "a1B2" * 5, "hf_" + "aBcD" * 8,
    "sk-" + "a1B2" * 10, "sk-ant-api03-" + "a1B2" * 10,
    "xoxb-123456789012-abcdefGHIJ", "AIza" + "a1B2" * 9,
    "ya29.a0AfH6SMB_abcdef", "sk_live_" + "a1B2" * 5,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-DEF_123",
    "npm_" + "a1B2" * 9, "pypi-" + "a1B2" * 9, "nvapi-" + "a1B2" * 9,
    "SG." + "a1B2" * 5 + "." + "c3D4" * 5, "dapi" + "0f" * 16,
    "local-" + "0f" * 20, "0f" * 20, "0f" * 16, "0f" * 32,
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
]


@pytest.mark.parametrize("shape", SHAPES)
def test_known_shapes_of_secrets(shape):
    for arguments in (
        [shape], ["--x", shape], [f"--x={shape}"], [f"x={shape}"]
    ):
        kept = redact.command_line(arguments)
        assert shape not in " ".join(kept) and "***" in kept[-1], arguments
    assert redact.values({"a": [shape]}) == {"a": ["***"]}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--token", SECRET], [f"--hf_token={SECRET}"],
        [f"HF_TOKEN={SECRET}"], [f"+trainer.api_key={SECRET}"],
        ["--dbPassword", SECRET], ["-password", SECRET],
        ["--AWS_SECRET_ACCESS_KEY", SECRET], ["--auth", SECRET],
        ["--keys", SECRET, SECRET], [f"--credentials={SECRET}"],
        ["--wandb-apikey", SECRET], ["--pwd", SECRET],
        ["--passphrase", f"two {SECRET}"], ["--client_secret", SECRET],
        [f"https://me:{SECRET}@host/x"], [f"https://{SECRET}@host/x"],
        [f"postgres://me:a/{SECRET}@b@host/db"],
        [f"https://host/x?a=1&sig={SECRET}&b=2"],
        [f"https://host/x?X-Amz-Signature={SECRET}"],
        [f"AccountName=x;AccountKey={SECRET}==;Suffix=y"],
        ["--header", f"Authorization: Bearer {SECRET}"],
        ["--header", f"X-Api-Key: {SECRET}"],
        ["--config", f'{{"a": {{"api_key": "{SECRET} b"}}}}'],
        ["--config", f"{{'password': '{SECRET}'}}"],
        ["--config", f"a: token={SECRET}"],
        ["--token", f"-{SECRET}"],
    ],
    ids=str,
)
def test_secrets_of_a_command_line(arguments):
    kept = redact.command_line(["--lr", "0.1", *arguments, "--end", "1"])
    assert SECRET not in json.dumps(kept) and "***" in json.dumps(kept)
    assert kept[:2] == ["--lr", "0.1"] and kept[-2:] == ["--end", "1"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tokenizer", "gpt2"], ["--pad-token-id", "0"],
        ["--num_tokens=512"], ["--author", "me"], ["--lr", "-1e-4"],
        ["--use-auth-token", "True"], ["--key-dim", "64"],
        ["--commit", "0f" * 20], [f"/hub/snapshots/{'0f' * 20}/model"],
        ["https://host/a@v1"], ["http://host:80/a"],
        ["model.hidden=128"], ["a=1,b=2"],
        ["--data", "/x/y=z/train.bin"], ["--compass", "north"],
    ],
    ids=str,
)
def test_what_is_no_secret_stays(arguments):
    assert redact.command_line(arguments) == arguments


def test_no_secret_is_sent(info, monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["train.py", f"x://u:{SECRET}@h", "--token", SECRET]
    )
    monkeypatch.setenv("TORCH_HUB_TOKEN", SECRET)
    monkeypatch.setenv("NCCL_X", f"https://u:{SECRET}@h")
    found = info(
        tags={"wandb": {"api_key": SECRET, "lr": 1}, 3: [SECRET[:3]]}
    )
    assert SECRET not in json.dumps(found)
    assert found["argv"] == ["x://***@h", "--token", "***"]
    assert found["variables"]["TORCH_HUB_TOKEN"] == "***"
    assert found["tags"] == {
        "wandb": {"api_key": "***", "lr": 1}, "3": [SECRET[:3]]
    }


def test_it_is_found_in_a_view(here):
    with tracerd.attach(nn.Linear(1, 1), run="told", tags={"a": 1}) as t:
        t.record("x", 1.0)
        assert t.flush()
    out = here.tracectl(
        "-r", "told", "-o", "json", "sql", "SELECT info FROM v_run"
    ).stdout
    found = json.loads(json.loads(out)["info"])
    assert found["tags"] == {"a": 1}
    assert found["switches"]["default_dtype"] == "torch.float32"
