"""tracectl check: what is wrong inside one run."""

import json

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tracerd
from programs import python


def check(daemon, run):
    done = daemon.tracectl("-o", "json", "check", run)
    result = json.loads(done.stdout)
    sick = any(not f.get("note") for f in result["findings"])
    assert done.returncode == (1 if sick else 0)
    assert (result["verdict"] == "unhealthy") == sick
    return result


def found(daemon, run):
    return [
        (f["kind"], f["module"], f["pass"], f["step"])
        for f in check(daemon, run)["findings"]
    ]


class Poison(nn.Module):
    """Hands on what it gets, with one bad element in its second call."""

    def __init__(self, value):
        super().__init__()
        self.value, self.calls = value, 0

    def forward(self, x):
        self.calls += 1
        if self.calls != 2:
            return x
        x = x.clone()
        x.view(-1)[3] = self.value
        return x


def trained(run, model, steps=4, lr=0.1, x=None):
    torch.manual_seed(0)
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    with tracerd.attach(model, opt, run=run) as t:
        for _ in range(steps):
            given = torch.randn(4, 8) if x is None else x
            model(given).float().sum().backward()
            opt.step()
            opt.zero_grad()
        assert t.flush(30)


def layers(*inside):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 8), *inside, nn.Linear(8, 8))


def test_a_sound_run_is_healthy(here):
    trained("sound", layers(nn.GELU()))
    result = check(here, "sound")
    assert result["findings"] == [] and result["nonfinite"] == 0
    assert result["records"] == 4 * 18


@pytest.mark.parametrize("value, kind", [("nan", "nan"), ("inf", "inf")])
def test_the_birth_is_told_from_what_carries(here, value, kind):
    trained("born", layers(nn.GELU(), Poison(float(value)), nn.Tanh()))
    result = check(here, "born")
    births = [f for f in result["findings"] if f["kind"] == kind]
    (birth,) = births
    assert (birth["module"], birth["step"]) == ("2", 2)
    assert birth["detail"].startswith("1 of 32 elements")
    assert result["nonfinite"] >= (20 if kind == "nan" else 2)


def first_of(daemon, run, kind):
    """The one finding of a kind: record, detail and whether it is a note."""
    (f,) = [f for f in check(daemon, run)["findings"] if f["kind"] == kind]
    return f["name"], f["detail"], f.get("note", False)


FROM_OUTSIDE = "the first that has any; no traced call made it"


def test_bad_data_are_told_where_they_come_in(here):
    x = torch.randn(4, 8)
    x[1, 2] = float("nan")
    trained("data", layers(nn.GELU()), x=x)
    assert first_of(here, "data", "nan") == (
        "forward-Sequential-1-1-input",
        f"1 of 32 elements; {FROM_OUTSIDE}", False,
    )


def test_a_loss_that_is_nan_is_not_blamed_on_the_weights_after_it(here):
    model = layers(nn.GELU())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with tracerd.attach(model, opt, run="loss") as t:
        for i in range(4):
            out = model(torch.randn(4, 8)).sum()
            (out * (float("nan") if i == 1 else 1)).backward()
            opt.step()
            opt.zero_grad()
        assert t.flush(30)
    assert first_of(here, "loss", "nan")[:2] == (
        "backward-Linear-2-2-input", f"32 of 32 elements; {FROM_OUTSIDE}"
    )


def test_a_gradient_alone_that_is_infinite_is_unhealthy(here):
    model = layers(nn.GELU())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with tracerd.attach(model, opt, run="grad", passes=["grad"]) as t:
        for i in range(3):
            model(torch.randn(4, 8)).sum().backward()
            if i == 1:
                model[2].bias.grad[3] = -float("inf")
            opt.step()
            opt.zero_grad()
        assert t.flush(30)
    assert first_of(here, "grad", "inf") == (
        "grad-2.bias-2", f"1 of 8 elements; {FROM_OUTSIDE}", False
    )


