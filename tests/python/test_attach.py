"""What attach() records of a call, and what it leaves alone."""

import copy
import dataclasses
import gc
import io
import pickle
import sys
import threading
import warnings
from collections import namedtuple

import pytest
import torch
from torch import nn

import tracerd
from recording import Block, Net, keys_of, pick, tensors_of, traced


def test_a_module_called_twice_has_a_step_for_each(recorded):  # case H18
    def run(model):
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()

    witness = traced(Block(), run)
    assert keys_of(recorded) == witness.keys()
    outputs = pick(recorded, object="ReLU-1", io="output", pass_="forward")
    assert [r.step for r in outputs] == [1, 2, 3, 4]
    assert {r.iteration for r in recorded} == {1}
    assert [r.microbatch for r in outputs] == [1, 1, 2, 2]


def test_instances_are_numbered_over_several_attachments(recorded):
    # case H21
    traces = []
    for _ in range(5):
        model = nn.Linear(2, 2)
        traces.append(tracerd.attach(model))
        model(torch.ones(1, 2))
        del model
        gc.collect()
    inputs = pick(recorded, io="input")
    assert [(r.object, r.step) for r in inputs] == [
        (f"Linear-{i}", 1) for i in range(1, 6)
    ]
    for t in traces:
        t.close()


def test_attached_again_a_model_keeps_its_numbers(recorded):
    model = nn.Linear(2, 2)
    for _ in range(2):
        with tracerd.attach(model):
            model(torch.ones(1, 2))
    assert {r.object for r in recorded} == {"Linear-1"}


ODD = [
    "Conv-1-2", "Linear", "线性层", "A" * 300, "grad", "x.y<z>",
    "forward-Linear-1",
]


def odd_model():
    make = [
        type(name, (nn.Module,), {"forward": lambda self, x: x * 2})
        for name in ODD
    ]
    return nn.Sequential(*[c() for c in make])


def test_odd_class_names(recorded):  # case H25
    traced(odd_model(), lambda m: m(torch.ones(1, 2)))
    assert {r.object for r in recorded} == {
        f"{name}-1" for name in [*ODD, "Sequential"]
    }


def test_data_without_gradient(recorded):  # case H29
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    witness = traced(model, lambda m: m(torch.ones(1, 2)).sum().backward())
    assert keys_of(recorded) == witness.keys()
    backward = {(r.object, r.io) for r in pick(recorded, pass_="backward")}
    assert backward == {
        ("Linear-1", "input"), ("Linear-2", "input"),
        ("Linear-2", "output"), ("Sequential-1", "input"),
    }


def test_user_values_may_be_numbers(recorded):
    with tracerd.attach(nn.Linear(2, 2)) as t:
        t.record("loss", 0.1)
        t.record("step", 2**62)
        t.record("pair", [1.5, 2.5])
        t.record("loss", torch.tensor(0.25))
    assert [(r.path, r.step, r.dtype, r.max) for r in recorded] == [
        ("loss", 1, "float64", 0.1), ("step", 1, "int64", 2**62),
        ("pair", 1, "float64", 2.5), ("loss", 2, "float32", 0.25),
    ]


def test_user_values_of_other_kinds_are_told_and_counted(here):
    with tracerd.attach(nn.Linear(2, 2), run="kinds") as t:
        with pytest.warns(RuntimeWarning, match="tensor or numbers, not dict"):
            t.record("loss", {"a": 1})
        assert t.counters["lost"] == {"error": 1}


def test_arguments_of_the_wrong_kind_are_refused():
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module"):
        tracerd.attach("model")
    with pytest.raises(TypeError, match="match must be a glob or a list"):
        tracerd.attach(nn.Linear(2, 2), match=5)


class Named(nn.Module):
    def forward(self, *, hidden_states, scale=None, mask=None):
        return hidden_states * scale


def test_named_arguments(recorded):
    x = torch.ones(2, 3, requires_grad=True)
    witness = traced(
        Named(),
        lambda m: m(hidden_states=x, scale=torch.tensor(3.0)).sum().backward(),
    )
    assert keys_of(recorded) == witness.keys()
    inputs = pick(recorded, pass_="forward", io="input")
    assert [(r.position, r.path, r.shape) for r in inputs] == [
        (0, "hidden_states", [2, 3]), (1, "scale", []),
    ]
    (gradient,) = pick(recorded, pass_="backward", io="output")
    assert gradient.path == "hidden_states" and gradient.labels == ["total"]
    assert gradient.samples == [3.0] * 6


