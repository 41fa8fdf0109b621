"""Which modules, iterations, ranks and passes are traced, and by what
names."""

import re

import pytest
import torch
from torch import nn

import tracerd
from recording import Net, pick, train


@pytest.mark.parametrize(
    "options, objects",
    [
        ({"match": "*.head"}, {"Linear-2"}),
        ({"match": ["Linear"]}, {"Linear-1", "Linear-2"}),
        ({"match": "Linear-2,ReLU"}, {"Linear-2", "ReLU-1"}),
        ({"ignore": "parts.enc*"}, {"Linear-2", "Net-1"}),
        ({"match": "Linear", "ignore": "*head"}, {"Linear-1"}),
    ],
    ids=str,
)
def test_match_and_ignore(recorded, options, objects):
    with tracerd.attach(m := Net(), **options) as t:
        train(m, 2, t)
    assert {r.object for r in recorded} == objects
    inputs = [r for r in recorded if r["pass"] == "forward"]
    assert {r.microbatch for r in inputs} == {1}
    # counted where the root itself is not wanted, too
    assert {r.iteration for r in inputs} == {1, 2}


def test_hooks_are_only_where_they_are_wanted(recorded):
    model = Net()
    with tracerd.attach(model, match="*.head"):
        hooked = [
            name for name, m in model.named_modules() if m._forward_hooks
        ]
        assert hooked == ["", "parts.head"]
    with tracerd.attach(model, passes=["grad"]):
        assert not any(m._forward_hooks for m in model.modules())


@pytest.mark.parametrize(
    "options, objects",
    [
        ({"depth": 0}, {"Net-1"}),
        ({"depth": 2}, {"Net-1", "Sequential-1", "Linear-2"}),
        ({"depth": 2, "name": "a.b"}, {"Net-1", "Sequential-1", "Linear-2"}),
        ({"leaf_only": True}, {"Linear-1", "Linear-2", "ReLU-1"}),
        ({"leaf_only": True, "depth": 2}, {"Linear-2"}),
    ],
    ids=str,
)
def test_depth_and_leaves(recorded, options, objects):
    with tracerd.attach(m := Net(), **options) as t:
        train(m, 2, t)
    assert {r.object for r in recorded} == objects
    assert {r.iteration for r in recorded} == {1, 2}


IDLE = [
    ({"match": "*haed"}, r"match='\*haed'.*nearest: .*parts\.head"),
    ({"match": "parts.hed"}, r"nearest: parts\.head"),
    ({"match": "Liner"}, r"nearest: .*Linear"),
    ({"ignore": "*"}, r"ignore=\['\*'\] leaves none of 6 modules"),
    ({"match": "*enc", "leaf_only": True}, "match=.* and leaf_only=True"),
    ({"match": "ReLU", "passes": "grad"}, "no module with a parameter"),
    ({"passes": ()}, "passes is empty"),
    ({"passes": ""}, "passes is empty"),
    ({"ranks": "3-5"}, "ranks=3-5 holds none of the ranks 0 to 0"),
    ({"iterations": []}, "no iteration from 1 on is in iterations=''"),
    ({"iterations": "1-10", "start": 11}, "no iteration from 11 on"),
    ({"iterations": "2,4", "every": 2}, "iterations=2,4 with every=2"),
]


@pytest.mark.parametrize(("options", "text"), IDLE, ids=str)
def test_what_leaves_nothing_is_told_and_makes_no_run(
    recorded, options, text
):
    from tracerd import process

    model = Net()
    with pytest.warns(RuntimeWarning, match=text) as told:
        t = tracerd.attach(model, **options)
    assert len(told) == 1
    assert "nothing is traced: " in str(told[0].message)
    assert t.run == "" and t.counters == {} and not process._connections
    train(model, 1, t)
    t.record("x", 1.0)
    t.close()
    assert recorded == []


def test_one_pattern_of_several_that_fits_nothing(recorded):
    with pytest.warns(RuntimeWarning, match=r"^tracerd: match='\*haed' fits"):
        t = tracerd.attach(m := Net(), match="*haed,Linear")
    train(m, 1, t)
    t.close()
    assert {r.object for r in recorded} == {"Linear-1", "Linear-2"}


def test_the_users_records_alone(recorded):
    with tracerd.attach(m := Net(), passes="user") as t:
        assert not any(x._forward_hooks for x in m.modules())
        train(m, 1, t)
        t.record("x", 1.0)
    assert [r["pass"] for r in recorded] == ["user"]


@pytest.mark.parametrize(
    ("given", "numbers"),
    [
        ("1-3,7", [1, 2, 3, 7]), ("2-9:3", [2, 5, 8]), (4, [4]),
        (range(1, 10, 4), [1, 5, 9]), (range(9, 1, -4), [5, 9]),
        ([1, "3-4", range(7, 9)], [1, 3, 4, 7, 8]), ((2, 2.0), [2]),
        ("3-3:5,", [3]), (range(1, 10**12, 10**11), [1]),
    ],
    ids=str,
)
def test_forms_of_ranges(given, numbers):
    from tracerd.schedule import contains, ranges

    parts = ranges(given, "iterations")
    assert [n for n in range(-2, 12) if contains(parts, n)] == numbers
    assert len(ranges(range(100), "x")) == len(ranges([*range(99)], "x")) == 1