def scaled(run, poison):
    """The scaler finds the first step too large and skips it; poison(i) is
    what the loss of step i is multiplied by."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with tracerd.attach(model, opt, run=run) as t:
        for i in range(6):
            loss = model(torch.randn(4, 8)).pow(2).sum() * poison(i)
            scaler.scale(loss * (1e3 if i == 0 else 1e-3)).backward()
            scaler.step(opt)
            scaler.update(2.0**4)
            opt.zero_grad()
        assert t.flush(30)


def test_a_step_that_the_scaler_skips_is_a_note(here):
    scaled("scaler", lambda i: 1)
    result = check(here, "scaler")
    assert {f["kind"] for f in result["findings"]} <= {"inf", "nan"}
    name, detail, note = first_of(here, "scaler", "inf")
    assert note and name.endswith("-1-input") and "-1-" in name
    assert detail.endswith("; the gradient scaler skipped the step")
    done = here.tracectl("check", "scaler")
    assert done.stdout.startswith("healthy")


def test_a_step_that_the_scaler_skips_hides_no_later_birth(here):
    model = layers(Poison(float("inf")))
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    model[1].calls = -2
    with tracerd.attach(model, opt, run="both") as t:
        for i in range(5):
            loss = model(torch.randn(4, 8)).sum()
            scaler.scale(loss * (1e3 if i == 0 else 1e-3)).backward()
            opt.step() if i else scaler.step(opt)
            scaler.update(2.0**4)
            opt.zero_grad()
        assert t.flush(30)
    births = [f for f in check(here, "both")["findings"]
              if f["kind"] == "inf" and not f.get("note")]
    assert [(f["module"], f["step"]) for f in births] == [("1", 4)]


def test_a_mask_of_infinities_is_no_finding(here):
    class Masked(nn.Module):
        def forward(self, x):
            return x.masked_fill(x < 0, -torch.inf)

    trained("mask", nn.Sequential(nn.Linear(8, 8), Masked(), nn.Softmax(-1)))
    assert "inf" not in {f[0] for f in found(here, "mask")}


def test_half_precision_near_its_end_and_below_it(here):
    class Scaled(nn.Module):
        def __init__(self, by):
            super().__init__()
            self.by = by

        def forward(self, x):
            return x.half() * self.by

    model = nn.Sequential(Scaled(40000.0), nn.Identity(), Scaled(1e-11))
    x = torch.ones(4, 8, requires_grad=True)
    with tracerd.attach(model, run="range") as t:
        model(x)
        assert t.flush(30)
    kinds = found(here, "range")
    assert ("range", "0", "forward", 1) in kinds
    assert ("underflow", "2", "forward", 1) in kinds


def test_a_layer_that_is_always_zero_is_dead(here):
    dead = nn.Linear(8, 8)
    nn.init.constant_(dead.bias, -100)
    trained("dead", nn.Sequential(dead, nn.ReLU(), nn.Linear(8, 8)))
    kinds = found(here, "dead")
    assert ("dead", "1", "forward", 1) in kinds
    assert ("dead", "0", "grad", 1) in kinds
    assert not any(f[1:3] == ("2", "forward") for f in kinds)


def test_a_norm_that_jumps_is_a_spike(here):
    class Jump(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x * (1000 if self.calls == 7 else 1)

    trained("spike", layers(Jump()), steps=9, lr=1e-4)
    spikes = [f for f in found(here, "spike") if f[0] == "spike"]
    assert ("spike", "1", "forward", 7) in spikes
    assert {step for *_, step in spikes} <= {7}


def test_a_norm_after_an_infinity_is_followed_again(here):
    class Jump(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 2:
                return x.masked_fill(x < 0, -torch.inf)
            return x * (1000 if self.calls == 9 else 1)

    x = torch.randn(4, 8)
    model = nn.Sequential(Jump(), nn.Softmax(-1), nn.Linear(8, 8))
    trained("mask", model, steps=10, lr=1e-4, x=x)
    spikes = [f for f in found(here, "mask") if f[0] == "spike"]
    assert ("spike", "0", "forward", 9) in spikes


def test_a_norm_that_grows_at_each_step_explodes(here):
    class Doubles(nn.Module):
        calls, at_most = 0, 100

        def forward(self, x):
            self.calls += 1
            return x * 2.0 ** min(self.calls, self.at_most)

    x = torch.randn(4, 8)
    trained("grows", layers(Doubles()), steps=20, lr=0, x=x)
    growth = [f for f in found(here, "grows") if f[0] == "growth"]
    assert ("growth", "1", "forward", 15) in growth
    assert "grew 1.64e+04-fold over 14 records" in next(
        f["detail"] for f in check(here, "grows")["findings"]
        if f["kind"] == "growth" and f["module"] == "1")
    less = Doubles()
    less.at_most = 8
    trained("less", layers(less), steps=20, lr=0, x=x)
    assert found(here, "less") == []


def test_a_recomputed_output_with_other_bits(here):
    class Fickle(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x + (1e-3 if self.calls % 2 == 0 else 0)

    class Checkpointed(nn.Module):
        def __init__(self, inside):
            super().__init__()
            self.first, self.inside = nn.Linear(8, 8), inside

        def forward(self, x):
            return checkpoint(
                lambda y: self.inside(y).sin(), self.first(x),
                use_reentrant=False,
            )

    trained("sound", Checkpointed(nn.GELU()))
    assert found(here, "sound") == []
    trained("fickle", Checkpointed(Fickle()))
    assert [f[:2] for f in found(here, "fickle")] == [("recompute", "inside")]


REPLICAS = """
import os, sys
import torch, torch.distributed as dist
import tracerd
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
with tracerd.attach(model, opt, run=sys.argv[1]) as t:
    torch.manual_seed(dist.get_rank())
    for _ in range(2):
        model(torch.randn(4, 8)).sum().backward()
        for name, p in model.named_parameters():
            if sys.argv[2] not in (name, "every"):
                dist.all_reduce(p.grad)
        opt.step()
        opt.zero_grad()
    assert t.flush(30)
