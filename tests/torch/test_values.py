"""Values that PyTorch computes in dry runs: right where they are known, zeros where they are not."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

import arena
from arena import sim
from arena._dryrun import marks
from arena._dryrun import unknown as unknown_values
from arena._dryrun.torch.values import sized_facts

MIB = 1 << 20
LARGE = 1 << 17  # elements: more than are computed


def is_known(tensor: torch.Tensor) -> bool:
    return marks.query(tensor.data_ptr(), tensor.numel() * tensor.element_size()) == 1


def unknown(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="cuda")


OPERATIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x + 1,
    lambda x: x.softmax(-1),
    lambda x: x @ x.T,
    lambda x: x.sum(0),
    lambda x: x.sort(1).values,
    lambda x: x.argmax(1),
    lambda x: x.topk(3).indices,
    lambda x: x.cumsum(0),
    lambda x: x[x > 0],
    lambda x: x[:, [2, 0]],
    lambda x: x[::2, 1:].t().contiguous(),
    lambda x: (x > 0).nonzero(),
    lambda x: x.round().unique(),
    lambda x: torch.unique(x.round(), dim=0, return_inverse=True)[1],
    lambda x: torch.unique_consecutive(x.round().flatten()),
    lambda x: x.masked_select(x < 0),
    lambda x: torch.where(x > 0, x, -x),
    lambda x: x.masked_fill(x > 0, 7),
    lambda x: x.half().float(),
    lambda x: torch.cat([x, x.flip(0)]),
    lambda x: torch.stack([x, x], 1),
    lambda x: x.repeat_interleave(torch.tensor([1, 2, 0, 3, 1, 1, 2, 0], device=x.device), 0),
    lambda x: torch.bincount((x.abs() * 3).long().flatten()),
    lambda x: torch.histc(x, 5, -2, 2),
    lambda x: x.std(),
    lambda x: torch.linalg.vector_norm(x),
    lambda x: torch.nn.functional.layer_norm(x, (8,)),
    lambda x: torch.nn.functional.conv1d(x[None], x[:, :, None][:, :, :1].expand(8, 8, 3)),
    lambda x: torch.nn.functional.max_pool1d(x[None], 2),
    lambda x: torch.nn.functional.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    lambda x: torch.scatter(x, 0, x.argsort(0), x),
    lambda x: x.gather(1, x.argsort(1)),
    lambda x: x.tril() + x.triu(1),
    lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0], device=x.device)),
    lambda x: x.clone().index_put_((torch.tensor([0, 0], device=x.device),), x[:2], accumulate=True),
    lambda x: x.clone().index_add_(0, torch.tensor([1, 1], device=x.device), x[:2]),
    lambda x: x.clone().scatter_add_(0, torch.zeros(8, 8, dtype=torch.long, device=x.device), x),
    lambda x: torch.addmm(x, x, x, alpha=2),
    lambda x: x.exp_().log_(),
    lambda x: x.view(4, 2, 8).permute(1, 0, 2).reshape(-1),
    lambda x: torch.einsum("ij,kj->ik", x, x),
    lambda x: torch.nn.functional.cross_entropy(x, torch.arange(8, device=x.device)),
    lambda x: torch.fft.rfft(x).abs(),
    lambda x: torch.isfinite(x / 0),
    lambda x: x.to(torch.int8).bitwise_and(3),
    lambda x: torch.var_mean(x, 1)[0],
    lambda x: torch.searchsorted(x.sort(1).values, x),
    lambda x: x @ x[0],
    lambda x: x.cummax(0).values + x.cummin(1).values,
    lambda x: torch.bernoulli((x > 0).float()),
    lambda x: torch.complex(x, x).clone().conj_physical_(),
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=range(len(OPERATIONS)))
def test_small_results_are_those_of_the_cpu(operation: Callable[[torch.Tensor], torch.Tensor]) -> None:
    given = torch.randn(8, 8, generator=torch.Generator().manual_seed(7))
    expected = operation(given.clone())
    result = operation(given.cuda())
    assert result.device.type == "cuda"
    assert is_known(result.contiguous())
    torch.testing.assert_close(result.cpu(), expected, equal_nan=True)


def test_what_is_made_on_the_device_is_there() -> None:
    assert torch.arange(10, device="cuda").sum().item() == 45
    assert torch.full((3,), 2.5, device="cuda").tolist() == [2.5] * 3
    assert torch.linspace(0, 1, 5, device="cuda").tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert torch.eye(3, device="cuda").trace().item() == 3
    assert sorted(torch.randperm(100, device="cuda").tolist()) == list(range(100))


def test_memory_that_an_arena_gives_again_is_unknown(pool: arena.Arena) -> None:
    x = torch.ones(1000, device="cuda")
    address = x.data_ptr()
    assert is_known(x)
    del x
    y = torch.empty(1000, device="cuda")
    assert (y.data_ptr(), is_known(y)) == (address, False)
    assert pool.stats().live > 0


def test_random_numbers_follow_the_seed_of_the_device_and_leave_those_of_the_cpu_alone() -> None:
    torch.manual_seed(3)
    on_host = torch.rand(5)
    torch.manual_seed(3)
    first = torch.rand(1000, device="cuda")
    dropped = torch.nn.functional.dropout(torch.ones(1000, device="cuda"), 0.5)
    assert torch.equal(torch.rand(5), on_host)
    torch.manual_seed(3)
    again = torch.rand(1000, device="cuda")
    assert torch.equal(first.cpu(), again.cpu())
    assert not torch.equal(torch.rand(1000, device="cuda").cpu(), again.cpu())
    assert 0.3 < first.mean().item() < 0.7
    assert set(dropped.tolist()) == {0.0, 2.0}


def test_what_was_never_computed_reads_as_zeros_and_never_as_leftovers() -> None:
    old = torch.full((LARGE,), 3.0).cuda()
    del old
    new = unknown(LARGE)
    assert new.cpu().abs().sum() == 0
    assert new[5].item() == 0
    assert not is_known(new)


def test_large_results_are_unknown_and_small_ones_of_them_follow_from_zeros() -> None:
    x = torch.randn(LARGE).cuda()
    assert is_known(x)
    y = x * 2
    assert not is_known(y)
    assert y.mean().item() == 0
    probabilities = y[:10].softmax(0)
    assert probabilities.tolist() == pytest.approx([0.1] * 10)
    assert not is_known(probabilities)


def test_operations_in_place_on_large_tensors_make_them_unknown() -> None:
    x = torch.ones(LARGE).cuda()
    x.add_(1)
    assert not is_known(x)
    x.zero_()
    assert is_known(x)


def test_integers_and_bools_from_the_host_are_computed_at_any_size() -> None:
    tokens = torch.randint(0, 1000, (1024, 1024)).cuda()
    mask = tokens > 500
    assert is_known(mask)
    assert mask.sum().item() == (tokens.cpu() > 500).sum().item()
    assert mask.nonzero().shape[0] == mask.sum().item()


def test_a_strided_copy_of_many_integers_is_known_whatever_was_there_before() -> None:
    rows = torch.arange(90, device="cuda").expand(LARGE // 64, 90).reshape(-1)
    assert rows.numel() > LARGE
    assert is_known(rows)
    assert rows[-1].item() == 89


def test_reductions_of_what_the_host_brought_are_known() -> None:
    x = torch.randn(1 << 20)
    assert x.cuda().max().item() == x.max().item()
    assert x.cuda().argmin().item() == x.argmin().item()


def test_knowledge_passes_element_by_element() -> None:
    known, not_known = torch.zeros(4, device="cuda"), unknown(4)
    both = torch.cat([known, not_known])
    assert (is_known(both[:4]), is_known(both[4:])) == (True, False)
    assert is_known(torch.where(torch.tensor([True] * 4, device="cuda"), known, not_known))
    false, guess = torch.zeros(4, dtype=torch.bool, device="cuda"), not_known > 0
    assert not is_known(guess)
    assert is_known(false & guess)
    assert not is_known(false | guess)
    assert is_known((~false | guess).all())
    assert is_known((guess | ~false).any())


@pytest.mark.parametrize("shape", [(), (1,), (3, 2)])
def test_what_an_operation_writes_into_is_not_one_of_its_operands(shape: tuple[int, ...]) -> None:
    assert not torch.isinf(torch.empty(shape, device="cuda")).any()  # abs(), which writes into an empty tensor
    result = unknown(2)
    torch.add(torch.ones(2, device="cuda"), 1, out=result)
    assert is_known(result)


def test_the_end_of_generation_is_known_where_the_length_decides() -> None:
    """As in a loop that generates text: what ends a sequence is a token that nobody knows, or the length."""
    unfinished = torch.ones(4, dtype=torch.long, device="cuda")
    tokens = unknown(4, dtype=torch.long)
    is_done = (tokens == 7) | torch.full((4,), True, device="cuda")
    unfinished = unfinished & ~is_done
    assert is_known(unfinished.max())
    assert unfinished.max().item() == 0


@pytest.mark.parametrize("most", [1000, LARGE])
def test_a_count_of_unknown_elements_is_at_most_all_of_them(most: int) -> None:
    mask = unknown(most) > 0.5
    assert mask.nonzero().shape == (most, 1)
    assert unknown(most)[mask].shape == (most,)


def test_what_a_mask_and_its_copies_are_as_large_as_is_counted() -> None:
    """The indices, the elements, and a copy of these: of the largest possible size, and of that assumed."""
    mask, rows = unknown(1000, dtype=torch.bool), unknown(1000, 256)
    kept = rows[mask]
    halves = kept.half()
    sized_facts()
    (note,) = unknown_values.facts()
    together = kept.nbytes + halves.nbytes
    counts = {"assumed": 1000, "most": 1000}
    assert note["sized"] == {"allocations": 3, "bytes": together, "most": together, "counts": counts}


def test_a_count_of_known_and_unknown_elements_lies_between() -> None:
    mask = torch.zeros(10, dtype=torch.bool, device="cuda")
    mask[7:] = unknown(3) > 0
    assert mask.nonzero().flatten().tolist() == [7, 8, 9]


def test_memory_is_that_of_as_many_elements_as_there_are() -> None:
    x = torch.zeros(MIB, dtype=torch.int64)
    x[: MIB // 4] = 1
    there = x.cuda()
    before = torch.cuda.memory_allocated()
    found = there.nonzero()
    assert found.shape == (MIB // 4, 1)
    assert torch.cuda.memory_allocated() - before == MIB // 4 * 8


def test_programs_that_check_their_values_survive() -> None:
    probabilities = unknown(8, 100).softmax(-1)
    sample = torch.distributions.Categorical(probs=probabilities).sample()
    assert sample.shape == (8,)
    assert 0 <= sample.min().item() <= sample.max().item() < 100
    parts = torch.arange(10, device="cuda").split(torch.tensor([3, 7], device="cuda").tolist())
    assert [part.shape[0] for part in parts] == [3, 7]


def test_a_gradient_scaler_keeps_its_scale() -> None:
    model = nn.Linear(512, 512).cuda()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler()
    for _ in range(3):
        with torch.autocast("cuda", torch.float16):
            loss = model(unknown(16, 512)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 65536


def test_whether_a_gradient_is_finite_is_a_bool_although_its_type_is_another() -> None:
    unknown_values.reset()
    scaler = torch.amp.GradScaler("cuda")
    weights = torch.ones(LARGE, device="cuda", requires_grad=True)
    scaler.scale((weights * 2).sum()).backward()
    scaler.step(torch.optim.SGD([weights]))
    assert [entry["dtype"] for entry in unknown_values.facts()] == ["bool"]


def test_what_follows_from_unknown_values_is_finite() -> None:
    zeros = unknown(4)
    assert zeros.log().tolist() == [-100] * 4
    assert (1 / zeros).tolist() == [100] * 4
    assert (zeros / zeros).tolist() == [0] * 4
    mask = torch.tensor([True, False, False, True], device="cuda")
    assert zeros.masked_fill(mask, -torch.inf).tolist() == [-torch.inf, 0, 0, -torch.inf]
    assert torch.isinf(torch.zeros(4, device="cuda").log()).all()


def test_a_small_model_learns_as_on_the_cpu() -> None:
    def train(device: str) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
        x = torch.randn(32, 4).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), 0.05)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    assert train("cuda") == pytest.approx(train("cpu"), rel=1e-4)


def test_all_threads_compute() -> None:
    found: list[int] = []

    def work(first: int) -> None:
        for n in range(first, first + 20):
            found.append(int(torch.arange(n, device="cuda").sum()) - n * (n - 1) // 2)

    threads = [threading.Thread(target=work, args=(10 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [0] * 80


def test_a_copy_that_is_still_queued_is_waited_for() -> None:
    host = torch.arange(1000).pin_memory()
    with sim.temporarily(delay=20_000):
        there = host.to("cuda", non_blocking=True)
        assert (there + 1).sum().item() == 500_500
    side = torch.cuda.Stream()
    with sim.temporarily(delay=20_000), torch.cuda.stream(side):
        there = host.to("cuda", non_blocking=True)
        assert (there * 2).sum().item() == 999_000


def test_nothing_is_computed_in_a_capture() -> None:
    x, y = torch.ones(4, device="cuda"), torch.ones(4, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.add(x, 1, out=y)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.add(x, 2, out=y)
    graph.replay()
    torch.cuda.synchronize()
    assert not is_known(y)
    graph.reset()


@pytest.mark.parametrize("generator", [False, True], ids=["default generator", "own generator"])
def test_random_numbers_are_drawn_in_a_capture(generator: bool) -> None:
    graph = torch.cuda.CUDAGraph()
    own = torch.Generator("cuda").manual_seed(1) if generator else None
    if own is not None:
        graph.register_generator_state(own)
    with torch.cuda.graph(graph):
        x = torch.randn(4, device="cuda", generator=own)
        y = nn.functional.dropout(x, training=True)
    graph.replay()
    torch.cuda.synchronize()
    assert not is_known(y)
    assert torch.rand(4, device="cuda", generator=own).isfinite().all()  # computed again after the capture
    graph.reset()


def test_an_index_that_is_out_of_range_ends_nothing() -> None:
    x = torch.arange(4, device="cuda")
    y = x[torch.tensor([9], device="cuda")]  # on a card: a device-side assertion
    assert y.shape == (1,)
    assert not is_known(y)


def test_an_error_of_the_operation_is_the_programs() -> None:
    with pytest.raises(RuntimeError, match="must match"):
        torch.ones(3, device="cuda") + torch.ones(4, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        torch.ones(100 << 30, device="cuda")


def test_results_and_strides_are_those_of_the_device() -> None:
    x = torch.randn(4, 6).cuda().t()
    y = x.relu()
    assert y.stride() == x.relu().stride()
    assert torch.equal(y.cpu(), x.cpu().relu())
    out = torch.empty(12, device="cuda")[::2]
    torch.add(x.reshape(-1)[:6], 1, out=out)
    assert torch.equal(out.cpu(), x.cpu().reshape(-1)[:6] + 1)


def test_complex_and_conjugate_tensors_are_computed() -> None:
    x = torch.randn(5, dtype=torch.complex64)
    assert torch.allclose((x.cuda().conj() * 2j).cpu(), x.conj() * 2j)
    assert torch.allclose(x.cuda().conj().cpu(), x.conj())


def test_copies_of_conjugates_from_the_host_are_conjugates() -> None:
    given = torch.tensor([1 + 2j, 3 - 1j]).conj()
    target = torch.empty(2, dtype=torch.complex64, device="cuda")
    assert target.copy_(given).tolist() == [1 - 2j, 3 + 1j]
    assert torch.empty(2, device="cuda").copy_(given.imag).tolist() == [-2, 1]


@pytest.mark.parametrize("width", [4, 64])
def test_a_batch_norm_in_training_makes_its_statistics_unknown_or_computes_them(width: int) -> None:
    given = torch.randn(8, width, 32, 32) + 3
    norm = nn.BatchNorm2d(width)
    norm(given)
    expected = norm.running_mean
    assert expected is not None
    norm = nn.BatchNorm2d(width).cuda()
    statistics = norm.running_mean
    assert statistics is not None
    norm(given.cuda())
    assert not is_known(statistics) or torch.allclose(statistics.cpu(), expected)
    synchronized = nn.SyncBatchNorm(width).cuda()
    statistics = synchronized.running_mean
    assert statistics is not None
    with torch.backends.cudnn.flags(enabled=False):
        nn.functional.batch_norm(given.cuda(), statistics, synchronized.running_var, training=True)
    assert not is_known(statistics) or torch.allclose(statistics.cpu(), expected)


def test_a_batch_norm_that_is_only_evaluated_leaves_its_statistics_known() -> None:
    norm = nn.BatchNorm2d(64).cuda().eval()
    norm(unknown(8, 64, 32, 32))
    norm(unknown(2, 64, 2, 2))
    assert norm.running_mean is not None
    assert is_known(norm.running_mean)


def test_a_known_integer_decides_its_own_bits_only() -> None:
    x = unknown(4, dtype=torch.int64)
    assert not is_known(x | 2)
    assert not is_known(x | torch.full((4,), 2, device="cuda"))
    assert is_known(x & 0)
    assert is_known(unknown(4, dtype=torch.bool) | torch.ones(4, dtype=torch.bool, device="cuda"))
