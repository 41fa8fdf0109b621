"""Trainings of DeepSpeed on the CPU; see framework_script.py."""

import os

import torch
from torch import nn

from frameworks_more import LENGTH, WORDS, _llama
from frameworks_torch import WIDTH, Block, loss_of


def _start(scene):
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.setdefault("LOCAL_SIZE", str(scene.ranks))
    import deepspeed

    # its operator for shared memory would be compiled for minutes
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    return deepspeed


def _gradients(model):
    """(path, this rank's part of the gradient), as DeepSpeed tells it."""
    from deepspeed.utils import safe_get_full_grad, safe_get_local_grad

    for path, parameter in model.named_parameters():
        if hasattr(parameter, "ds_id"):
            yield path, safe_get_local_grad(parameter)
            continue
        whole = safe_get_full_grad(parameter).flatten()
        mine = parameter._hp_mapping
        if mine is not None:
            at = mine.lp_fragment_address
            yield path, whole[at.start : at.start + at.numel]


def _zero(scene, stage, groups=1, bad=()):
    """bad: batches whose gradients are not finite."""
    deepspeed = _start(scene)
    model = _llama()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": parameters[i::groups]} for i in range(groups)], lr=1e-2
    )
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, optimizer=optimizer,
        config={
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 2,
            "zero_optimization": {
                "stage": stage, "reduce_bucket_size": 20000,
                "stage3_param_persistence_threshold": 10,
                "stage3_max_live_parameters": 30000,
                "stage3_prefetch_bucket_size": 10000,
            },
            "zero_allow_untested_optimizer": True,
        },
    )
    scene.watch(engine, optimizer, gradients=False)
    g = torch.Generator().manual_seed(7 + scene.rank)
    for at in range(6):
        ids = torch.randint(1, WORDS, (2, LENGTH), generator=g)
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss * float("inf") if at in bad else loss)
        if at % 2 and scene.witnesses:
            scene.gradients(list(_gradients(model)))
        engine.step()
        scene.loss(loss)
    if stage < 3:
        scene.end(engine.module.parameters())
    else:
        with deepspeed.zero.GatheredParameters(list(model.parameters())):
            scene.end(list(model.parameters()))


def deepspeed_zero1(scene):
    _zero(scene, 1)


def deepspeed_zero2(scene):
    """It leaves out a step for what is not finite."""
    _zero(scene, 2, bad=(3,))


def deepspeed_zero3(scene):
    _zero(scene, 3, bad=(3,))


def deepspeed_groups(scene):
    """Two groups of parameters: the inner optimizer steps twice."""
    _zero(scene, 1, groups=2)


def deepspeed_pipeline(scene):
    """Its own schedule, two stages and two micro-batches."""
    deepspeed = _start(scene)
    from deepspeed.pipe import PipelineModule

    model = PipelineModule(
        [nn.Embedding(WORDS, WIDTH), Block(), Block(),
         nn.Linear(WIDTH, WORDS)],
        num_stages=2, loss_fn=loss_of, partition_method="uniform",
        activation_checkpoint_interval=0,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, optimizer=optimizer,
        config={
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 2,
            "zero_allow_untested_optimizer": True,
        },
    )
    scene.watch(engine, optimizer)
    g = torch.Generator().manual_seed(7)
    batches = [torch.randint(0, WORDS, (2, LENGTH), generator=g)
               for _ in range(6)]
    data = iter([(ids, ids) for ids in batches])
    for _ in range(3):
        scene.loss(engine.train_batch(data_iter=data))
    scene.end(engine.module.parameters())
