from pathlib import Path

import pytest

from contracts.config import MachineSection, Strategy
from contracts.errors import ConfigError
from contracts.machines import Machine, find_machine, hourly_price, list_combinations, read_price_file
from contracts.machines import price_table as table

REGIONS = ("us-central1", "us-east1", "us-east4", "us-west1", "us-west4", "europe-west1", "europe-west4")


def machine(type_: str, accelerator: str = "") -> Machine:
    return find_machine(MachineSection(type=type_, accelerator_type=accelerator))


def test_rows_of_the_catalog_come_out() -> None:
    """Other rows than those that the rates were solved from; of n1, both rows that they were solved from."""
    for vcpus, row in ((48, (3.25626, 1.3026)), (96, (4.92675, 1.97076))):
        assert table.find_host("n1-standard-8", vcpus, 340, "europe-west4") == pytest.approx(row, abs=3e-4)
    for vcpus, row in ((48, (2.95791, 0.80756)), (96, (4.47524, 1.23092))):
        assert table.find_host("n1-standard-8", vcpus, 340, "us-central1") == pytest.approx(row, abs=3e-4)
    assert table.find_host("g2-standard-24", 24, 96, "europe-west4") == pytest.approx((0.92571, 0.42898), abs=1e-4)
    assert table.find_host("c2-standard-30", 30, 120, "europe-west4") == pytest.approx((1.72404, 0.51048), abs=1e-4)
    assert table.find_host("e2-standard-32", 32, 128, "us-central1") == pytest.approx((1.07218, 0.47034), abs=1e-4)
    assert table.find_host("a2-highgpu-8g", 96, 680, "us-central1") == pytest.approx((5.91582, 2.958), abs=1e-4)


def test_a_machine_costs_its_host_and_its_gpus() -> None:
    price = hourly_price(machine("g2-standard-24"), "STANDARD", "us-central1")
    assert price is not None
    assert price.low_usd_per_h == pytest.approx(0.88075 + 2 * 0.56004, abs=1e-4)
    assert price.high_usd_per_h == pytest.approx(price.low_usd_per_h * 1.15)
    assert "skypilot-catalog" in price.source
    assert "2026" in price.as_of


def test_a_range_by_strategy() -> None:
    prices = {
        strategy: hourly_price(machine("g2-standard-12"), strategy, "us-central1")
        for strategy in ("STANDARD", "SPOT", "FLEX_START")
    }
    standard, spot, flexible = prices["STANDARD"], prices["SPOT"], prices["FLEX_START"]
    assert standard is not None
    assert spot is not None
    assert flexible is None, "no table has its prices"
    assert spot.low_usd_per_h == pytest.approx(0.17621 + 0.2231, abs=1e-4)
    assert spot.low_usd_per_h < standard.low_usd_per_h < spot.high_usd_per_h == standard.high_usd_per_h
    assert spot.times(4).high_usd_per_h == pytest.approx(4 * spot.high_usd_per_h)


def test_what_no_source_says_is_unknown() -> None:
    for type_ in ("a2-ultragpu-1g", "a4-highgpu-8g", "g4-standard-48", "n2-standard-8", "e2-highmem-8"):
        assert hourly_price(machine(type_), "SPOT", "us-central1") is None
    assert hourly_price(machine("g2-standard-12"), "SPOT", "africa-south1") is None
    assert hourly_price(machine("a2-highgpu-1g"), "SPOT", "europe-west4") is None
    assert hourly_price(machine("a2-ultragpu-1g"), "SPOT", "us-east5") is not None


def test_spot_is_never_dearer_than_on_demand() -> None:
    priced = 0
    for known in list_combinations():
        for region in REGIONS:
            spot = hourly_price(known, "SPOT", region)
            standard = hourly_price(known, "STANDARD", region)
            assert (spot is None) == (standard is None)
            if spot is not None and standard is not None:
                assert 0 < spot.low_usd_per_h < standard.low_usd_per_h < standard.high_usd_per_h
                priced += 1
    assert priced > 200


def write(folder: Path, rows: str) -> Path:
    path = folder / "prices.yaml"
    path.write_text(f"source: our contract\ndate: 2026-11-01\nprices:\n{rows}")
    return path


@pytest.mark.parametrize(
    ("strategy", "low", "high"), [("STANDARD", 1.1, 1.1), ("SPOT", 0.45, 1.1), ("FLEX_START", 0.8, 0.8)]
)
def test_own_prices_win(tmp_path: Path, strategy: Strategy, low: float, high: float) -> None:
    book = read_price_file(
        write(
            tmp_path,
            "  - {machine: g2-standard-12, on_demand: 9, spot: 8}\n"
            "  - {machine: g2-standard-12, region: europe-west4, on_demand: 1.1, spot: 0.45, flex_start: 0.8}\n",
        )
    )
    price = hourly_price(machine("g2-standard-12"), strategy, "europe-west4", book)
    assert price is not None
    assert (price.low_usd_per_h, price.high_usd_per_h) == (low, high)
    assert (price.source, price.as_of) == ("our contract", "2026-11-01")
    elsewhere = hourly_price(machine("g2-standard-12"), "STANDARD", "us-central1", book)
    assert elsewhere is not None
    assert elsewhere.low_usd_per_h == 9


def test_own_prices_of_an_n1_name_its_gpus(tmp_path: Path) -> None:
    book = read_price_file(
        write(tmp_path, "  - {machine: n1-standard-8, accelerator: NVIDIA_TESLA_T4, count: 2, on_demand: 7}\n")
    )
    section = MachineSection(type="n1-standard-8", accelerator_type="NVIDIA_TESLA_T4", accelerator_count=2)
    price = hourly_price(find_machine(section), "STANDARD", "us-central1", book)
    assert price is not None
    assert price.low_usd_per_h == 7
    one = hourly_price(machine("n1-standard-8", "NVIDIA_TESLA_T4"), "STANDARD", "us-central1", book)
    assert one is not None
    assert one.low_usd_per_h < 1


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("  - {machine: g2-standard-12, on_demand: 1, spot: 2}\n", "below spot"),
        ("  - {machine: g2-standard-13, on_demand: 1}\n", "no machine type"),
        ("  - {machine: g2-standard-12, accelerator: L4, on_demand: 1}\n", "no accelerator"),
        ("  - {machine: g2-standard-12}\n", "none of on_demand"),
        ("  - {machine: g2-standard-12, on_demand: 0}\n", "greater than 0"),
        ("  - {machine: g2-standard-12, on_demand: true}\n", "a number"),
        ("  - {machine: g2-standard-12, price: 1}\n", "price"),
        ("  []\n", "prices"),
    ],
)
def test_an_implausible_price_file_is_refused(tmp_path: Path, rows: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        read_price_file(write(tmp_path, rows))
    assert "docs/plan.md" in caught.value.todo


def test_a_price_file_says_when_and_where_from(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("prices: [{machine: g2-standard-12, on_demand: 1}]\n")
    with pytest.raises(ConfigError, match=r"source|date"):
        read_price_file(path)
    with pytest.raises(ConfigError, match="does not exist"):
        read_price_file(tmp_path / "absent.yaml")
