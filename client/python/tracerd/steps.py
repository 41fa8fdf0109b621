"""Iterations: who counts them, and what is recorded at the end of each.

An iteration ends with the step of one optimizer, seen by torch's own step
hooks, or with a call by hand. Others that hold parameters of the model step
before or after it: what they find is recorded at their own step.
"""

import functools
import gc
import sys
import weakref

import torch
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from . import _tracerd, scalers, states, zero
from .hooks import Inert
from .names import Object
from .process import failed, unseen, warn
from .tensors import LABEL

FINAL = LABEL["final"]
LOCAL = LABEL["local"]
SHARD = LABEL["shard"]
SCALED = LABEL["scaled"]
SKIPPED = LABEL["skipped"]
GRAD = _tracerd.PASSES["grad"] * 4
PARAM = _tracerd.PASSES["param"] * 4
USER = _tracerd.PASSES["user"] * 4
OPTIM = _tracerd.PASSES["optim"] * 4

STRANGE = 4  # steps of an optimizer that is not the model's: tell of them

graph_task = torch._C._current_graph_task_id


def collectives():
    """Changes with each collective of torch.distributed: those write to
    tensors without telling their version. -1 where that is not known."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized():
        return 0
    try:
        return sum(
            group._get_sequence_number_for_group()
            for group in list(c10d._world.pg_map)
        )
    except Exception:
        return -1


def _unseen(method):
    """As the hooks: see process.unseen()."""

    @functools.wraps(method)
    def call(*args):
        with unseen():
            return method(*args)

    return call


class _When:
    """Gradients of parameters belong to an iteration as a whole; local ones
    to a micro-batch of it."""

    __slots__ = ("iteration", "microbatch", "step")

    def __init__(self, iteration, microbatch=0):
        self.step = self.iteration = iteration
        self.microbatch = microbatch


class LocalHook(Inert):
    """On a parameter: what one backward pass of this rank brings, before it
    is added to others and before ranks exchange theirs."""

    __slots__ = ("path", "recorder", "thing")

    def __init__(self, recorder, thing, path):
        self.recorder = recorder
        self.thing = thing
        self.path = path

    def __call__(self, grad):
        recorder = self.recorder
        if grad is None or not recorder.active or recorder.closed:
            return
        try:
            with unseen():
                recorder.put_once(
                    _site(recorder, self.thing, GRAD, self.path),
                    _When(recorder.iteration, recorder.microbatch),
                    LOCAL | recorder.gradient_labels, grad,
                )
        except Exception as error:
            failed(recorder, error)


class Steps:
    """Counts the iterations of one Recorder."""

    def __init__(self, recorder, tree, options, optimizer, others=()):
        """optimizer: the one that counts, or None for the first that holds
        a parameter of the model. others: that step, too."""
        self.recorder = recorder
        self.tree = tree
        self.schedule = options.schedule
        self.passes = options.passes
        self.by_hand = False
        self._optimizer_records = True
        self._given = optimizer is not None
        self._chosen = weakref.ref(optimizer) if self._given else None
        self._holders = weakref.WeakKeyDictionary()  # optimizer -> is ours
        self._turns = tree.turns
        self._counted = 0  # iterations that the optimizer ended
        self._passes = 0  # of the model before the latest step of another's
        self._strange = 0  # such steps, each after another pass
        self._owed = -1  # backward pass within which one has ended, or -1
        # iteration -> ids of the parameters whose gradients are recorded,
        # and ids below zero of those whose values are
        self._done = {}
        self._stepped = False
        self._scale = Object("", 0, "")
        self._scaled_at = 0  # iteration whose scale is recorded
        self._zero = self._given and zero.is_one(optimizer)
        if self._zero:
            self._handles = zero.handles(
                optimizer, self.before, self.found, self.after
            )
        elif self._given and not self.passes & {"grad", "param", "optim"}:
            self._handles = [  # what others do is of no matter
                optimizer.register_step_pre_hook(self.before),
                optimizer.register_step_post_hook(self.after),
            ]
        else:
            self._handles = [
                register_optimizer_step_pre_hook(self.before),
                register_optimizer_step_post_hook(self.after),
            ]
        self._hooks = []  # on parameters
        self._bare = []  # on those that had none, nor a place for one
        scalers.watch(self)
        tree.before_pass = self.before_pass
        self._hook_parameters()
        for other in others:
            self._is_ours(other)

    def _hook_parameters(self):
        if "local" not in self.passes:
            return
        for handles in (self._hooks, self._bare):
            handles[:] = [h for h in handles if h.hooks_dict_ref() is not None]
        for path, thing, parameter in self.parameters():
            if not thing.wanted or not parameter.requires_grad:
                continue
            if is_lazy(parameter):
                self._turns = -1  # looked at again until it has a shape
                continue
            hook = self._hook_on(parameter)
            if hook is None:
                hook = LocalHook(self.recorder, thing, path)
                bare = parameter._backward_hooks is None
                handle = parameter.register_hook(hook)
                # of the parameter there may be no weak reference: it is not
                # to be swapped then
                (self._bare if bare else self._hooks).append(handle)
            hook.thing, hook.path = thing, path  # its module may have moved

    def _hook_on(self, parameter):
        for hook in (parameter._backward_hooks or {}).values():
            if isinstance(hook, LocalHook) and hook.recorder is self.recorder:
                return hook
        return None

    # ---- hooks of optimizers ----

    @_unseen
    def before(self, optimizer, args, kwargs):
        try:
            if self.recorder.closed:
                return
            counts = self._counts(optimizer)
            if counts:
                self._stepped = True
                self._pay_debt()
                if self._zero:
                    self._record_scale(zero.scale_of(optimizer))
            elif not self._is_ours(optimizer):
                self._step_of_another()
                return
            self._look()
            if (
                self._optimizer_records and _closure(args, kwargs) is None
                and not (self._zero and zero.tells(optimizer))
            ):
                self._record_of(optimizer, counts)
        except Exception as error:
            failed(self.recorder, error)

    def _step_of_another(self):
        """Some optimizers hold copies of the parameters, and nothing says
        whose they are."""
        passes = self.recorder.microbatch
        if self._counted or self.by_hand or passes <= self._passes:
            return
        self._passes = passes
        self._strange += 1
        if self._strange == STRANGE:
            warn(
                "no iteration has ended, though an optimizer has stepped "
                f"{STRANGE} times between passes of the model: it holds none "
                "of its parameters. Give attach() the optimizer, or call "
                "step() of what it returned"
            )

    @_unseen
    def found(self, optimizer, overflow):
        """One of DeepSpeed's has looked at its gradients; overflow: some
        are not finite, and it leaves the step out."""
        try:
            if self._optimizer_records and not self.recorder.closed:
                self._record_of(optimizer, True, SKIPPED if overflow else None)
        except Exception as error:
            failed(self.recorder, error)

    @_unseen
    def after(self, optimizer, args, kwargs):
        try:
            if self.recorder.closed:
                return
            counts = self._counts(optimizer)
            if not counts and not self._is_ours(optimizer):
                return
            # a closure computes the gradients within the step
            if self._optimizer_records and (
                self._zero or _closure(args, kwargs) is not None
            ):
                self._record_of(optimizer, counts)
            if "optim" in self.passes:
                self._record_states(optimizer, counts)
            if counts and not self.by_hand:
                self._owed = graph_task()
                if self._owed == -1:
                    self._advance()
        except Exception as error:
            failed(self.recorder, error)

    @_unseen
    def before_pass(self):
        """A forward pass of a root begins."""
        if self._owed != -1 and graph_task() == -1:
            self._pay_debt()
        self._look()

    def _pay_debt(self):
        """An optimizer that steps within the backward pass ends the
        iteration when that pass has ended: what is left of it belongs to
        the iteration, too."""
        if self._owed != -1 and graph_task() != self._owed:
            self._owed = -1
            self._advance()

    def _look(self):
        tree = self.tree
        if tree.stale or (not self.recorder.microbatch and tree.moved()):
            tree.follow()
        if self._turns != tree.turns:
            self._turns = tree.turns
            self._holders.clear()
            self._hook_parameters()

    def _counts(self, optimizer):
        if self.recorder.closed:
            return False
        chosen = self._chosen() if self._chosen is not None else None
        if chosen is None and not self._given:
            if not self._is_ours(optimizer):
                return False
            self._chosen = weakref.ref(optimizer)
            chosen = optimizer
        return chosen is optimizer

    def _is_ours(self, optimizer):
        """Whether it holds a parameter of the model."""
        known = self._holders.get(optimizer)
        if known is None:
            held = _held(optimizer)
            known = any(id(p) in held for _, _, p in self.parameters())
            self._holders[optimizer] = known
        return known

    # ---- hooks of a gradient scaler; they raise nothing ----

    def scales(self):
        self.recorder.gradient_labels = SCALED

    def unscales(self, optimizer):
        try:
            self._is_ours(optimizer)
        except Exception as error:
            failed(self.recorder, error, 0)

    @_unseen
    def scaler_begins(self, scaler, optimizer):
        try:
            self._stepped = False
            if self._counts(optimizer):
                self._record_scale(getattr(scaler, "_scale", None))
        except Exception as error:
            failed(self.recorder, error)

    @_unseen
    def scaler_ended(self, optimizer):
        try:
            if self._stepped or not self._counts(optimizer):
                return
            self._stepped = True  # of two scalers, one in the other
            if self._optimizer_records:
                self._record_of(optimizer, True, SKIPPED)
            if not self.by_hand:
                self._advance()
        except Exception as error:
            failed(self.recorder, error)

    def _record_scale(self, scale):
        """The scale of this iteration's gradients; of one on a device
        nothing waits for it."""
        recorder, iteration = self.recorder, self.recorder.iteration
        if isinstance(scale, float):
            if scale == 1:
                return
            scale = torch.tensor(scale, dtype=torch.float32, device="cpu")
            recorder.gradient_labels = SCALED
        if (
            scale is None or self._scaled_at == iteration
            or not self.passes & {"backward", "grad", "local"}
        ):
            return
        self._scaled_at = iteration
        when = _When(iteration)
        when.step = next(self._scale.count)
        if recorder.active:
            site = _site(recorder, self._scale, USER, "grad_scale")
            recorder.put_once(site, when, 0, scale)

    # ---- by hand ----

    def step(self):
        """The end of an iteration. From the first call on the optimizer
        counts no more."""
        if not self.by_hand:
            self.by_hand = True
            if self._counted:
                return  # the optimizer has just ended this very iteration
            # it comes first and sees the gradients; what an optimizer does
            # afterwards would be taken for the next iteration's
            self._optimizer_records = False
        self._look()
        self._record(FINAL, self.recorder.iteration, None, frozenset())
        self._advance()

    def _advance(self):
        self._counted += 1
        recorder = self.recorder
        for old in [i for i in self._done if i < recorder.iteration]:
            del self._done[old]
        recorder.advance()
        recorder.connection.look_for_losses()
        if self._counted <= 2:
            self.tree.look_for_compile()

    # ---- records ----

    def parameters(self):
        """(path, Object, parameter), a shared one once, as the model stands
        now: wrappers replace parameters after attach()."""
        seen = set()
        for module, thing in self.tree.owners:
            module = module()
            if module is None:
                continue
            for name, parameter in list(module._parameters.items()):
                if parameter is None or parameter in seen:
                    continue
                seen.add(parameter)
                path = f"{thing.path}.{name}" if thing.path else name
                yield path, thing, parameter

    def _iteration_of(self, counts):
        """The iteration that a step belongs to: of an optimizer that does
        not count the one just ended, where no forward pass came between."""
        recorder = self.recorder
        late = not counts and self._counted and not recorder.microbatch
        return recorder.iteration - 1 if late else recorder.iteration

    def _is_active(self, iteration):
        if iteration == self.recorder.iteration:
            return self.recorder.active
        return self.schedule.wants(iteration)

    def _record_of(self, optimizer, counts, labels=None):
        """What an optimizer finds; of the one that counts also what no other
        holds."""
        iteration = self._iteration_of(counts)
        if not self._is_active(iteration):
            return
        if labels is None:
            labels = FINAL | _unscaled_later(optimizer)
        held = _held(optimizer)
        if not counts:
            self._record(labels, iteration, held, frozenset())
            return
        holders = [o for o, ours in list(self._holders.items()) if ours]
        if not self._counted and not self._has_all(held):
            holders += _living()  # have not stepped yet, but will
        others = set().union(*map(_held, holders))
        self._record(labels, iteration, None, others - held, held)

    def _has_all(self, held):
        return all(id(p) in held for _, _, p in self.parameters())

    def _record(self, labels, iteration, only, without, own=frozenset()):
        """Gradients (and values) of parameters, of each once an iteration.

        only: ids of those that are meant, None for all; without: of those
        that are not; own: of those that a gradient scaler has dealt with."""
        recorder = self.recorder
        if not self._is_active(iteration):
            return
        done = self._done.setdefault(iteration, set())
        when = _When(iteration)
        found = {}  # labels -> (sites, tensors)
        grad, param = "grad" in self.passes, "param" in self.passes
        scaled = recorder.gradient_labels & SCALED if own else 0
        for path, thing, parameter in self.parameters():
            key = id(parameter)
            if (
                not thing.wanted or key in without
                or (only is not None and key not in only)
            ):
                continue
            gradient = None
            if grad and key not in done:
                gradient = _gradient(parameter)
                if gradient is None and self._zero:
                    gradient = zero.gradient_of(parameter)
            if gradient is not None:
                done.add(key)
                said = labels | (0 if key in own else scaled)
                if gradient is not parameter.grad and self._zero:
                    said |= SHARD
                to = found.setdefault(said, ([], []))
                to[0].append(_site(recorder, thing, GRAD, path))
                to[1].append((path, gradient))
            if param and -key not in done:
                done.add(-key)
                to = found.setdefault(0, ([], []))
                to[0].append(_site(recorder, thing, PARAM, path))
                to[1].append((path, parameter))
        for said, (sites, tensors) in found.items():
            recorder.put_list(sites, when, said, tensors, False)

    def _record_states(self, optimizer, counts):
        iteration = self._iteration_of(counts)
        if not self._is_active(iteration):
            return
        if self._zero and counts:
            optimizer = optimizer.optimizer
        owners = {id(p): (path, t) for path, t, p in self.parameters()}
        found = list(states.states_of(optimizer, owners))
        sites = [
            _site(self.recorder, thing or self._scale, OPTIM, path)
            for path, thing, _ in found
        ]
        self.recorder.put_list(
            sites, _When(iteration), 0, [(p, t) for p, _, t in found], False
        )

    def close(self):
        scalers.unwatch(self)
        for handle in self._handles + self._hooks + self._bare:
            handle.remove()
        bare = {id(h.hooks_dict_ref()) for h in self._bare}
        self._handles, self._hooks, self._bare = [], [], []
        # Where a backward pass may be under way the empty dict stays: with
        # None torch would free what that pass is looking at.
        if not bare or not _alone():
            return
        for _, _, parameter in self.parameters():
            hooks = parameter._backward_hooks
            if hooks is not None and not hooks and id(hooks) in bare:
                parameter._backward_hooks = None  # as before the first hook


def _alone():
    """Whether no thread of Python's, this one neither, can be in a backward
    pass."""
    return len(sys._current_frames()) == 1 and graph_task() == -1


def _held(optimizer):
    """Ids of the parameters of an optimizer."""
    return {id(p) for g in optimizer.param_groups for p in g["params"]}


def _living():
    """The optimizers of this process; torch keeps no list of them."""
    return [
        o for o in gc.get_objects()
        if issubclass(type(o), torch.optim.Optimizer)
        and hasattr(o, "param_groups")
    ]


def _site(recorder, thing, slot, path):
    site = thing.sites.get((slot, 0, path))
    return site or recorder.site(thing, slot, 0, path)


def _closure(args, kwargs):
    return args[1] if len(args) > 1 else kwargs.get("closure")


def _unscaled_later(optimizer):
    """Fused optimizers divide by the scale themselves."""
    return SCALED if getattr(optimizer, "grad_scale", None) is not None else 0


def _gradient(parameter):
    # Megatron adds up in a buffer of its own; .grad is then a placeholder
    if getattr(parameter, "grad_added_to_main_grad", False):
        return getattr(parameter, "main_grad", parameter.grad)
    gradient = parameter.grad
    if gradient is None:
        gradient = getattr(parameter, "main_grad", None)
    return gradient