def test_iterations(recorded):
    with tracerd.attach(m := Net(), every=2, iterations="2-5,9") as t:
        train(m, 10, t)
    assert {r.iteration for r in recorded} == {3, 5, 9}
    forward = pick(recorded, object="Net-1", pass_="forward", io="input")
    assert [r.step for r in forward] == [3, 5, 9]  # steps count on
    assert {r.step for r in pick(recorded, pass_="grad")} == {3, 5, 9}


def test_passes(recorded):
    with tracerd.attach(m := Net(), passes=("backward", "param")) as t:
        train(m, 1, t)
    assert {r["pass"] for r in recorded} == {"backward", "param"}


def test_ranks(recorded, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    model = Net()
    with tracerd.attach(model, ranks="0,4-7") as t:
        assert not any(m._forward_hooks for m in model.modules())
        train(model, 1, t)
        t.record("x", torch.ones(1))
        assert t.counters == {} and t.run == ""
    with tracerd.attach(model, ranks="0-3") as t:
        train(model, 1, t)
        assert t._connection.client.opened_with[3:5] == (3, 8)
    assert recorded


def test_environment(recorded, monkeypatch):
    monkeypatch.setenv("TRACERD_EVERY", "2")
    monkeypatch.setenv("TRACERD_ITERATIONS", "1-3")
    monkeypatch.setenv("TRACERD_MATCH", "Linear")
    monkeypatch.setenv("TRACERD_RUN", "from-the-environment")
    with tracerd.attach(m := Net()) as t:
        train(m, 4, t)
        assert t.run == "from-the-environment"
    assert {r.iteration for r in recorded} == {1, 3}
    assert {r.object for r in recorded} == {"Linear-1", "Linear-2"}
    recorded.clear()
    monkeypatch.setenv("TRACERD_RANKS", "1-2")
    with tracerd.attach(m) as t:
        train(m, 2, t)
    monkeypatch.delenv("TRACERD_RANKS")
    monkeypatch.setenv("TRACERD_DISABLE", "1")
    with tracerd.attach(m) as t:
        train(m, 2, t)
    assert recorded == []


def test_records_of_the_user(recorded):
    with tracerd.attach(m := Net(), iterations="1") as t:
        m(torch.ones(1, 2))
        t.record("loss", torch.tensor(0.5))
        t.record("loss", torch.tensor(0.25, requires_grad=True))
        t.step()
        t.record("loss", torch.tensor(0.1))
    user = pick(recorded, pass_="user")
    assert [(r.path, r.step, r.iteration, r.microbatch, r.object, r.io)
            for r in user] == [
        ("loss", 1, 1, 1, "", ""), ("loss", 2, 1, 1, "", ""),
    ]


def test_two_models_have_two_names(recorded):
    student, teacher = nn.Linear(2, 2), nn.Linear(2, 2)
    with (
        tracerd.attach(student, name="student"),
        tracerd.attach(teacher, name="teacher") as t,
    ):
        teacher(student(torch.ones(1, 2))).sum().backward()
        t.step()
    assert {(r.object, r.module) for r in recorded} == {
        ("Linear-1", "student"), ("Linear-2", "teacher"),
    }
    assert {r.path for r in pick(recorded, pass_="grad")} == {
        "teacher.weight", "teacher.bias",
    }


WRONG = [
    {"iterations": "1-9:0"}, {"iterations": "1-9:"}, {"iterations": 1.5},
    {"iterations": [True]}, {"ranks": float("inf")}, {"ranks": [None]},
    {"depth": -1}, {"depth": 1.0}, {"leaf_only": 1}, {"passes": "grads"},
    {"journal_bytes": 1 << 19}, {"journal_bytes": 3 << 20},
    {"journal_bytes": "64X"}, {"journal_bytes": 1 << 32},
    {"run": "a/b"}, {"run": ".hidden"}, {"run": "x" * 201}, {"run": "ü"},
    {"every": 0}, {"iterations": "5-1"}, {"iterations": "x"},
    {"ranks": "1-"}, {"passes": ["forwards"]}, {"samples": 4097},
    {"samples": -1}, {"start": 0},
]


@pytest.mark.parametrize("options", WRONG, ids=str)
def test_wrong_arguments(options):
    with pytest.raises(ValueError):
        tracerd.attach(nn.Linear(1, 1), **options)


def test_what_is_no_model():
    with pytest.raises(TypeError):
        tracerd.attach("model")


# ---- names ----


def test_wrappers_leave_no_trace_in_names(recorded):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        checkpoint_wrapper,
    )

    model = Net()
    model.parts["enc"] = checkpoint_wrapper(model.parts["enc"])
    wrapped = nn.DataParallel(model)
    with tracerd.attach(wrapped) as t:
        train(wrapped, 1, t)
    forward = [r for r in recorded if r["pass"] == "forward"]
    assert {(r.object, r.module) for r in forward} == {
        ("Net-1", ""), ("Sequential-1", "parts.enc"),
        ("Linear-1", "parts.enc.0"), ("ReLU-1", "parts.enc.1"),
        ("Linear-2", "parts.head"),
    }
    assert [r.path for r in pick(recorded, pass_="grad")] == [
        "parts.enc.0.weight", "parts.enc.0.bias",
        "parts.head.weight", "parts.head.bias",
    ]


