"""The report in a real Chromium: what a person does with it. Skipped where there is no browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkin.graph import Graph
from fedkin.graph import draw as draw_graph
from fedkin.report import write_report
from fedkin.report.sweeping import draw as draw_sweep
from report.fake_runs import make_comparison

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install -e .[dev]")

pytestmark = pytest.mark.slow
BOLD = '<b title="x">bold</b>'
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--window-size=1280,900",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless Chromium with a profile of its own."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    service = shutil.which("chromedriver")
    if browser is None or service is None:
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(service))
    yield started
    started.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    make_comparison(folder / "made", (0, 1), clients=24, rounds=8, groups=4, clients_per_round=16, names={0: BOLD},
                    wandering=0.2, features=(4, 8), owned=4)  # fmt: skip
    return write_report([folder / "made"], folder / "report.html").as_uri()


def opened(driver: Any, address: str, width: int = 1280, scheme: str = "light") -> Any:
    """A page, freshly loaded, once it has unpacked its library and drawn."""
    from selenium.webdriver.support.wait import WebDriverWait

    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    driver.get_log("browser")  # what earlier pages left
    driver.get(address)
    wait = WebDriverWait(driver, 30, 0.05)
    wait.until(lambda driver: driver.execute_script("return document.documentElement.dataset.drawn") == "yes")
    return driver


def complaints(driver: Any) -> list[Any]:
    """The errors of the page's programs."""
    return [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.fixture
def open_page(driver: Any, address: str) -> Any:
    return opened(driver, address)


@pytest.fixture(scope="module")
def address_of_two(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two comparisons on one page; their graphs stay the same after round 2."""
    folder = tmp_path_factory.mktemp("two")
    for name in ("a", "b"):
        make_comparison(folder / name, clients=8, rounds=6, still=2, wandering=0.7)
    return write_report([folder / "a", folder / "b"], folder / "report.html").as_uri()


@pytest.fixture
def two(driver: Any, address_of_two: str) -> Any:
    return opened(driver, address_of_two)


def find(driver: Any, css: str) -> Any:
    return driver.find_element("css selector", css)


def drawn(driver: Any, chart: str) -> Any:
    """The data of a chart's traces, as drawn."""
    script = "return document.getElementById(arguments[0]).data.map(({x, y, meta, name}) => ({x, y, meta, name}))"
    return driver.execute_script(script, chart)


def click_point(driver: Any, chart: str, trace: int, point: int) -> int:
    """Click with the mouse on a point of a chart; returns the client it stands for."""
    spot = driver.execute_script(
        """const place = document.getElementById(arguments[0]), trace = place.data[arguments[1]], i = arguments[2];
        place.scrollIntoView({block: "center"});
        const {xaxis, yaxis} = place._fullLayout, box = place.getBoundingClientRect();
        return [box.left + xaxis._offset + xaxis.d2p(trace.x[i]), box.top + yaxis._offset + yaxis.d2p(trace.y[i]),
                trace.customdata[i]];""",
        chart, trace, point,
    )  # fmt: skip
    actions = webdriver.ActionChains(driver)
    actions.w3c_actions.pointer_action.move_to_location(round(spot[0]), round(spot[1]))
    actions.w3c_actions.pointer_action.click()
    actions.perform()
    return int(spot[2])


def test_no_errors_and_nothing_loaded(open_page: Any) -> None:
    assert complaints(open_page) == []
    assert open_page.execute_script("return performance.getEntriesByType('resource').length") == 0
    charts = "curves gain graph-plot history matrix-plot sharing-curve influence-plot features-plot heads-plot"
    for chart in charts.split():
        assert drawn(open_page, chart), chart


def test_slider_changes_the_graph_and_the_matrix(open_page: Any) -> None:
    slider = find(open_page, "#round")
    before = drawn(open_page, "graph-plot"), find(open_page, "#round-text").text
    assert before[1].startswith("round 8: 16 clients")
    slider.send_keys("\ue012" * 3)  # arrow left, three times
    assert find(open_page, "#round-text").text.startswith("round 5: 16 clients")
    assert drawn(open_page, "graph-plot") != before[0]
    assert find(open_page, "#matrix-note").text.startswith("Round 5 ")


def choose(driver: Any, select: str, value: str) -> None:
    find(driver, f"#{select} option[value='{value}']").click()


def test_weights_beside_what_is_shared(open_page: Any) -> None:
    assert {trace["name"] for trace in drawn(open_page, "sharing-curve")} >= {"no class in common", "the same classes"}
    assert "Correlation of weights" in find(open_page, "#sharing-text").text
    choose(open_page, "method", "fedavg")
    for part in ("section#sharing", 'nav a[href="#sharing"]'):
        assert not find(open_page, part).is_displayed()


def test_influential_clients_by_region(open_page: Any) -> None:
    counts = [int(cell.text) for cell in open_page.find_elements("css selector", "#influence-table td:nth-of-type(2)")]
    others, top = drawn(open_page, "influence-plot")
    assert sum(counts) == len(top["x"]) == 2
    assert min(top["x"]) > max(others["x"])
    choose(open_page, "influence-by", "about rotation")
    regions = [cell.text for cell in open_page.find_elements("css selector", "#influence-table tbody th")]
    assert regions == ["0", "90", "180", "270"]
    client = click_point(open_page, "influence-plot", 1, 0)
    assert open_page.execute_script("return state.client") == client


def test_features_by_round_colour_and_kind(open_page: Any) -> None:
    later = drawn(open_page, "features-plot")[0]
    assert len(later["x"]) == 24 * 3
    find(open_page, "#features-round option:first-child").click()
    assert drawn(open_page, "features-plot")[0]["x"] != later["x"]
    assert find(open_page, "#features-text").text.startswith("Round 4: class means")
    choose(open_page, "features-what", "anchors")
    choose(open_page, "features-colour", "planted")
    legend = find(open_page, "#features-legend").text
    assert all(name in legend for name in ("rot0", "rot90", "rot180", "rot270"))
    # The point that lies farthest from any other: a click on it can mean no other.
    alone = open_page.execute_script(
        """const {x, y} = document.getElementById("features-plot").data[0];
        const apart = (i, j) => (i === j ? 9 : Math.hypot(x[i] - x[j], y[i] - y[j]));
        const near = x.map((_, i) => Math.min(...x.map((_, j) => apart(i, j))));
        return near.indexOf(Math.max(...near));"""
    )
    client = click_point(open_page, "features-plot", 0, alone)
    assert open_page.execute_script("return state.client") == client
    assert [trace["meta"] for trace in drawn(open_page, "features-plot")][-1] == "followed"
    choose(open_page, "method", "fedavg")
    assert "Everyone uses the same head" in find(open_page, "#heads-note").text
    choose(open_page, "seed", "1")
    assert not find(open_page, "#features-plot").is_displayed()
    assert "one seed only" in find(open_page, "#features-note").text
    assert complaints(open_page) == []


def test_legend_switches_a_method(open_page: Any) -> None:
    button = find(open_page, "#curve-legend [data-method=fedavg]")
    assert "fedavg" in {trace["meta"] for trace in drawn(open_page, "curves")}
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert {trace["meta"] for trace in drawn(open_page, "curves")} == {"local", "sfmtl-graph"}
    button.send_keys(" ")
    assert "fedavg" in {trace["meta"] for trace in drawn(open_page, "curves")}


def test_a_curve_under_another_is_announced_and_the_sentence_is_one_click_away(open_page: Any) -> None:
    assert "lies under" not in find(open_page, "#curve-note").text
    open_page.execute_script(
        "for (const one of DATA.runs) if (one.label === 'local') {"
        "  one.curve = DATA.runs.find((run) => run.label === 'fedavg' && run.seed === one.seed).curve; } drawCurves()"
    )
    assert "Local training lies under FedAvg: their curves are the same." in find(open_page, "#curve-note").text
    assert not find(open_page, "#sentence").is_displayed()
    find(open_page, "#more summary").click()
    assert find(open_page, "#sentence").is_displayed()
    assert len(find(open_page, "#headline").text.split()) <= 20


def test_curves_switch_axis_and_figure(open_page: Any) -> None:
    rounds = drawn(open_page, "curves")
    find(open_page, "#curve-x [value=bytes]").click()
    sent = drawn(open_page, "curves")
    assert sent[-1]["x"] != rounds[-1]["x"]
    assert sent[-1]["y"] == rounds[-1]["y"]
    find(open_page, "#curve-y option[value=ari]").click()
    assert {trace["meta"] for trace in drawn(open_page, "curves")} == {"sfmtl-graph"}


def test_click_follows_a_client(open_page: Any) -> None:
    shown = open_page.execute_script("return DATA.federations[run().federation].ids")
    client = click_point(open_page, "graph-plot", 5, 0)
    assert find(open_page, "#client-name").text == shown[client]
    assert find(open_page, "#follow").get_attribute("value") == shown[client]
    assert len(drawn(open_page, "client-curve")) == 3
    neighbour = find(open_page, "#client ol button")
    name = neighbour.text
    neighbour.click()
    assert find(open_page, "#client-name").text == name
    find(open_page, "#unfollow").click()
    assert "Click a client" in find(open_page, "#client").text


def test_other_method_and_seed(open_page: Any) -> None:
    find(open_page, "#seed option[value='1']").click()
    assert "seed 1" in find(open_page, "#gain-text").text
    find(open_page, "#method option[value=fedavg]").click()
    assert "records no graph" in find(open_page, "#graph-note").text
    assert not find(open_page, "#graph-plot").is_displayed()
    find(open_page, "#method option[value=local]").click()
    assert "measured against" in find(open_page, "#gain-text").text
    find(open_page, "#method option[value=sfmtl-graph]").click()
    assert find(open_page, "#graph-plot").is_displayed()
    assert complaints(open_page) == []


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_widths_and_schemes(driver: Any, address: str, width: int, scheme: str) -> None:
    opened(driver, address, width, scheme)
    driver.execute_script("follow(3)")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    wide = driver.execute_script(
        "return [...document.querySelectorAll('.chart, select, aside')].filter("
        "e => e.getBoundingClientRect().right > innerWidth).map(e => e.id)"
    )
    assert wide == []
    paper = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 24, 29)")
    find(driver, "#theme").click()
    assert driver.execute_script("return getComputedStyle(document.body).backgroundColor") != paper


def test_an_unchanged_graph_stands_to_the_end(two: Any) -> None:
    assert find(two, "#round-text").text.startswith("rounds 2 to 6, unchanged: 8 clients")
    points = "return document.getElementById('graph-plot').data[5].text"
    told = two.execute_script(points)
    assert len(told) == 8
    assert all("after round 6" in text for text in told)
    assert find(two, "#matrix-note").text.startswith("Rounds 2 to 6 (")
    assert max(x for trace in drawn(two, "sharing-curve") for x in trace["x"]) == 6
    find(two, "#round").send_keys("\ue012")  # arrow left
    assert find(two, "#round-text").text.startswith("round 1: 8 clients")
    assert all("after round 1" in text for text in two.execute_script(points))


def test_the_keyboard_stays_where_it_was(two: Any) -> None:
    two.execute_script("follow(0)")
    find(two, "#client ol button").send_keys("\n")
    assert two.execute_script("return document.activeElement.id") == "client"


# -- the tests behind groups ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address_of_tests(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Kin's three groups and a client alone, beside a method without tests; one name is made of markup."""
    folder = tmp_path_factory.mktemp("tests")
    make_comparison(folder / "made", methods=("local", "fedavg", "kin"), clients=24, groups=3, names={3: BOLD})
    return write_report([folder / "made"], folder / "report.html").as_uri()


@pytest.fixture
def tested(driver: Any, address_of_tests: str) -> Any:
    return opened(driver, address_of_tests)


def test_the_groups_have_their_verdicts(tested: Any) -> None:
    find(tested, "#more summary").click()
    assert "3 groups and 1 client alone found by tests" in find(tested, "#sentence").text
    found = "3 groups and 1 client alone found by tests: within groups no difference"
    assert find(tested, "#tests-text").text.startswith(found)
    rows = [row.text for row in tested.find_elements("css selector", "#verdicts tbody tr")]
    assert len(rows) == 4
    assert all("no significant difference: one model serves all" in row for row in rows[:3])
    assert all(row.startswith(f"group {number}") for number, row in enumerate(rows[:3], 1))
    assert "differs from all others: trained alone" in rows[3]
    assert "site-023" in rows[3]
    assert BOLD in find(tested, "#verdicts").text
    assert tested.execute_script("return document.querySelector('b[title=x]')") is None


def test_the_tree_of_tests_opens_and_closes(tested: Any) -> None:
    nodes = tested.find_elements("css selector", "#tests-tree .node")
    expected = tested.execute_script("return run().graph.verdicts.tests.nodes")
    assert len(nodes) == len(expected) == 7
    assert all(node.is_displayed() for node in nodes)
    root = nodes[0].text
    assert "24 clients differ in inputs (p " in root
    assert "cut in two" in root
    leaves = [node.text for node in nodes if "→" in node.text]
    assert sum("same" in text for text in leaves) == 3
    assert sum("alone" in text for text in leaves) == 1
    find(tested, "#tests-tree summary").send_keys(" ")
    assert not nodes[1].is_displayed()
    tested.execute_script("redraw()")
    closed = tested.find_elements("css selector", "#tests-tree .node")
    assert not closed[1].is_displayed()
    find(tested, "#tests-tree summary").click()
    assert tested.find_elements("css selector", "#tests-tree .node")[-1].is_displayed()


def test_the_way_of_a_followed_client_is_marked(tested: Any) -> None:
    def marked() -> list[str]:
        return [node.text.strip() for node in tested.find_elements("css selector", "#tests-tree .mine")]

    assert marked() == []
    button = find(tested, "#tests-tree button")
    assert button.text == "site-023"
    button.click()
    assert find(tested, "#client-name").text == "site-023"
    ways = marked()
    assert ways[0].endswith("cut in two")
    assert ways[-1].startswith("site-023")
    assert "Outlined" in find(tested, "#tests-note").text
    tested.execute_script("follow(0)")
    assert "same" in marked()[-1]
    assert not any("site-023" in text for text in marked())


def test_the_pages_of_a_graph_and_of_a_sweep_are_drawn_from_the_packed_library(driver: Any, tmp_path: Path) -> None:
    weights = np.kron(np.eye(2), np.ones((3, 3))) - np.eye(6)
    graph = Graph(tuple("abcdef"), weights, groups=dict(zip("abcdef", (0, 0, 0, 1, 1, 1), strict=True)))
    draw_graph(graph, tmp_path / "graph.html", title="six clients")
    rows = [
        {"method": name, "metric": "accuracy", "seeds": [0, 1], "training.lr": lr, "mean": (0.5 + lr, 0.01)}
        for name in ("local", "fedavg") for lr in (0.1, 0.2)
    ]  # fmt: skip
    draw_sweep(rows, ["training.lr"], tmp_path / "sweep.html", title="a sweep")
    for name, figures, traces in (("graph", 2, 4), ("sweep", 1, 2)):
        opened(driver, (tmp_path / f"{name}.html").as_uri())
        assert complaints(driver) == []
        assert len(driver.find_elements("css selector", "svg.main-svg")) >= 2 * figures
        assert len(drawn(driver, f"figure-{figures - 1}")) == traces
        assert (tmp_path / f"{name}.html").stat().st_size < 1_500_000


def test_bands_end_where_a_figure_ends(open_page: Any) -> None:
    """The agreement with planted groups may be below 0, and the gap of unseen clients too."""
    assert open_page.execute_script("return ['mean', 'worst10', 'gap', 'ari'].map(limits)") == [
        [0, 1], [0, 1], [-1, 1], [-1, 1]
    ]  # fmt: skip
    assert open_page.execute_script("return limits('found')[0]") == 0
