"""The account in Prometheus's text format, read back with the parsers of prometheus_client."""

from __future__ import annotations

import re
import threading

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

import arena
from arena import _core
from arena._export import prometheus
from arena._inspect.snapshot import _figures

from ..arena.conftest import GIB, MakeArena
from ..programs import run
from ..threads import run_together

FIGURES = [name for name in vars(_core.Stats) if not name.startswith("_")]


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in parse(text)}


def values(text: str, **labels: str) -> dict[str, float]:
    """The samples by name, and by reason where they have one."""
    found: dict[str, float] = {}
    for family in parse(text):
        for sample in family.samples:
            assert {name: value for name, value in sample.labels.items() if name != "reason"} == labels
            key = sample.name + ("/" + sample.labels["reason"] if "reason" in sample.labels else "")
            assert key not in found
            found[key] = sample.value
    return found


def test_every_figure_is_read_back_as_a_snapshot_has_it(make: MakeArena) -> None:
    pool = make(cap="1GiB", reserve="64MiB", headroom="16MiB")
    live = [pool.allocate(size) for size in (1000, 5_000_000, 70_000_000)]
    live.pop().free()
    with pytest.raises(arena.OutOfMemoryError):
        pool.allocate(2 * GIB)
    text = pool.metrics()
    stats = pool.snapshot().stats  # not stats(), which does not query the streams
    found = values(text, device="0")
    shown = {
        **{f"arena_reserved_bytes/{reason}": reason for reason in
           ("requested", "rounding", "pending", "captured", "releasable", "stranded", "spare")},
        **{f"arena_{name}_bytes": name for name in
           ("cap", "headroom", "captured", "compactable", "peak_requested", "peak_live", "peak_reserved",
            "device_total", "device_free")},
        "arena_largest_request_bytes": "largest",
        "arena_largest_request_without_moving_bytes": "largest_without_moving",
        "arena_largest_request_with_moving_bytes": "largest_with_moving",
        "arena_blocks": "blocks",
        **{f"arena_{name}_total": name for name in
           ("allocations", "hits", "splits", "failures", "maps", "unmaps", "rebacked", "driver_calls", "waits")},
    }  # fmt: skip
    assert found.keys() == shown.keys()
    moving = {"arena_driver_calls_total"}  # counters may grow when they are read
    assert {k: v for k, v in found.items() if k not in moving} == {
        k: stats[figure] for k, figure in shown.items() if k not in moving
    }
    assert found["arena_failures_total"] >= 1
    assert sum(v for k, v in found.items() if k.startswith("arena_reserved_bytes")) == stats["reserved"]
    # What is left out is a sum of the others.
    assert set(FIGURES) - set(shown.values()) == {"live", "reserved"}


def scopes_in(text: str) -> dict[str, dict[str, float]]:
    """The figures of scopes, by path."""
    found: dict[str, dict[str, float]] = {}
    for family in parse(text):
        for sample in family.samples:
            if "scope" in sample.labels:
                name = sample.name.removeprefix("arena_scope_")
                found.setdefault(sample.labels["scope"], {})[name] = sample.value
    return found


def test_scopes_are_shown_by_path_with_their_live_memory(make: MakeArena) -> None:
    pool = make(cap="1GiB")
    assert scopes_in(pool.metrics()) == {}
    kept = []
    for _ in range(3):
        with pool.scope("serve", budget="1MiB"):
            kept.append(pool.allocate(1000))
            with pool.scope('de"code'), pool.allocate(5000):
                pass
    kept.pop().free()
    found = scopes_in(pool.metrics(pool="a"))
    assert found == {
        "serve": {"live_bytes": 2048, "blocks": 2, "peak_bytes": 2 * 1024 + 1024 + 5120, "entered_total": 3,
                  "budget_bytes": 1 << 20},
        'serve/de"code': {"live_bytes": 0, "blocks": 0, "peak_bytes": 5120, "entered_total": 3},
    }  # fmt: skip


def test_a_scope_path_used_in_several_threads_is_one_scope(make: MakeArena) -> None:
    pool = make(cap="1GiB")
    meet = threading.Barrier(4)

    def work() -> None:
        with pool.scope("request"), pool.allocate(1024):
            meet.wait(30)

    run_together(*[work] * 4)
    assert scopes_in(pool.metrics()) == {
        "request": {"live_bytes": 0, "blocks": 0, "peak_bytes": 4096, "entered_total": 4}
    }


