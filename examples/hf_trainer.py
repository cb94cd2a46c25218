"""Hugging Face's Trainer: a loss of three lines, and what it saves answers alike at every width."""

import torch
from safetensors.torch import load_model
from torch import nn
from transformers import Trainer, TrainingArguments

import vnd


class NestedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        logits, num_data = model(inputs["pixels"]), len(self.train_dataset)
        loss = nn.functional.cross_entropy(logits, inputs["labels"]) + 1e-3 / num_data * vnd.kl(model)
        return (loss, {"logits": logits}) if return_outputs else loss


def main(steps: int = 400) -> None:
    images = [vnd.data.load("fashion", split) for split in ("train", "test")]
    (x, y), (test, labels) = ((torch.tensor(i.pixels) / 255, torch.tensor(i.labels)) for i in images)
    first, second = ([nn.Conv2d(a, b, 3, 2), nn.BatchNorm2d(b), nn.ReLU()] for a, b in ((1, 32), (32, 64)))
    plain = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64 * 6 * 6, 10))
    net, again = (vnd.to_nested(plain, x[:2], num_groups=16, temperature=1.0) for _ in range(2))
    options = {"report_to": "none", "use_cpu": True, "remove_unused_columns": False}
    args = TrainingArguments("hf", max_steps=steps, per_device_train_batch_size=128, save_strategy="no", **options)
    optimizer = torch.optim.Adam(vnd.parameter_groups(net, lr=1e-3, chain_lr=0.03))
    data = [{"pixels": pixels, "labels": label} for pixels, label in zip(x, y, strict=True)]
    trainer = NestedTrainer(net, args, train_dataset=data, optimizers=(optimizer, None))
    trainer.train()
    vnd.recalibrate(net, [x[:1024]], widths=(0.25, 0.5, 1.0))
    trainer.save_model("hf")
    load_model(again, "hf/model.safetensors")
    for width in (0.25, 0.5, 1.0):
        a, b = (vnd.predict(n.eval(), test, width, samples=0).probs for n in (net, again))
        print(f"width {width:4.0%}: accuracy {vnd.metrics.accuracy(a, labels):.3f}, reloaded the same: {a.equal(b)}")


if __name__ == "__main__":
    main()
