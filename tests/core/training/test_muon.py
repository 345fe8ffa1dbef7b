import pytest
import torch

from dflash2_core.training.muon import Muon, orthogonalize


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 6, 17), (2, 17, 6)])
def test_singular_values_come_near_one(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalize(matrices))
    assert values.min() > 0.3
    assert values.max() < 1.3


def test_a_step_does_not_depend_on_the_other_matrices() -> None:
    def after(count: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(4, 6, generator=generator)) for _ in range(3)][:count]
        optimizer = Muon(parameters, lr=0.1)
        for parameter in parameters:
            parameter.grad = parameter.detach() ** 2
        optimizer.step()
        return parameters[0].detach()

    torch.testing.assert_close(after(1), after(3))
