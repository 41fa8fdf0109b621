"""The gradient of an input as far as it comes through one module.

A hook on an input tensor sees all that flows into it, also what comes round
the module on a residual path. The module's own share arrives at the edges of
the graph that lead from its output to its input. They are looked up when the
forward pass of the module has ended, and hooks on their nodes see what they
bring. Nothing is added to the graph, so no sum changes its order.

Where that cannot be told - too many nodes between, an output that is the
input - the total is recorded, as it is for modules with modules in them.
"""

import torch

from .tensors import LABEL

EXACT = LABEL["exact"]
TOTAL = LABEL["total"]

MAX_NODES = 64  # between output and input; a usual layer has some five


def edges_of(tensors):
    """Where the gradients of a call's inputs go: a dict (node, number) ->
    (position, path), and a list of the (position, path, tensor) that have no
    edge of their own."""
    edges, others = {}, []
    for at, (path, tensor) in enumerate(tensors):
        if not tensor.requires_grad:
            continue
        # a sum of sharded gradients would be a collective
        if tensor.is_leaf or type(tensor) is not torch.Tensor:
            others.append((at, path, tensor))
            continue
        # of a tensor that is there twice the shares are not to be told apart
        edges.setdefault((tensor.grad_fn, tensor.output_nr), (at, path))
    return edges, others


def place(edges, outputs, arrive):
    """Puts hooks where the shares come by.

    arrive(position, path, label, gradient) is called once for each backward
    pass and input whose gradient the outputs depend on."""
    found, through, sure = _find(edges, outputs)
    for edge, (at, path) in edges.items():
        if not sure or edge in through:
            node, number = edge
            node.register_prehook(_Total(number, at, path, arrive))
        elif edge in found:
            share = _Share(len(found[edge]), at, path, arrive)
            for node, place_of in found[edge]:
                node.register_hook(_Edge(place_of, share))


def _find(edges, outputs):
    """The edges of nodes below the outputs that lead to inputs: a dict
    edge -> list of (node, place among its inputs); the set of inputs that are
    outputs; and whether all were seen."""
    found, through, seen, left = {}, set(), set(), []
    for _, tensor in outputs:
        if not tensor.requires_grad or tensor.is_leaf:
            continue
        edge = (tensor.grad_fn, tensor.output_nr)
        if edge in edges:
            through.add(edge)
        else:
            left.append(edge[0])
    while left:
        node = left.pop()
        if node in seen:
            continue
        if len(seen) >= MAX_NODES:
            return found, through, False
        seen.add(node)
        for at, edge in enumerate(node.next_functions):
            if edge in edges:
                found.setdefault(edge, []).append((node, at))
            elif edge[0] is not None:
                left.append(edge[0])
    return found, through, True


class _Total:
    """On the node that an input came from: all that flows into it."""

    __slots__ = ("arrive", "at", "number", "path")

    def __init__(self, number, at, path, arrive):
        self.number = number
        self.at = at
        self.path = path
        self.arrive = arrive

    def __call__(self, gradients):
        self.arrive(self.at, self.path, TOTAL, gradients[self.number])


class _Edge:
    """On a node inside the module: what it sends to an input."""

    __slots__ = ("place", "share")

    def __init__(self, place_of, share):
        self.place = place_of
        self.share = share

    def __call__(self, sent, received):
        self.share.add(sent[self.place])


class _Share:
    """Adds up what the edges of one input bring."""

    __slots__ = ("arrive", "at", "edges", "parts", "path")

    def __init__(self, edges, at, path, arrive):
        self.edges = edges
        self.at = at
        self.path = path
        self.arrive = arrive
        self.parts = []

    def add(self, gradient):
        if self.edges == 1:
            self.arrive(self.at, self.path, EXACT, gradient)
            return
        # a copy: autograd adds to a gradient in place if nobody holds it
        if gradient is not None:
            gradient = gradient.detach().clone()
        self.parts.append(gradient)
        if len(self.parts) < self.edges:
            return
        parts, self.parts = self.parts, []
        self.arrive(self.at, self.path, EXACT, _sum(parts))


def _sum(parts):
    """In the order in which they came, as autograd adds."""
    total = None
    with torch.no_grad():
        for part in parts:
            if part is not None:
                total = part if total is None else total + part
    return total
