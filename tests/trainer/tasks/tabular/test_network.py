"""Networks of tables: what is done with raw rows inside of them, and which architectures there are."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from contracts.config import ModelSection
from contracts.errors import ModelError
from tests.trainer.tasks.tabular.tables import category, column, manifest, numbers, table_task, target
from trainer.tasks.protocol import Mode
from trainer.tasks.tabular.inputs import TableInputs
from trainer.tasks.tabular.network import TableNetwork, build_network


class Seen(nn.Module):
    """Returns what an architecture is given."""

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return torch.cat([one.float() for one in given], dim=1)


def inputs_of(**fields: Any) -> TableInputs:
    return TableInputs.of(manifest(**fields), task="tabular_classification")


def test_rows_are_imputed_and_normalised_by_the_training_split() -> None:
    columns = [column("a", mean=2.0, std=4.0), column("b", mean=3.0, std=0.0), column("c", mean=None, std=None)]
    network = TableNetwork(inputs_of(a=numbers(*columns)), Seen())
    given = torch.tensor([[6.0, 3.0, math.nan], [math.nan, math.nan, math.nan], [2.0, 9.0, 1e6]])
    # A column that had one value, or none, is 0 whatever it holds later: its weights have never learnt.
    assert network(given).tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert sorted(network.state_dict()) == ["mean", "scale"], "buffers of checkpoints and of the export"


def test_categories_are_kept_within_the_vocabulary() -> None:
    network = TableNetwork(inputs_of(town=category("Oslo", "Ulm"), job=category("cook")), Seen())
    given = torch.tensor([[2, 1], [0, 0], [3, 2], [-1, 2**62]])
    assert network(given).tolist() == [[2, 1], [0, 0], [0, 0], [0, 0]], "beyond it is what is unseen"


def test_values_are_in_the_unit_of_the_target() -> None:
    task = table_task("tabular_regression", manifest(target(mean=1000.0, std=50.0), a=numbers(column())))
    network = task.build_model()
    nn.init.zeros_(network.body.head.weight)
    nn.init.constant_(network.body.head.bias, 2.0)
    values = network(torch.tensor([[0.0], [1.0], [math.nan]]))
    assert values.tolist() == [1100.0] * 3
    batch = {"label": torch.tensor([1000.0, 1100.0, 1200.0], dtype=torch.float64)}
    loss, count = task.loss(values, batch, Mode(training=True))
    assert (loss.item(), count) == (8.0, 3), "squares of deviations"
    with torch.autocast("cpu", torch.bfloat16):
        nn.init.constant_(network.body.head.bias, 0.001)
        assert network(torch.zeros(1, 1)).item() == pytest.approx(1000.05, abs=1e-3), "bf16 knows no 1000.05"


FIELDS = {
    "both": {"a": numbers(column("a"), column("b")), "town": category("Oslo", "Ulm"), "job": category("cook")},
    "numbers": {"a": numbers(column("a"), column("b"))},
    "categories": {"town": category("Oslo", "Ulm"), "job": category("cook")},
}


@pytest.mark.parametrize("architecture", ["mlp", "table_transformer"])
@pytest.mark.parametrize("fields", FIELDS)
def test_networks_learn_from_every_column(architecture: str, fields: str) -> None:
    shards = manifest(**FIELDS[fields])
    task = table_task("tabular_classification", shards, model={"architecture": architecture})
    torch.manual_seed(0)
    network = task.build_model().eval()
    base = task.example(1)
    given = {"numbers": torch.ones(1, 2), "categories": torch.ones(1, 2, dtype=torch.int64)}
    inputs = [given[name] for name in task.signature.inputs]
    outputs = network(*inputs)
    assert outputs.shape == (1, 2)
    for place, tensor in enumerate(inputs):
        for at in range(2):
            other = tensor.clone()
            other[0, at] = 0
            changed = network(*[other if n == place else one for n, one in enumerate(inputs)])
            assert not torch.equal(changed, outputs), f"{fields}: {place}, {at}"
    loss, _ = task.loss(network(*[base[name] for name in task.signature.inputs]), base, Mode(training=True))
    loss.backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_a_row_does_not_depend_on_its_batch() -> None:
    task = table_task("tabular_classification", manifest(**FIELDS["both"]), model={"architecture": "table_transformer"})
    network = task.build_model().eval()
    given = torch.randn(5, 2), torch.randint(0, 2, (5, 2))
    together = network(*given)
    alone = torch.cat([network(*(one[at : at + 1] for one in given)) for at in range(5)])
    np.testing.assert_allclose(together.detach(), alone.detach(), atol=1e-6)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"architecture": "resnet"}, "'resnet' is no network for tables.*mlp, table_transformer, or module:callable"),
        ({"architecture": "table_transfomer"}, "did you mean table_transformer"),
        (
            {"architecture": "mlp", "arguments": {"widht": 3}},
            "widht.*takes: width, depth, dropout.*mean model.arguments.width",
        ),
        ({"architecture": "table_transformer", "arguments": {"width": 10}}, "width 10 is no multiple of heads 4"),
    ],
)
def test_other_architectures_are_refused(model: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=f"(?s){said}") as caught:
        build_network(ModelSection(**model), inputs_of(a=numbers(column())), num_outputs=2)
    assert caught.value.exit_code == 2