def test_hooks_on_leaves_go_away(recorded):
    x = torch.ones(2, 2, requires_grad=True)
    model = nn.Linear(2, 2)
    with tracerd.attach(model) as t:
        for _ in range(3):
            model(x).sum().backward()
        assert len(pick(recorded, pass_="backward", io="output")) == 3
        assert not x._backward_hooks
        # a forward pass without a backward pass
        model(x)
        assert len(x._backward_hooks) == 1
        x.sum().backward()  # not the module's business
        assert len(pick(recorded, pass_="backward", io="output")) == 3
        t.step()
        assert not x._backward_hooks
        model(x)
    assert not x._backward_hooks


Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Out:
    logits: torch.Tensor
    hidden: object = None


class Ordered(dict):
    """As ModelOutput: a dict whose items come with more."""

    def __getitem__(self, key):
        raise AssertionError("walked through an access with side effects")


NESTS = {
    "lone": (lambda y, z: y, ["0"]),
    "tuple": (lambda y, z: (y, None, z), ["0", "2"]),
    "list": (lambda y, z: [y, [z]], ["0", "1.0"]),
    "dict": (lambda y, z: {"a": y, "b": [z, None, 3]}, ["a", "b.0"]),
    "data": (lambda y, z: Out(y, (z, None)), ["logits", "hidden.0"]),
    "named": (lambda y, z: Pair(y, {"k": z}), ["left", "right.k"]),
    "deep": (
        lambda y, z: ({"q": (y,)}, {"cache": {"key": z}}, "text"),
        ["0.q.0", "1.cache.key"],
    ),
    "lazy": (lambda y, z: Ordered(a=y, b=z), ["a", "b"]),
    "same": (lambda y, z: (y, y), ["0", "1"]),
}


class Nest(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.make = make

    def forward(self, x):
        y = self.layer(x)
        return self.make(y, y * 2)


@pytest.mark.parametrize("kind", NESTS)
def test_nested_results(recorded, kind):
    make, paths = NESTS[kind]
    model = Nest(make)
    kept = []

    def run(m):
        result = m(torch.ones(3, 2))
        kept.append(result)
        values = dict.values(result) if kind == "lazy" else [result]
        sum(t.sum() for v in values for t in tensors_of(v)).backward()

    with tracerd.attach(model):
        run(model)
    assert type(kept[0]) is type(make(torch.ones(1), torch.ones(1)))
    outputs = pick(recorded, object="Nest-1", pass_="forward", io="output")
    assert [r.path for r in outputs] == paths
    assert [r.position for r in outputs] == list(range(len(paths)))
    gradients = pick(recorded, object="Nest-1", pass_="backward", io="input")
    once = paths[:1] if kind == "same" else paths
    assert sorted(r.path for r in gradients) == sorted(once)


def test_generators_are_not_consumed(recorded):
    class Lazy(nn.Module):
        def forward(self, items):
            return (t * 2 for t in items)

    with tracerd.attach(m := Lazy()):
        result = m(torch.ones(2) for _ in range(3))
        assert len(list(result)) == 3
    assert recorded == []


def test_what_is_endless_is_bounded(recorded):
    loop = [torch.ones(1)]
    loop.append(loop)
    many = [torch.ones(1)] * 5000

    class Takes(nn.Module):
        def forward(self, a, b):
            return a[0]

    with tracerd.attach(m := Takes()):
        m(loop, many)
    assert 1000 < len(recorded) < 2000


def test_in_place_changes_come_after_the_record(recorded):
    model = nn.Sequential(
        nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Linear(2, 1)
    )

    def run(m):
        for p in m.parameters():
            p.grad = None
        m(torch.ones(1, 2)).sum().backward()
        return [p.grad.clone() for p in m.parameters()]

    nn.init.constant_(model[0].bias, -9)
    plain = run(model)
    with tracerd.attach(model):
        assert all(map(torch.equal, run(model), plain))
    (before,) = pick(
        recorded, object="Linear-1", pass_="forward", io="output"
    )
    (after,) = pick(recorded, object="ReLU-1", pass_="forward", io="output")
    assert before.max < 0 and after.max == 0


def test_evaluation_and_frozen_layers(recorded):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    with tracerd.attach(model) as t:
        with torch.no_grad():
            model(torch.ones(1, 2))
        with torch.inference_mode():
            model(torch.ones(1, 2))
        model(torch.ones(1, 2)).sum().backward()
        t.step()
    outputs = pick(recorded, object="Linear-1", pass_="forward", io="output")
    assert [(r.step, r.microbatch, r.labels) for r in outputs] == [
        (1, 0, ["eval"]), (2, 0, ["eval"]), (3, 1, []),
    ]
    backward = pick(recorded, pass_="backward")
    assert {(r.object, r.step) for r in backward} == {
        ("Linear-2", 3), ("Sequential-1", 3),
    }
    assert [r.path for r in pick(recorded, pass_="grad")] == [
        "1.weight", "1.bias",
    ]


# ---- exceptions ----


def test_an_exception_in_forward(recorded):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with tracerd.attach(model):
        for x in (torch.ones(1, 2), torch.ones(1, 3), torch.ones(1, 2)):
            try:
                model(x).sum().backward()
            except RuntimeError as error:
                assert "shapes" in str(error)
    forward = pick(recorded, object="Linear-1", pass_="forward")
    assert [(r.step, r.io, r.labels) for r in forward] == [
        (1, "input", []), (1, "output", []),
        (2, "input", []), (2, "output", ["raised"]),
        (3, "input", []), (3, "output", []),
    ]
    outputs = pick(recorded, object="Linear-2", pass_="forward", io="output")
    assert [(r.step, r.microbatch) for r in outputs] == [(1, 1), (2, 3)]


def test_an_interrupt_in_forward(recorded):
    class Stops(nn.Module):
        stop = True

        def forward(self, x):
            if self.stop:
                raise KeyboardInterrupt
            return x

    model = nn.Sequential(nn.Linear(2, 2), Stops())
    with tracerd.attach(model):
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1, 2))
        model[1].stop = False
        model(torch.ones(1, 2))
    outputs = pick(recorded, object="Sequential-1", io="output")
    assert [(r.step, r.microbatch) for r in outputs] == [(2, 2)]


