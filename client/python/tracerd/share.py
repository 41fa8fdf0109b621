"""The gradient of an input as far as it comes through one module.

A hook on an input tensor sees all that flows into it, also what comes round
the module on a residual path. The module's own share arrives at the edges of
the graph that lead from its output to its input. They are looked up when the
forward pass of the module has ended, and hooks on their nodes see what they
bring. Nothing is added to the graph, so no sum changes its order.

Where that cannot be told - too many nodes between, an output that is the
input - the total is recorded, as it is for modules with modules in them.

walk.c does the looking up; here the parts of one input are added up.
"""

import torch


def several(places, arrive):
    """Hooks on nodes inside the module that all lead to one input.

    places: list of (node, which of the gradients it sends on).
    arrive(gradient) is called with their sum, once for each backward pass.
    """
    share = _Share(len(places), arrive)
    for node, place in places:
        node.register_hook(_Edge(place, share))


class _Edge:
    """On a node inside the module: what it sends to an input."""

    __slots__ = ("place", "share")

    def __init__(self, place, share):
        self.place = place
        self.share = share

    def __call__(self, sent, received):
        self.share.add(sent[self.place])


class _Share:
    """Adds up what the edges of one input bring."""

    __slots__ = ("arrive", "edges", "parts")

    def __init__(self, edges, arrive):
        self.edges = edges
        self.arrive = arrive
        self.parts = []

    def add(self, gradient):
        # a copy: autograd adds to a gradient in place if nobody holds it
        if gradient is not None:
            gradient = gradient.detach().clone()
        self.parts.append(gradient)
        if len(self.parts) < self.edges:
            return
        parts, self.parts = self.parts, []
        self.arrive(_sum(parts))


def _sum(parts):
    """In the order in which they came, as autograd adds."""
    total = None
    with torch.no_grad():
        for part in parts:
            if part is not None:
                total = part if total is None else total + part
    return total
