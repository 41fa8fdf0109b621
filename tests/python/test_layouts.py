"""tracectl compare: runs whose ranks hold other parts of batch and model."""

import json
from pathlib import Path

import pytest

import programs
from test_compare import CASES, compare

SCRIPT = Path(__file__).resolve().parent / "layout_script.py"
ONE_RANK = ("single", "single16", "halves", "halves_sum", "quarters")
ONE = {"ranks": 1, "data": 1, "stages": 1}
PARTIAL, STAGES = "partial", "stages"


def ranks(data, stages=1, n=2):
    return {"ranks": n, "data": data, "stages": stages}


@pytest.fixture
def run(room):
    """A function that trains in a layout, once, and gives the run's name."""

    def train(layout, bug=""):
        name = f"{layout}.{bug}" if bug else layout
        if name not in {r["name"] for r in room.runs()}:
            programs.python(
                SCRIPT, name, layout, *([bug] if bug else []),
                folder=room.dir, ranks=1 if layout in ONE_RANK else 2,
            )
        return name

    return train


def assert_agree(result):
    assert result["verdict"] in ("same", "rounding"), result["reason"]
    assert result["culprit"] is None
    assert result["only_a"] == result["only_b"] == []
    assert not result["layout"]["same"]


def counted(layout):
    """The causes for which records were not compared."""
    return {c for c, n in layout["uncompared"].items() if n}


@pytest.mark.parametrize(
    "layout, b, pairs, causes, factor",
    [
        ("tp", ranks(1), ("copies", "merged"), set(), 1),
        # backward, torch's plan leaves sums of inputs' gradients to later
        ("dtensor", ranks(1), ("copies", "merged"), {PARTIAL}, 1),
        ("sequence", ranks(1), ("copies", "merged"), {PARTIAL}, 1),
        ("ddp", ranks(2), ("copies", "batch"), set(), 2),
        ("ddp_dealt", ranks(2), ("copies", "batch"), set(), 2),
        ("halves", ONE, ("copies", "batch"), set(), 1),
        ("ddp_quarters", ranks(2), ("copies", "batch"), set(), 2),
        ("fsdp1", ranks(2), ("copies", "merged", "batch"), set(), 2),
        ("fsdp2", ranks(2), ("copies", "merged", "batch"), set(), 2),
        ("stages", ranks(1, 2), ("copies",), {STAGES}, 1),
        ("stages_anew", ranks(1, 2), ("copies",), {STAGES}, 1),
    ],
)
def test_one_rank_against_a_layout_of_it(
    room, run, layout, b, pairs, causes, factor
):
    result = compare(room, run("single"), run(layout))
    assert_agree(result)
    found = result["layout"]
    assert (found["a"], found["b"]) == (ONE, b)
    assert tuple(n for n in ("copies", "merged", "batch") if found[n]) == pairs
    assert counted(found) == causes
    assert found["gradient_factor"] == factor
    # and nothing was lost on the way
    back = compare(room, layout, "single")
    assert_agree(back)
    assert back["counts"]["compared"] == result["counts"]["compared"]
    assert back["layout"]["uncompared"] == found["uncompared"]
    assert back["layout"]["gradient_factor"] == 1 / factor


def test_stages_of_a_pipeline_are_equal_to_the_bit(room, run):
    for layout in ("stages", "stages_anew"):
        assert compare(room, run("single"), run(layout))["verdict"] == "same"


@pytest.mark.parametrize(
    "a, b",
    [
        ("tp", "dtensor"), ("tp", "ddp"), ("dtensor", "sequence"),
        ("fsdp2", "ddp"), ("stages", "tp"), ("halves", "ddp"),
        ("quarters", "ddp_quarters"),
    ],
)
def test_one_layout_against_another(room, run, a, b):
    assert_agree(compare(room, run(a), run(b)))


def test_another_share_of_the_batch_is_told(room, run):
    """Rank by rank the rows are others, though together they are the same."""
    result = compare(room, run("ddp_dealt"), run("ddp"))
    assert result["layout"] == {"same": True}
    assert result["verdict"] == "differs" and result["culprit"] is None
    assert result["first"]["name"] == "forward-Llama-1-1-input"


@pytest.mark.parametrize("layout", ["tp16", "ddp16", "dtensor16"])
def test_a_narrow_layout_is_no_difference(room, run, layout):
    assert_agree(compare(room, run("single16"), run(layout)))


@pytest.mark.parametrize(
    "layout, bug, module, pass_",
    [
        ("tp", "reduction", "layers.1.mlp.down", "forward"),
        ("tp", "eps", "layers.1.n2", "forward"),
        ("tp", "scale", "layers.1.attn.v", "forward"),
        ("dtensor", "eps", "layers.1.n2", "forward"),
        ("sequence", "eps", "layers.1.n2", "forward"),
        ("ddp", "gradient", "layers.1.mlp.down", "grad"),
        ("ddp", "eps", "layers.1.n2", "forward"),
        ("fsdp2", "eps", "layers.1.n2", "forward"),
        ("fsdp2", "scale", "layers.1.attn.v", "forward"),
        ("halves", "eps", "layers.1.n2", "forward"),
    ],
)
def test_a_bug_in_a_layout_names_its_module(
    room, run, layout, bug, module, pass_
):
    for a, b in (("single", layout), (layout, "single")):
        result = compare(
            room, run(a, bug if a != "single" else ""),
            run(b, bug if b != "single" else ""),
        )
        culprit = result["culprit"]
        assert result["verdict"] == "differs"
        assert (culprit["module"], culprit["pass"]) == (module, pass_)
        assert culprit["iteration"] == 1


