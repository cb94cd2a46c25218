"""Lightning: four lines make a LightningModule nested, and its checkpoint answers alike at every width."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import vnd


class Nested(lightning.LightningModule):
    def __init__(self, num_data: int) -> None:
        super().__init__()
        first, second = ([nn.Conv2d(a, b, 3, 2), nn.BatchNorm2d(b), nn.ReLU()] for a, b in ((1, 32), (32, 64)))
        plain = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64 * 6 * 6, 10))
        self.net, self.num_data = vnd.to_nested(plain, torch.rand(2, 1, 28, 28), num_groups=16), num_data

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        vnd.set_temperature(self.net, 1.0)
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1]) + 1e-3 / self.num_data * vnd.kl(self.net)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(vnd.parameter_groups(self.net, lr=1e-3, chain_lr=0.03))


def main(steps: int = 400) -> None:
    images = [vnd.data.load("fashion", split) for split in ("train", "test")]
    (x, y), (test, labels) = ((torch.tensor(i.pixels) / 255, torch.tensor(i.labels)) for i in images)
    trainer = lightning.Trainer(accelerator="cpu", max_steps=steps, logger=False, enable_checkpointing=False)
    trainer.fit(module := Nested(len(x)), DataLoader(TensorDataset(x, y), 128, shuffle=True))
    vnd.recalibrate(module.net, [x[:1024]], widths=(0.25, 0.5, 1.0))
    trainer.save_checkpoint("lightning.ckpt")
    again = Nested.load_from_checkpoint("lightning.ckpt", num_data=len(x), weights_only=True)
    for width in (0.25, 0.5, 1.0):
        a, b = (vnd.predict(m.net.eval(), test, width, samples=0).probs for m in (module, again))
        print(f"width {width:4.0%}: accuracy {vnd.metrics.accuracy(a, labels):.3f}, reloaded the same: {a.equal(b)}")


if __name__ == "__main__":
    main()