dist.destroy_process_group()
"""


def test_a_gradient_that_is_not_reduced(daemon, tmp_path):
    script = tmp_path / "replicas.py"
    script.write_text(REPLICAS)
    for run, left_out in (("sound", "all"), ("broken", "0.weight")):
        python(script, run, left_out, folder=daemon.dir, ranks=2)
    assert found(daemon, "sound") == []
    (finding,) = check(daemon, "broken")["findings"]
    assert (finding["kind"], finding["module"]) == ("replicas", "0")
    assert finding["name"] == "grad-0.weight-1" and finding["rank"] == 1


def test_ranks_that_share_no_gradient_are_a_note(daemon, tmp_path):
    script = tmp_path / "replicas.py"
    script.write_text(REPLICAS.replace(").sum()", ").pow(2).sum()"))
    python(script, "apart", "every", folder=daemon.dir, ranks=2)
    (finding,) = check(daemon, "apart")["findings"]
    assert (finding["kind"], finding["note"]) == ("replicas", True)
    assert finding["detail"].endswith("or a reduction is missing")
    assert finding["records"] == 8


def test_bad_data_of_one_rank(daemon, tmp_path):
    script = tmp_path / "data.py"
    script.write_text(REPLICAS.replace(
        "model(torch.randn(4, 8))",
        "model(torch.randn(4, 8) * ("
        "float('nan') if dist.get_rank() else 1))"))
    python(script, "data", "none", folder=daemon.dir, ranks=2)
    (finding,) = [f for f in check(daemon, "data")["findings"]
                  if f["kind"] == "nan"]
    assert (finding["name"], finding["rank"]) == (
        "forward-Sequential-1-1-input", 1)


# ---- the same inputs, other outputs ----


def twice(x, module):
    """Both calls get the same bits."""
    return module(x) + module(x)


class Twice(nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x):
        return twice(x, self.inside)


def broken(module):
    """Its second call of each forward is off by a bit or so, as on a device
    that fails."""
    forward, calls = module.forward, [0]

    def fails(x):
        calls[0] += 1
        return forward(x) * (1 + 1e-6 * (calls[0] % 2 == 0))

    module.forward = fails
    return module


def repeats(daemon, run):
    return [
        (f["module"], f["step"], f.get("note", False))
        for f in check(daemon, run)["findings"] if f["kind"] == "repeat"
    ]


@pytest.mark.parametrize("inside", [nn.Linear(8, 8), nn.GELU()])
def test_a_layer_that_gives_other_bits_for_the_same(here, inside):
    trained("sound", nn.Sequential(nn.Linear(8, 8), Twice(inside)), lr=0)
    assert check(here, "sound")["findings"] == []
    model = nn.Sequential(nn.Linear(8, 8), Twice(broken(inside)))
    trained("fails", model, lr=0)
    assert repeats(here, "fails") == [("1.inside", 2, False)]
    (finding,) = check(here, "fails")["findings"]
    assert finding["records"] == 4
    assert finding["detail"] == (
        "calls 1 and 2 got the same bits and gave others"
    )


def test_an_unknown_class_is_only_a_note(here):
    class Own(nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    trained("own", nn.Sequential(nn.Linear(8, 8), Twice(Own())), lr=0)
    assert repeats(here, "own") == [("1.inside", 2, True)]
    assert check(here, "own")["verdict"] == "healthy"
    done = here.tracectl("check", "own")
    assert done.stdout.startswith("healthy")
    assert "note: calls 1 and 2" in done.stdout


def test_dropout_is_no_finding(here):
    inside = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    trained("drop", nn.Sequential(nn.Linear(8, 8), Twice(inside)), lr=0)
    assert check(here, "drop")["findings"] == []


def test_parameters_that_changed_in_between_are_no_finding(here):
    """As the discriminator of a GAN is stepped between two calls."""
    model = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)})
    first = torch.optim.SGD(model["a"].parameters(), lr=0.1)
    second = torch.optim.SGD(model["b"].parameters(), lr=0.1)
    x = torch.randn(4, 8)
    with tracerd.attach(model, first, run="gan") as t:
        for _ in range(3):
            model["b"](x).sum().backward()
            second.step()
            second.zero_grad()
            model["b"](x).sum().backward()
            model["a"](x).sum().backward()
            first.step()
            first.zero_grad()
            second.zero_grad()
        assert t.flush(30)
    assert [f for f in repeats(here, "gan") if not f[2]] == []


FAILING = """
import sys
import torch, torch.distributed as dist
import tracerd
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
if dist.get_rank() == 1 and sys.argv[1] == "fails":
    forward = model[2].forward
    model[2].forward = lambda x: forward(x) * (1 + 1e-6)
with tracerd.attach(model, opt, run=sys.argv[1]) as t:
    torch.manual_seed(7)
    for _ in range(2):
        model(torch.randn(4, 8)).sum().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        opt.step()
        opt.zero_grad()
    assert t.flush(30)
dist.destroy_process_group()
"""


def test_a_rank_whose_device_fails(daemon, tmp_path):
    script = tmp_path / "failing.py"
    script.write_text(FAILING)
    for run in ("sound", "fails"):
        python(script, run, folder=daemon.dir, ranks=2)
    assert found(daemon, "sound") == []
    (finding,) = check(daemon, "fails")["findings"]
    assert (finding["kind"], finding["module"]) == ("repeat", "2")
    assert finding["detail"] == (
        "ranks 0 and 1 got the same bits and gave others"
    )