def test_scopes_with_ever_new_names_are_counted_together(make: MakeArena) -> None:
    pool = make(cap="1GiB")
    for number in range(1010):
        with pool.scope(f"request {number}"):
            pool.allocate(512).free()
    found = scopes_in(pool.metrics())
    assert len(found) == 1001
    assert found["(other scopes)"]["entered_total"] == 10


def test_names_types_and_help_texts_follow_the_conventions(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    with pool.scope("part", budget="1MiB"):
        text = pool.metrics()
    for family in parse(text):
        assert family.type in ("gauge", "counter")
        assert family.documentation.endswith(".")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
            assert family.type == "counter" or re.fullmatch(r"arena_[a-z_]+_bytes|arena_(scope_)?blocks", sample.name)


def test_the_text_is_openmetrics_except_for_counter_names_and_the_last_line(make: MakeArena) -> None:
    # OpenMetrics wants a counter's family without _total, and a last line. It rejects disorder and duplicates.
    text = make(cap="64MiB").metrics(pool='a "b" \\ c\nd')
    changed = re.sub(r"^(# (?:HELP|TYPE) \w+)_total ", r"\1 ", text, flags=re.M) + "# EOF\n"
    strict = {f.name: sorted(map(str, f.samples)) for f in parse_openmetrics(changed)}
    assert strict == {f.name: sorted(map(str, f.samples)) for f in parse(text)}
    assert len(strict) == len(prometheus.FAMILIES)


def test_each_name_is_explained_once_however_many_arenas_there_are() -> None:
    code = """
import arena
from arena import sim
sim.configure(devices=2)
one, two = arena.default_arena(0), arena.default_arena(1)
buffer = two.allocate(1000)
print(arena.metrics(job="train"), end="")
two.close()
assert "device=\\"1\\"" not in arena.metrics()
"""
    text = run(code, check=True, ARENA_DRIVER="sim").stdout
    explained = re.findall(r"^# (?:HELP|TYPE) \w+", text, re.M)
    assert len(explained) == len(set(explained)) == 2 * len(prometheus.FAMILIES)
    by_device = {
        sample.labels["device"]: sample.value
        for sample in families(text)["arena_reserved_bytes"].samples
        if sample.labels["reason"] == "requested"
    }
    assert by_device == {"0": 0, "1": 1000}
    assert all(s.labels["job"] == "train" for family in families(text).values() for s in family.samples)


def test_without_a_default_arena_there_are_no_metrics() -> None:
    assert run("import arena; print(repr(arena.metrics()))", check=True).stdout == "''\n"


@pytest.mark.parametrize("value", ["", "train", 'a"b', "back\\slash", "two\nlines", "\\n", "déjà vu, 日本", "{}=,"])
def test_label_values_are_read_back_unchanged(make: MakeArena, value: str) -> None:
    assert values(make(cap="64MiB").metrics(pool=value), device="0", pool=value)


def test_a_number_can_be_a_label(make: MakeArena) -> None:
    assert values(make(cap="64MiB").metrics(rank=3), device="0", rank="3")


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        ({"no-dash": "x"}, "'no-dash' cannot be a label"),
        ({"1st": "x"}, "'1st' cannot be a label"),
        ({"": "x"}, "'' cannot be a label"),
        ({"__name__": "x"}, "'__name__' cannot be a label"),
        ({"ends\n": "x"}, "cannot be a label"),
        ({"device": "x"}, "the label 'device' is used by arena"),
        ({"reason": "x"}, "the label 'reason' is used by arena"),
        ({"scope": "x"}, "the label 'scope' is used by arena"),
        ({"pool": None}, "pool=None cannot be the value of a label"),
        ({"pool": 1.5}, r"pool=1\.5 cannot be the value of a label"),
    ],
)
def test_labels_that_prometheus_would_reject_are_refused(
    make: MakeArena, labels: dict[str, str], complaint: str
) -> None:
    with pytest.raises(arena.UsageError, match=complaint):
        make(cap="64MiB").metrics(**labels)


def test_a_closed_arena_has_no_metrics(make: MakeArena) -> None:
    pool = make(cap="64MiB")
    pool.close()
    with pytest.raises(arena.UsageError, match="closed"):
        pool.metrics()


def test_labels_distinguish_several_arenas_of_one_device(make: MakeArena) -> None:
    pools = {name: make(cap="64MiB") for name in "ab"}
    text = prometheus.render(({"device": "0", "pool": name}, _figures(p.stats()), {}) for name, p in pools.items())
    samples = families(text)["arena_cap_bytes"].samples
    assert [sample.labels for sample in samples] == [{"device": "0", "pool": "a"}, {"device": "0", "pool": "b"}]