@pytest.mark.parametrize(
    "raw, path",
    [
        ("module.layer1", "layer1"),
        ("_orig_mod.layer1", "layer1"),
        ("module._orig_mod.layer1", "layer1"),
        ("_fsdp_wrapped_module.blocks.0._fsdp_wrapped_module.attn",
         "blocks.0.attn"),
        ("blocks.0._checkpoint_wrapped_module.attn", "blocks.0.attn"),
        ("module_list.0", "module_list.0"),
        ("my_module", "my_module"),
        ("a.module.b", "a.module.b"),
        ("", ""),
    ],
)
def test_parts_of_paths(raw, path):
    from tracerd.names import strip

    assert strip(raw) == path


def test_a_list_of_models(recorded):
    chunks = [nn.Linear(2, 2), nn.Linear(2, 2)]
    with tracerd.attach(chunks) as t:
        chunks[1](chunks[0](torch.ones(1, 2))).sum().backward()
        t.step()
    assert {r.module for r in recorded} == {"0", "1"}


# ---- runs ----


def test_the_default_name_of_a_run(monkeypatch):
    from tracerd.context import context

    for argv, name in (
        ("/some where/train.py", "train"),
        ("-c", "python"),
        ("", "python"),
        ("/pkg/tool/__main__.py", "tool"),
        ("a b+\u00fc.py", "a_b_"),
        (".hidden", "hidden"),
    ):
        monkeypatch.setattr("sys.argv", [argv])
        assert re.fullmatch(
            re.escape(name) + r"-\d{8}-\d{6}", context().run
        ), argv


LAUNCHERS = {
    "torchrun": {
        "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1",
        "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "2",
    },
    "openmpi": {
        "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    },
    "mpich": {"PMI_RANK": "3", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1"},
    "slurm": {
        "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1",
    },
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launchers(monkeypatch, launcher):
    import os

    from tracerd.context import context

    alone = context()
    assert (alone.rank, alone.world, alone.attempt) == (0, 1, 0)
    assert str(os.getpid()) in alone.job
    for name, value in LAUNCHERS[launcher].items():
        monkeypatch.setenv(name, value)
    me = context("x")
    assert (me.rank, me.world, me.local_rank) == (3, 8, 1)
    assert me.attempt == (2 if launcher == "torchrun" else 0)
    assert me.run == "x" and str(os.getppid()) in me.job
    # a restart of the job's ranks meets elsewhere and is the same job
    monkeypatch.setenv("MASTER_PORT", "29501")
    assert (context("x").job == me.job) == (launcher == "torchrun")


SLURM = {"SLURM_JOB_ID": "71", "SLURM_STEP_ID": "2"}
NODES = {
    # two nodes of four ranks; what the name ends with
    "rdzv": ({"LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "a/b"}, "a_b"),
    "rdzv_of_slurm": (
        {"LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "x"} | SLURM, "x",
    ),
    "torchrun_of_slurm": (
        {"LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"} | SLURM,
        "71.2",
    ),
    "srun": ({"SLURM_STEP_NUM_NODES": "2"} | SLURM, "71.2"),
    "requeued": (
        {"SLURM_JOB_NUM_NODES": "2", "SLURM_RESTART_COUNT": "1"} | SLURM,
        "71.2-restart1",
    ),
    "mpirun_in_slurm": (
        {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "SLURM_JOB_ID": "71"}, "71",
    ),
    # one node, or nothing that all nodes know
    "one_node": ({"LOCAL_WORLD_SIZE": "8"} | SLURM, None),
    "srun_one_node": ({"SLURM_STEP_NUM_NODES": "1"} | SLURM, None),
    "no_id": ({"LOCAL_WORLD_SIZE": "4"}, None),
}


@pytest.mark.parametrize("launcher", NODES)
def test_all_nodes_of_a_job_come_to_the_same_name(monkeypatch, launcher):
    from tracerd.context import context

    env, end = NODES[launcher]
    monkeypatch.setattr("sys.argv", ["train.py"])
    monkeypatch.delenv("TRACERD_RUN", raising=False)
    for name, value in ({"RANK": "3", "WORLD_SIZE": "8"} | env).items():
        monkeypatch.setenv(name, value)
    assert re.fullmatch(
        r"train-\d{8}-\d{6}" if end is None else re.escape(f"train-{end}"),
        context().run,
    )
    monkeypatch.setenv("TRACERD_RUN", "mine")
    assert context().run == "mine"
