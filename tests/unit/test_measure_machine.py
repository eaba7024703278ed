"""What `occ doctor --measure` finds on this machine, and how it is put into words."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from occ.compiler.targets.machine import machine_of
from occ.compiler.targets.measure_machine import Measured, measure

FOUND = Measured(
    {8192: 1.2, 16384: 1.3, 32768: 1.5, 65536: 4.0, 131072: 4.1, 262144: 60.0}, (32 << 10, 1 << 20), 100.0, 20.0
)


def test_sizes_of_the_same_latency_are_joined():
    assert FOUND.plateaus() == [(32768, 1.2), (131072, 4.0), (262144, 60.0)]


@pytest.mark.parametrize(
    ("caches", "said"),
    [
        ((32 << 10, 1 << 20), []),
        ((48 << 10, 768 << 10), []),  # less than twice as much, or more than half
        ((32 << 10, 2 << 20), ["L2 has 2048 KiB, tiles are for 1024 KiB"]),
        ((16 << 10,), ["L1 has 16 KiB, tiles are for 32 KiB"]),
        ((), []),  # the system does not say
    ],
)
def test_caches_that_differ_twofold_are_named(caches: tuple[int, ...], said: list[str]):
    assert replace(FOUND, caches=caches).against(machine_of("x86-64-linux")) == said


@pytest.mark.parametrize("vector_bits", [128, machine_of("host").vector_bits])
def test_measurements_are_of_this_machine(vector_bits: int):
    """Of any size: a chain visits every line and comes back, or its last address would not be in the buffer."""
    found = measure(vector_bits, sizes=(1 << 13, 1 << 16, 3 << 15))
    assert list(found.latency) == [1 << 13, 1 << 16, 3 << 15]
    assert min(found.gflops, found.gbytes, *found.latency.values()) > 0


def test_doctor_reports_them(occ_cli, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("occ.compiler.targets.measure_machine.measure", lambda _: FOUND)
    monkeypatch.setattr("occ.cli.doctor._trial", lambda _: "ok")
    found = json.loads(occ_cli("doctor", "--measure", "--json").out)
    assert found["caches"] == "32 KiB, 1 MiB"
    assert found["latency"] == "1.2 ns to 32 KiB, 4.0 ns to 128 KiB, 60.0 ns to 256 KiB"
    assert found["machine record"] == "agrees"
    assert "latency" not in json.loads(occ_cli("doctor", "--json").out)


def test_doctor_says_what_takes_long_before_it_begins(occ_cli, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("occ.cli.doctor._trial", interrupted)
    ran = occ_cli("doctor", "--measure")
    assert "compiling a small model for interp" in ran.err
    assert "cache " in ran.out
    monkeypatch.setattr("occ.cli.doctor._trial", lambda _: "ok")
    monkeypatch.setattr("occ.compiler.targets.measure_machine.measure", interrupted)
    assert "measuring this machine" in occ_cli("doctor", "--measure").err