def test_a_result_of_none_is_no_exception(recorded):
    class Nothing(nn.Module):
        def forward(self, x):
            return None

    with tracerd.attach(m := Nothing()):
        try:
            raise ValueError
        except ValueError:
            m(torch.ones(1))
    assert [r.io for r in recorded] == ["input"]


def test_errors_of_the_tracer_stay_inside(monkeypatch, fresh, recorded):
    def broken(*args):
        raise ZeroDivisionError("ours")

    model = nn.Linear(2, 2)
    t = tracerd.attach(model)
    client = t._connection.client
    monkeypatch.setattr(t._recorder, "record", broken)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
    assert len(seen) == 1 and "ZeroDivisionError" in str(seen[0].message)
    assert client.lost_n == 6  # input and output, three passes
    client.lost_n = 0
    # and where warnings are errors, too
    t._recorder._told = False
    model(torch.ones(1, 2))
    client.lost_n = 0


# ---- copies ----


def test_a_copy_is_not_traced(recorded):
    model = nn.Linear(2, 2)
    with tracerd.attach(model):
        model(torch.ones(1, 2))
        average = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        for other in (average, loaded, pickle.loads(pickle.dumps(model))):
            assert torch.equal(
                other(torch.ones(1, 2)), model(torch.ones(1, 2))
            )
            with pytest.raises(RuntimeError):
                other(torch.ones(1, 3))
    inputs = pick(recorded, io="input")
    assert [r.step for r in inputs] == [1, 2, 3, 4]
    assert b"tracerd" not in file.getvalue()


def test_a_saved_result_warns_of_nothing(recorded):
    with tracerd.attach(m := nn.Linear(2, 2)), warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.save(m(torch.ones(1, 2)), io.BytesIO())


def test_a_model_that_is_never_called(recorded):
    """As when it was compiled after attach()."""
    with tracerd.attach(nn.Linear(1, 1)) as t:
        t.step()
        with pytest.warns(RuntimeWarning, match="no forward pass"):
            t.step()
        t.step()


def test_replicas_of_data_parallel_share_the_steps(recorded):
    model = nn.Linear(2, 2)
    with tracerd.attach(model):
        for _ in range(4):
            replica = model._replicate_for_data_parallel()
            replica.weight, replica.bias = model.weight, model.bias
            replica(torch.ones(1, 2))
    inputs = pick(recorded, io="input")
    assert [(r.object, r.step) for r in inputs] == [
        ("Linear-1", i) for i in range(1, 5)
    ]


