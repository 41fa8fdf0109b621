"""Trainings of libraries beside torch; see framework_script.py.

Random weights from a configuration, nothing is fetched. Each function
imports what it needs, so a library that is not there skips its own only.
"""

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


def accelerate(scene):
    """Gradient accumulation, with what prepare() makes of the parts."""
    from accelerate import Accelerator

    agent = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = _gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = [(torch.arange(i, i + LENGTH) % WORDS) for i in range(12)]
    loader = torch.utils.data.DataLoader(rows, batch_size=2)
    model, optimizer, loader = agent.prepare(model, optimizer, loader)
    scene.watch(model, optimizer)
    for ids in loader:
        with agent.accumulate(model):
            loss = model(input_ids=ids, labels=ids).loss
            agent.backward(loss)
            agent.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scene.loss(loss)
    scene.end(model.parameters())


def lightning(scene):
    """Attached where the Trainer has set everything up."""
    import lightning

    from frameworks_torch import Model, batches, loss_of

    class Trained(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Model()

        def training_step(self, ids, at):
            loss = loss_of(self.net(ids), ids)
            scene.loss(loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

        def on_train_start(self):
            scene.watch(self, self.optimizers())

    module = Trained()
    folder = tempfile.mkdtemp()
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_steps=3, default_root_dir=folder,
        accumulate_grad_batches=2, gradient_clip_val=1.0, logger=False,
        enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(
        list(batches(scene, 6)), batch_size=None
    )
    trainer.fit(module, loader)
    scene.end(module.parameters())
    shutil.rmtree(folder)
