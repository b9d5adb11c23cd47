"""Trains a small convolutional network on scikit-learn's handwritten digits, on one process or many hosts.

The same file runs as `python train.py` and under torchrun, which `trainbox` starts for it. It keeps to CPUs:
the network is too small for an accelerator to help.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# Set by torchrun for every process; a script that was started by hand is rank 0 of 1.
RANK = int(os.environ.get("RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))


def parse_arguments() -> argparse.Namespace:
    """Hyperparameters arrive as --name value."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--epochs", type=int, default=6, help="how often every training image is seen")
    add("--batch-size", type=int, default=32, help="images a step, over all processes together")
    add("--learning-rate", type=float, default=0.02, help="of Adam, at its highest: it ends at zero")
    add("--seed", type=int, default=1, help="of the initial weights and the order of images")
    add("--min-accuracy", type=float, default=0.95, help="share of test images; the job fails below it")
    arguments = parser.parse_args()
    if arguments.epochs < 1 or arguments.batch_size < WORLD_SIZE:
        parser.error(
            f"--epochs must be at least 1 and --batch-size at least {WORLD_SIZE}, one image a process"
        )
    return arguments


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Training and test images: 1,437 and 360 of 8 x 8 pixels. The split is fixed, whatever the seed."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[360:], order[:360]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def build_model() -> nn.Module:
    """Two convolutions and a linear layer, about 10,000 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def total(*values: float) -> list[float]:
    """The sums of the values of all processes: every process gets the same ones."""
    sums = torch.tensor(values, dtype=torch.float64)
    if WORLD_SIZE > 1:
        dist.all_reduce(sums)
    return [float(value) for value in sums]


def say(text: str) -> None:
    """Prints a line, once a job. Flushed, so that it is seen while the job runs."""
    if RANK == 0:
        print(text, flush=True)


class StopRequest:
    """Whether the platform asked the job to end, as it does before it takes a spot machine away."""

    def __init__(self) -> None:
        self.received = False
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, number: int, frame: object) -> None:
        self.received = True

    def agreed(self) -> bool:
        """True on all processes as soon as one was asked: one that left alone would block the others."""
        return total(self.received)[0] > 0


def train(
    model: nn.Module, data: TensorDataset, arguments: argparse.Namespace, stop: StopRequest
) -> list[float]:
    """Trains until the epochs are over or a stop is asked for. Returns the mean loss of each whole epoch."""
    # With one process the sampler is an ordinary shuffle, so both cases take the same way.
    sampler = DistributedSampler(data, num_replicas=WORLD_SIZE, rank=RANK, seed=arguments.seed)
    loader = DataLoader(data, batch_size=arguments.batch_size // WORLD_SIZE, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=arguments.learning_rate, total_steps=arguments.epochs * len(loader)
    )
    losses: list[float] = []
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)  # another order in each epoch, the same on all processes
        loss_sum = images_seen = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()  # DistributedDataParallel averages the gradients of all processes here
            optimizer.step()
            schedule.step()
            loss_sum += loss.item() * len(labels)
            images_seen += len(labels)
            if stop.agreed():
                return losses
        loss_sum, images_seen = total(loss_sum, images_seen)
        losses.append(loss_sum / images_seen)
        say(f"epoch {epoch + 1}/{arguments.epochs}  loss {losses[-1]:.4f}")
    return losses


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Share of images that the model names rightly. Each process looks at its part of them."""
    model.eval()
    images, labels = data[RANK::WORLD_SIZE]
    with torch.no_grad():
        answers = model(images).argmax(dim=1)
    right, seen = total((answers == labels).sum().item(), len(labels))
    return right / seen


def main() -> None:
    arguments = parse_arguments()
    stop = StopRequest()
    if WORLD_SIZE > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(arguments.seed)
    train_data, test_data = load_data()
    say(f"{len(train_data)} training and {len(test_data)} test images, {WORLD_SIZE} process(es)")

    model = build_model()
    losses = train(DistributedDataParallel(model) if WORLD_SIZE > 1 else model, train_data, arguments, stop)
    reached = accuracy(model, test_data)
    stopped = len(losses) < arguments.epochs
    say(f"test accuracy {reached:.2%}" + (" (stopped early, as asked)" if stopped else ""))

    if RANK == 0:
        metrics = {"test_accuracy": reached, "losses": losses, "world_size": WORLD_SIZE, **vars(arguments)}
        folder = Path(os.environ.get("SM_OUTPUT_DATA_DIR", "output"))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    if reached < arguments.min_accuracy and not stopped:  # on all processes alike: none waits for another
        sys.exit(f"test accuracy {reached:.2%} is below {arguments.min_accuracy:.2%}: no model is saved")
    if RANK == 0:
        folder = Path(os.environ.get("SM_MODEL_DIR", "model"))
        folder.mkdir(parents=True, exist_ok=True)
        # The model itself, not its distributed wrapper, whose names of weights fit nothing else.
        torch.save(model.state_dict(), folder / "model.pt")
        say("model saved as model.pt")
    if WORLD_SIZE > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