@pytest.mark.parametrize("layout, bug", [("tp", "reduction"),
                                         ("ddp", "gradient")])
def test_copies_that_are_none_are_told(room, run, layout, bug):
    done = room.tracectl("compare", run("single"), run(layout, bug))
    assert "is a reduction missing?" in done.stdout
    assert "layouts: A has 1 rank, B has 2 ranks" in done.stdout


def test_what_is_accumulated_undivided_is_told(room, run):
    """Gradients twice as large, of micro-batches that are not divided."""
    result = compare(room, run("single"), run("halves_sum"))
    assert result["verdict"] == "differs"
    assert result["culprit"]["pass"] == "grad"


# ---- of text logs, whose ranks are known and no more ----


def line(name, shape, figures):
    text = ",".join(f"{v:.5f}" for v in figures)
    return f"101500000000,1,{name},0,{shape}-{text}\n"


def write(daemon, folder, run, *texts):
    """A run with a rank for each text."""
    for rank, text in enumerate(texts):
        file = folder / f"{run}{rank}"
        file.write_text(text)
        daemon.tracectl("import", file, "--run", run, "--rank", rank)


def of_case(daemon, folder):
    """Case H39: the whole, two shards, and a weight that two ranks have."""
    tensors = json.loads((CASES / "H39.json").read_text())["tensors"]

    def text(name, key):
        t = tensors[key]
        figures = [t["max"], t["min"], t["mean"], t["std"], *t["samples"]]
        return line(name, t["shape"], figures)

    write(daemon, folder, "whole", text("grad-l.weight-1", "full"))
    write(
        daemon, folder, "shards", *(
            text("grad-l.weight-1", f"rank{r}") for r in (0, 1)
        )
    )
    write(daemon, folder, "copy", text("grad-ln.weight-1", "ln_rank0"))
    write(
        daemon, folder, "copies", *(
            text("grad-ln.weight-1", f"ln_rank{r}") for r in (0, 1)
        )
    )


def test_shards_of_a_text_log_make_the_whole(daemon, tmp_path):
    of_case(daemon, tmp_path)
    for a, b in (("whole", "shards"), ("shards", "whole")):
        result = compare(daemon, a, b)
        assert result["verdict"] == "same"
        assert result["layout"]["merged"] == 1


def test_each_copy_is_compared(daemon, tmp_path):
    of_case(daemon, tmp_path)
    result = compare(daemon, "copy", "copies")
    assert result["verdict"] != "same"
    assert result["counts"]["equal"] == result["counts"]["differ"] == 1
    worst = result["ranked"][0]
    assert (worst["rank"], worst["rank_b"]) == (0, 1)


def test_what_cannot_be_paired_is_no_difference(daemon, tmp_path):
    whole = line("grad-l.weight-1", [4], [1, 1, 1, 0, 1, 1, 1, 1])
    part = line("grad-l.weight-1", [3], [1, 1, 1, 0, 1, 1, 1])
    write(daemon, tmp_path, "a", whole)
    write(daemon, tmp_path, "b", part, part)
    result = compare(daemon, "a", "b")
    assert result["verdict"] == "unsure"
    assert "hold other parts of the model" in result["reason"]
    assert result["counts"]["compared"] == 0
    assert result["layout"]["uncompared"]["pieces"] == 3


def test_a_map_says_what_a_rank_calls_a_layer(daemon, tmp_path):
    """Two stages number their layers from 0, and nothing tells of it."""
    first = line("grad-l.0.weight-1", [2], [1, 1, 1, 0, 1, 1])
    second = line("grad-l.0.weight-1", [2], [2, 2, 2, 0, 2, 2])
    write(daemon, tmp_path, "one", first + second.replace("l.0", "l.1"))
    write(daemon, tmp_path, "two", first, second)
    assert compare(daemon, "one", "two")["verdict"] != "same"
    names = tmp_path / "names"
    names.write_text("l.1.* rank=1 l.0.*\n")
    result = compare(daemon, "one", "two", "--map", names)
    assert result["verdict"] == "same" and result["counts"]["equal"] == 2
    names.write_text("rank=1 l.0.* l.1.*\n")
    result = compare(daemon, "two", "one", "--map", names)
    assert result["verdict"] == "same" and result["counts"]["equal"] == 2


def test_a_class_of_fsdp_is_the_one_it_was_made_of(daemon, tmp_path):
    figures = [1, 1, 1, 0, 1, 1]
    write(
        daemon, tmp_path, "plain",
        line("forward-Linear-1-1-output", [2], figures)
        + line("forward-FSDP-1-1-output", [2], figures),
    )
    write(
        daemon, tmp_path, "wrapped",
        line("forward-FSDPLinear-1-1-output", [2], figures)
        + line("forward-FSDP-1-1-output", [2], figures),
    )
    result = compare(daemon, "plain", "wrapped")
    assert result["verdict"] == "same" and result["counts"]["equal"] == 2