# ---- threads ----


def test_threads(recorded):
    model = nn.Linear(2, 1)

    def start(*functions):
        threads = [threading.Thread(target=f) for f in functions]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with tracerd.attach(model):
            loss = model(torch.ones(1, 2, requires_grad=True)).sum()
            start(loss.backward)
            start(*[lambda: model(torch.ones(1, 2)) for _ in range(16)])
    finally:
        sys.setswitchinterval(switch)
    backward = pick(recorded, pass_="backward")
    assert [r.step for r in backward] == [1, 1]
    for io_ in ("input", "output"):
        steps = [r.step for r in pick(recorded, pass_="forward", io=io_)]
        assert sorted(steps) == [*range(1, 18)]


# ---- tensors of other kinds ----


def test_scripted_modules_are_left_out(recorded):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(2, 2)
            self.s = torch.jit.script(nn.Linear(2, 2))

        def forward(self, x):
            return self.s(self.a(x))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = Mixed()
    with pytest.warns(RuntimeWarning, match="no hooks.*: s"):
        t = tracerd.attach(model)
    with t:
        model(torch.ones(1, 2))
    assert {r.object for r in recorded} == {"Mixed-1", "Linear-1"}


def test_transforms(recorded):
    model = nn.Linear(3, 3)
    with tracerd.attach(model):
        torch.vmap(model)(torch.ones(2, 3))
    assert {tuple(r.labels) for r in recorded} == {("unsupported",)}


def test_sparse_gradients(recorded):
    model = nn.Embedding(10, 3, sparse=True)
    with tracerd.attach(model, passes="grad") as t:
        for ids in ([7, 1, 3], [8, 1, 3]):
            model(torch.tensor(ids)).sum().backward()
        t.step()
    (r,) = recorded
    assert r.shape == [10, 3] and r.n == 12 and r.max == 2
    assert r.labels == ["final", "sparse"] and r.note == "nnz=4"


