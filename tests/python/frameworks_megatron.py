"""Trainings of megatron-core's GPT; see framework_script.py.

Two ranks on the CPU, with its own schedules, wrapper and optimizers.
"""

import torch
from torch import nn

WORDS, LENGTH, BATCH, MICROBATCHES = 64, 8, 2, 4


def _spec(config, **where):
    """Layers of plain torch; the norm knows of sequence parallelism."""
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_layer_local_spec,
    )
    from megatron.core.transformer.transformer_block import (
        TransformerBlockSubmodules,
        get_num_layers_to_build,
    )

    class Norm(nn.LayerNorm):
        def __init__(self, config, hidden_size, eps=1e-5, **more):
            super().__init__(hidden_size, eps)
            for parameter in self.parameters():
                parameter.sequence_parallel = config.sequence_parallel

    layer = get_gpt_layer_local_spec()
    layer.submodules.input_layernorm = Norm
    layer.submodules.pre_mlp_layernorm = Norm
    n = get_num_layers_to_build(config, **where)
    return TransformerBlockSubmodules(
        layer_specs=[layer] * n, layer_norm=Norm
    )


def _forward(batches, model):
    words = next(batches)
    out = model(
        words[:, :-1].contiguous(),
        torch.arange(LENGTH).expand(BATCH, LENGTH),
        torch.ones(1, 1, LENGTH, LENGTH).tril() < 0.5,
        labels=words[:, 1:].contiguous(),
    )

    def loss_of(out):
        loss = out.float().mean()
        return loss, {"loss": loss.detach().clone()}

    return out, loss_of


def _batches(rank):
    g = torch.Generator().manual_seed(100 + rank)
    while True:
        yield torch.randint(0, WORDS, (BATCH, LENGTH + 1), generator=g)


def _gpt(scene, tensor=1, pipeline=1, chunks=1, distributed=False, **options):
    """options: of the TransformerConfig."""
    import framework_cpu

    framework_cpu.pretend()

    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import (
        OptimizerConfig,
        get_megatron_optimizer,
    )
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
    from megatron.core.transformer.transformer_config import TransformerConfig

    many = chunks if chunks > 1 else None
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        virtual_pipeline_model_parallel_size=many,
    )
    model_parallel_cuda_manual_seed(5)
    config = TransformerConfig(
        num_layers=4, hidden_size=16, ffn_hidden_size=32,
        num_attention_heads=2, use_cpu_initialization=True,
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        virtual_pipeline_model_parallel_size=many,
        pipeline_dtype=torch.float32, batch_p2p_comm=False,
        gradient_accumulation_fusion=False, masked_softmax_fusion=False,
        bias_dropout_fusion=False, bias_activation_fusion=False,
        apply_rope_fusion=False, persist_layer_norm=False,
        deallocate_pipeline_outputs=True, **options,
    )
    models = []
    for i in range(chunks):
        where = {"vp_stage": i if many else None}
        ends = {"ignore_virtual": False, **where}
        models.append(
            GPTModel(
                config, _spec(config, **where), WORDS, LENGTH,
                pre_process=parallel_state.is_pipeline_first_stage(**ends),
                post_process=parallel_state.is_pipeline_last_stage(**ends),
                share_embeddings_and_output_weights=True,
                position_embedding_type="rope", **where,
            )
        )
    settings = DistributedDataParallelConfig(
        use_distributed_optimizer=distributed
    )
    models = [DistributedDataParallel(config, settings, m) for m in models]
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam", lr=1e-2, clip_grad=1.0,
            use_distributed_optimizer=distributed,
        ),
        models,
    )
    config.finalize_model_grads_func = finalize_model_grads
    scene.watch(models if many else models[0], optimizer)
    data = [
        _batches(parallel_state.get_data_parallel_rank()) for _ in models
    ]
    run = get_forward_backward_func()
    for _ in range(3):
        for model in models:
            model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = run(
            forward_step_func=_forward,
            data_iterator=data if many else data[0],
            model=models if many else models[0],
            num_microbatches=MICROBATCHES, seq_length=LENGTH,
            micro_batch_size=BATCH, decoder_seq_length=LENGTH,
            forward_only=False,
        )
        optimizer.step()
        for loss in losses:
            scene.loss(loss["loss"])
    scene.end(p for m in models for p in m.parameters())


NO_DROPOUT = {"attention_dropout": 0.0, "hidden_dropout": 0.0}


def megatron_tp2(scene):
    _gpt(scene, tensor=2, **NO_DROPOUT)


def megatron_tp2_sequence(scene):
    _gpt(scene, tensor=2, sequence_parallel=True, **NO_DROPOUT)


def megatron_tp2_recompute(scene):
    """Whole layers again, with the same dropout."""
    _gpt(
        scene, tensor=2, recompute_granularity="full",
        recompute_method="uniform", recompute_num_layers=1,
    )


def megatron_pp2(scene):
    _gpt(scene, pipeline=2, **NO_DROPOUT)


def megatron_pp2_interleaved(scene):
    _gpt(scene, pipeline=2, chunks=2, **NO_DROPOUT)


def megatron_data_parallel(scene):
    """main_grad, of which the optimizer makes .grad."""
    _gpt(scene, **NO_DROPOUT)


def megatron_distributed_optimizer(scene):
    _gpt(scene, distributed=True, **NO_DROPOUT)
