"""Models and loops that are out of the ordinary; see framework_script.py."""

import copy
import pickle
import threading

import torch
from torch import nn

from frameworks_torch import WIDTH, WORDS, Model, batches, loss_of, train


def _adamw(model):
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(parameters, lr=1e-2)


def _trained(scene, model, **options):
    optimizer = _adamw(model)
    scene.watch(model, optimizer, **options)
    train(scene, model, optimizer)


def shared_modules(scene):
    """Two names for one module."""
    model = Model()
    model.blocks[1].up = model.blocks[0].up
    _trained(scene, model)


def tied_weights(scene):
    """Two modules with one weight."""
    model = Model()
    model.head = nn.Linear(WIDTH, WORDS, bias=False)
    model.head.weight = model.embed.weight
    _trained(scene, model)


def called_often(scene):
    """One module, several calls in a pass."""

    def three_times(block, x):
        for _ in range(3):
            x = block(x)
        return x

    _trained(scene, Model(blocks=1, how=three_times))


def frozen(scene):
    """The embedding and the first block are not trained."""
    model = Model()
    model.embed.requires_grad_(False)
    model.blocks[0].requires_grad_(False)
    _trained(scene, model)


def forward_directly(scene):
    """model.forward(x), which runs no hooks of the model itself."""
    model = Model(how=lambda block, x: block.forward(x))
    _trained(scene, model)


def script_module(scene):
    """Compiled by torch.jit; such modules take no hooks."""
    model = Model()
    for block in model.blocks:
        block.act = torch.jit.script(
            nn.Sequential(nn.Linear(2 * WIDTH, 2 * WIDTH), nn.ReLU())
        )
    _trained(scene, model)


def modules_later(scene):
    """Layers that come after attach()."""
    model = Model()
    optimizer = _adamw(model)
    scene.watch(model, optimizer)
    model.head = nn.Sequential(model.head, nn.Linear(WORDS, WORDS))
    scene.changed()
    optimizer.add_param_group({"params": model.head[1].parameters()})
    train(scene, model, optimizer)


def copies(scene):
    """A moving average of the model, and a checkpoint by pickle."""
    model = Model()
    optimizer = _adamw(model)
    scene.watch(model, optimizer)
    average = None
    for ids in batches(scene, 4):
        optimizer.zero_grad()
        loss = loss_of(model(ids), ids)
        loss.backward()
        optimizer.step()
        scene.loss(loss)
        average = average or copy.deepcopy(model)
        with torch.no_grad():
            for slow, p in zip(
                average.parameters(), model.parameters(), strict=True
            ):
                slow.lerp_(p, 0.5)
            scene.loss(loss_of(average(ids), ids))
        model.how = average.how = None  # a function does not pickle
        again = pickle.loads(pickle.dumps(model))
        model.how = average.how = again.how = lambda block, x: block(x)
        scene.loss(loss_of(again(ids), ids))
    scene.end([*model.parameters(), *average.parameters()])


def averaged(scene):
    """torch's own averaged model, which copies what it is given."""
    model = Model()
    optimizer = _adamw(model)
    scene.watch(model, optimizer)
    average = torch.optim.swa_utils.AveragedModel(model)
    for ids in batches(scene):
        optimizer.zero_grad()
        loss = loss_of(model(ids), ids)
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        scene.loss(loss)
    scene.end([*model.parameters(), *average.module.parameters()])


class TooMuch(Exception):
    pass


def exceptions(scene):
    """A forward and a backward pass that fail; the loop goes on."""
    here = {"at": 0}

    def how(block, x):
        here["at"] += 1
        x = block(x)
        if here["at"] == 3:  # the first block of the second pass
            raise TooMuch
        return x

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise TooMuch

    model = Model(how=how)
    optimizer = _adamw(model)
    scene.watch(model, optimizer)
    for at, ids in enumerate(batches(scene, 5)):
        optimizer.zero_grad()
        try:
            out = model(ids)
            loss = loss_of(Fails.apply(out) if at == 3 else out, ids)
            loss.backward()
        except TooMuch:
            continue
        optimizer.step()
        scene.loss(loss)
    scene.end(model.parameters())


def closure(scene):
    """An optimizer that calls the model itself, several times a step."""
    model = Model()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-2, max_iter=3)
    scene.watch(model, optimizer)
    for ids in batches(scene):

        def again(ids=ids):
            optimizer.zero_grad()
            loss = loss_of(model(ids), ids)
            loss.backward()
            return loss

        scene.loss(optimizer.step(again))
    scene.end(model.parameters())


def threads(scene):
    """Two models, each trained by a thread of its own at the same time."""
    pairs = []
    for name in ("left", "right"):
        model = Model(blocks=1)
        optimizer = _adamw(model)
        scene.watch(model, optimizer, name=name)
        pairs.append((model, optimizer))
    all_ids = list(batches(scene))
    losses = [[], []]

    def work(at):
        model, optimizer = pairs[at]
        for ids in all_ids:
            optimizer.zero_grad()
            loss = loss_of(model(ids), ids)
            loss.backward()
            optimizer.step()
            losses[at].append(loss)

    workers = [threading.Thread(target=work, args=(at,)) for at in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for loss in losses[0] + losses[1]:
        scene.loss(loss)
    scene.end(p for model, _ in pairs for p in model.parameters())


def _replica(module, weights):
    """As DataParallel makes one, without a second device."""
    twin = module._replicate_for_data_parallel()
    for name, child in module._modules.items():
        setattr(twin, name, _replica(child, weights))
    for name, parameter in module._parameters.items():
        setattr(twin, name, weights[parameter])
    return twin


def replicas(scene):
    """What DataParallel does: copies of a step, each in a thread."""
    model = Model()
    optimizer = _adamw(model)
    scene.watch(model, optimizer)
    for ids in batches(scene):
        optimizer.zero_grad()
        outs = []
        for half in ids.chunk(2):
            weights = {p: p.clone() for p in model.parameters()}
            twin = _replica(model, weights)
            # one after the other: else nobody knows which call is which
            worker = threading.Thread(
                target=lambda *call: outs.append(call[0](call[1])),
                args=(twin, half),
            )
            worker.start()
            worker.join()
        loss = loss_of(torch.cat(outs), ids)
        loss.backward()
        optimizer.step()
        scene.loss(loss)
    scene.end(model.parameters())


def several_optimizers(scene):
    """The first that is given ends the iterations."""
    model = Model()
    head = list(model.head.parameters())
    body = [p for p in model.parameters() if all(p is not q for q in head)]
    first = torch.optim.SGD(body, lr=1e-2, momentum=0.9)
    second = torch.optim.AdamW(head, lr=1e-2)
    scene.watch(model, first)
    for ids in batches(scene):
        loss = loss_of(model(ids), ids)
        loss.backward()
        for optimizer in (first, second):
            optimizer.step()
        for optimizer in (first, second):
            optimizer.zero_grad()
        scene.loss(loss)
    scene.end(model.parameters())