@pytest.fixture
def group():
    """A process group of this process alone."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


def test_shards(recorded, group):
    from torch.distributed.tensor import (
        Shard,
        distribute_tensor,
        init_device_mesh,
    )

    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    whole = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
    assert tracerd.stats(whole)["l2"] == 140**0.5
    model = nn.Identity()
    model.register_parameter("p", nn.Parameter(whole))
    with tracerd.attach(model) as t:
        model(whole.detach().requires_grad_() * 2).sum().backward()
        info = t._connection.client.opened_with[2]
    assert '"coordinates": {"tp": [0, 1]}' in info
    (r,) = pick(recorded, pass_="forward", io="output")
    assert r.samples == [2.0 * i for i in range(8)]
    assert r.labels == ["shard"] and r.note == "placements=S(0) shape=[8]"
    gradients = pick(recorded, pass_="backward")
    assert len(gradients) == 2
    assert all("shard" in g.labels and g.max == 1 for g in gradients)


# ---- as it is stored ----


def test_odd_class_names_are_found_again(here):
    with tracerd.attach(m := odd_model(), run="odd") as t:
        m(torch.ones(1, 2))
        m(torch.ones(1, 2))
        assert t.flush()
    for name in ODD:
        found = here.query("odd", f"forward-{name}-1-2")
        assert [(r["class"], r.instance, r.step, r.io) for r in found] == [
            (name, 1, 2, "input"), (name, 1, 2, "output"),
        ]


def test_keys_that_no_database_takes(here):
    """A NUL and half of a surrogate pair are written out."""

    class Odd(nn.Module):
        def forward(self, x):
            return {"a\0b": x * 2, "\ud800": x * 3}

    with tracerd.attach(m := Odd(), run="keys") as t:
        m(torch.ones(1, 2))
        assert t.flush()
    found = here.query("keys", "forward-Odd-1-1-output*")
    assert sorted((r.path, r.absmax) for r in found) == [
        (r"\ud800", 3.0), (r"a\0b", 2.0)
    ]


def test_stored_records_have_every_field(here):
    x = torch.tensor([[1.0, float("nan"), float("inf")]])
    with tracerd.attach(m := Named(), run="fields") as t:
        m(hidden_states=x, scale=torch.tensor(2.0))
        t.record("loss", torch.tensor(0.5))
        t.record("count", torch.tensor(2**62))
        t.record("empty", torch.empty(0, 3))
        t.record("z", torch.tensor([3 + 4j]))
        assert t.flush()
        assert t.counters["submitted"] == t.counters["committed"] == 7
    stored = sorted(here.query("fields", "*"), key=lambda r: r.seq)
    first, second, result, *user = stored
    assert (first.path, second.path) == ("hidden_states", "scale")
    for r in (first, result):
        assert (r.n, r.nan, r.pinf, r.shape) == (3, 1, 1, [1, 3])
    local = tracerd.stats(x)
    assert repr({k: first[k] for k in local}) == repr(local)
    by_path = {r.path: r for r in user}
    assert by_path["loss"].name == "user-loss-1"
    assert by_path["loss"].max == 0.5
    assert by_path["count"].max == 2**62
    assert by_path["empty"].n == 0 and by_path["empty"].max is None
    assert by_path["empty"].shape == [0, 3]
    assert by_path["z"].max == 5 and by_path["z"].labels == ["complex"]
    assert by_path["z"].samples == [[3.0, 4.0]]


def test_a_run_may_be_named_twice(here):
    """In one process the records go on; the process is one job."""
    for i in range(2):
        with tracerd.attach(nn.Linear(1, 1), run="again") as t:
            t.record("x", torch.tensor(float(i)))
            assert t.flush() and t.run == "again"
    assert [r.max for r in here.query("again", "user-x")] == [0, 1]


# ---- the end ----


def test_closing_leaves_the_model_as_found(recorded):
    from torch.optim import optimizer as module

    model = Net()
    own = model.parts["head"].register_forward_hook(lambda *a: None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def state():
        """All hooks of the model and everything that it has as attributes,
        and how many hooks there are on optimizers."""
        modules = [
            {k: v for k, v in vars(m).items() if k != "_parameters"}
            for m in model.modules()
        ]
        return repr(modules), [
            len(module._global_optimizer_pre_hooks),
            len(module._global_optimizer_post_hooks),
            len(optimizer._optimizer_step_pre_hooks),
            len(optimizer._optimizer_step_post_hooks),
        ]

    before = state()
    for given in (None, optimizer):
        t = tracerd.attach(model, given)
        assert state() != before
        loss = model(torch.ones(1, 2)).sum()
        t.close()
        t.close()
        assert state() == before
        loss.backward()  # hooks still in the graph say nothing
        optimizer.step()
        t.step()
        t.record("x", torch.ones(1))
        optimizer.zero_grad()
    assert not pick(recorded, pass_="backward")
    own.remove()


def test_no_tensor_is_kept_alive(recorded):
    import weakref

    model = Net()
    with tracerd.attach(model) as t:
        x = torch.ones(1, 2, requires_grad=True) * 1
        result = model(x)
        result.sum().backward()
        kept = [weakref.ref(x), weakref.ref(result)]
        del x, result
        t.step()
        gc.collect()
        assert [w() for w in kept] == [None, None]
        kept = weakref.ref(model)
        del model
        gc.collect()
        assert kept() is None


def test_compiled_code_stays_as_it_is(recorded):
    def build():
        torch._dynamo.reset()
        torch.manual_seed(0)
        return Net()

    def run(model, optimizer):
        losses = []
        for _ in range(2):
            loss = model(torch.ones(3, 2)).pow(2).sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    seen = []
    for how in ("plain", "before", "after"):
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        t = None
        if how == "before":
            t = tracerd.attach(model, optimizer)
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        if how == "after":
            with pytest.warns(RuntimeWarning, match="compiled"):
                t = tracerd.attach(compiled, optimizer)
        recorded.clear()
        seen.append(run(compiled, optimizer))
        if t:
            t.close()
    assert seen[0] == seen[1] == seen[2]
    # round the compiled module something is seen, by its own name
    forward = pick(recorded, pass_="forward")
    assert {(r.object, r.module) for r in forward} == {("Net-2", "")}


def test_numbers_do_not_repeat(recorded):
    """Python reuses the ids of objects; their numbers are not reused."""
    for _ in range(20):
        model = nn.Linear(1, 1)
        with tracerd.attach(model):
            model(torch.ones(1))
        del model
    names = [r.object for r in pick(recorded, io="input")]
    assert names == [f"Linear-{i}" for i in range(1, 21)]
