"""Trainings of libraries beside torch; see framework_script.py.

Random weights from a configuration, nothing is fetched. Each function
imports what it needs, so a library that is not there skips its own only.
"""

import os
import shutil
import tempfile

import torch

WORDS, LENGTH = 53, 8


def _language_model(scene, model, n=3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scene.watch(model, optimizer)
    g = torch.Generator().manual_seed(7)
    for _ in range(n):
        ids = torch.randint(1, WORDS, (2, LENGTH), generator=g)
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        scene.loss(loss)
    scene.end(model.parameters())


def _gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=16
        )
    )


def _llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS, hidden_size=16, intermediate_size=32,
            num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=16,
        )
    ).train()


def hf_gpt2(scene):
    _language_model(scene, _gpt2())


def hf_llama(scene):
    _language_model(scene, _llama())


def hf_llama_checkpoint(scene):
    model = _llama()
    model.gradient_checkpointing_enable(
        gradient_checkpointing_kwargs={"use_reentrant": False}
    )
    _language_model(scene, model)


def hf_t5(scene):
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=WORDS, d_model=16, d_kv=8, d_ff=32, num_layers=2,
            num_heads=2, decoder_start_token_id=0, pad_token_id=0,
        )
    )
    _language_model(scene, model.train())


def hf_trainer(scene):
    """The optimizer does not exist yet when a user attaches."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Losses(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **more):
            if "loss" in logs:
                scene.loss(logs["loss"])

    model = _gpt2()
    rows = [(torch.arange(i, i + LENGTH) % WORDS) for i in range(16)]
    folder = tempfile.mkdtemp()
    arguments = TrainingArguments(
        output_dir=folder, max_steps=3, per_device_train_batch_size=2,
        gradient_accumulation_steps=2, logging_steps=1, report_to=[],
        save_strategy="no", use_cpu=True, seed=7, disable_tqdm=True,
        learning_rate=1e-2,
    )
    trainer = Trainer(
        model=model, args=arguments,
        train_dataset=[{"input_ids": r, "labels": r} for r in rows],
        callbacks=[Losses()],
    )
    scene.watch(model)
    trainer.train()
    scene.end(model.parameters())
    shutil.rmtree(folder)


def _deepspeed(scene, stage):
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.setdefault("LOCAL_SIZE", str(scene.ranks))
    import deepspeed

    # its operator for shared memory would be compiled for minutes
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    model = _llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
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
    # stage 3 has hooks of its own that change what passes between modules
    scene.watch(engine, optimizer, witness=stage < 3)
    g = torch.Generator().manual_seed(7 + scene.rank)
    for _ in range(6):
        ids = torch.randint(1, WORDS, (2, LENGTH), generator=g)
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        scene.loss(loss)
    if stage < 3:
        scene.end(engine.module.parameters())
    else:
        with deepspeed.zero.GatheredParameters(list(model.parameters())):
            scene.end(list(model.parameters()))


def deepspeed_zero1(scene):
    _deepspeed(scene, 1)


def deepspeed_zero2(scene):
    _deepspeed(scene, 2)


def deepspeed_zero3(scene):
    _deepspeed(scene, 3)
