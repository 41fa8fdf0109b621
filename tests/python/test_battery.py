"""tracectl compare and the rules of other tools on the same trainings.

Of one kind of model; of all of them where TRD_BATTERY is all, as
`tools/check.sh --battery` says. The table is printed.
"""

import os
from collections import Counter

import pytest

import battery
from battery_peers import RULES, Watch, first
from test_check import check
from test_compare import compare, studio, told, train  # noqa: F401
from test_layouts import run as on_ranks  # noqa: F401

ALL = os.environ.get("TRD_BATTERY") == "all"
TOOLS = ("tracerd", *RULES)
totals = {tool: Counter() for tool in TOOLS}


def ours(daemon, a, b):
    result = compare(daemon, a, b)
    if result["verdict"] == "unsure":
        return "unsure"
    if result["verdict"] != "differs":
        return None
    return result["culprit"] and result["culprit"]["module"]


def judge(answer, module):
    """module: the guilty one, None for a harmless change."""
    if answer == "unsure":
        return "unsure"
    if answer == module:
        return "right"
    return "missed" if answer is None else "wrong"


@pytest.mark.parametrize("kind", battery.KINDS if ALL else ["gpt"])
def test_side_by_side(studio, kind):  # noqa: F811
    bugs, harmless = battery.KINDS[kind][1]()
    base = Watch()
    train(kind, battery.same, f"{kind}.watched", watch=base)
    checked = studio.tracectl("-o", "json", "check", f"{kind}.watched")
    assert '"repeat"' not in checked.stdout
    said = {}
    cases = dict(bugs)
    cases |= {f"ok_{n}": (c, None) for n, c in harmless.items()}
    for name, (change, module) in cases.items():
        other = Watch()
        run = f"{kind}.side_{name}"
        train(kind, change, run, watch=other)
        answers = {"tracerd": ours(studio, f"{kind}.watched", run)}
        answers |= {rule: first(rule, base, other) for rule in RULES}
        sort = "bug" if module else "harmless"
        for tool, answer in answers.items():
            said[name, tool] = judge(answer, module)
            totals[tool][sort, said[name, tool]] += 1
        print(f"{kind:6} {name:18}", *(
            f"{tool} {said[name, tool]}" for tool in TOOLS))
    for tool in TOOLS:
        print(f"{tool:10}", *(
            f"{sort} {verdict} {n}"
            for (sort, verdict), n in sorted(totals[tool].items())))
    wrong = [k for k, v in said.items() if k[1] == "tracerd" and v != "right"]
    assert not wrong
    if kind == "gpt":
        # as those tools were seen to do it
        assert said["gelu", "sglang"] == said["eps", "sglang"] == "missed"
        assert said["ok_math", "msprobe_da"] == "wrong"


@pytest.mark.parametrize("name", battery.SPLITS)
def test_gradients_of_another_split_are_the_same(studio, name):  # noqa: F811
    parts, order, kinds = battery.SPLITS[name]
    wrong = []
    for kind in kinds:
        base, run = f"{kind}.{name}.base", f"{kind}.{name}"
        only = {"passes": ("grad",)}
        train(kind, battery.same, base, **only)
        train(kind, battery.same, run, parts=parts, order=order, **only)
        result = compare(studio, base, run)
        if result["verdict"] not in ("same", "rounding"):
            wrong.append((kind, result["verdict"], result["culprit"]))
    assert not wrong


@pytest.mark.parametrize("bug", battery.REDUCTIONS)
def test_a_reduction_that_two_ranks_leave_out(room, on_ranks, bug):  # noqa: F811
    layout, module, pass_ = battery.REDUCTIONS[bug]
    wrong = []
    for base in (layout, "single"):
        result = compare(room, on_ranks(base), on_ranks(layout, bug))
        told(f"{base}-{layout}", bug, result)
        c = result["culprit"] or {}
        found = c.get("module"), c.get("pass"), c.get("iteration")
        if result["verdict"] != "differs" or found != (module, pass_, 1):
            wrong.append((base, result["verdict"], found))
    assert not wrong


def test_replicas_that_leave_out_a_reduction(room, on_ranks):  # noqa: F811
    found = check(room, on_ranks("ddp", "gradient"))["findings"]
    first = next(f for f in found if f["kind"] == "replicas")
    assert first["module"] == "layers.1.mlp.down"
    assert (first["pass"], first["iteration"]) == ("grad", 1)


@pytest.mark.parametrize("layout", ["tp", "ddp"])
def test_two_ranks_that_leave_nothing_out(room, on_ranks, layout):  # noqa: F811
    result = compare(room, on_ranks(layout), on_ranks(layout, "again"))
    told(f"{layout}-{layout}", "again", result)
    assert result["verdict"] in ("same", "rounding")
    assert not check(room, on_ranks(layout))["findings"]
