"""Following a run: in a terminal, in a pipe, on a page, and when something is wrong with it."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import socket
import subprocess
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from askgauss import accounting
from askgauss.cli.watch_command import picture
from askgauss.cli.watch_view import Follower, WatchServer, spark
from askgauss.exceptions import FileFormatError, InvalidArgumentError
from askgauss.monitor import Alarm, read_feed, write_feed
from tests.cli.conftest import ENVIRONMENT, PROGRAM
from tests.monitor.runs import watched

ESCAPE = b"\x1b["


@pytest.fixture(scope="module")
def feed():
    monitor = watched(np.random.default_rng(0), steps=40, planned=100, own_coin=True)
    return replace(monitor.feed(), elapsed=80.0)


@pytest.fixture
def folder(tmp_path, feed):
    write_feed(tmp_path, feed)
    return tmp_path


class Clock:
    """A clock that goes where it is told to."""

    def __init__(self, now):
        self.now = now

    def __call__(self):
        return self.now


def follow(folder, feed):
    clock, wall = Clock(1000.0), Clock(feed.written + 1.0)
    return Follower(folder, clock=clock, wall=wall), clock, wall


def test_a_run_in_numbers(folder, feed):
    view = follow(folder, feed)[0].look()
    lines = dict(view.lines)
    assert view.headline == "running; no alarm."
    assert lines["step"] == "40 of 100"
    assert lines["time left"] == "2 min"  # 60 steps at 2 s
    assert lines["claim"] == "epsilon 8 at delta 1e-05"
    assert 0.0 < feed.bound[0] < view.spent < 8.0
    assert "by step 32" in lines["leaked"]
    assert lines["evidence"].endswith("(alarm at 10^3.0)")
    assert ("sampling rate", "not tested: the recorder's own coin plants", "muted") in view.parts
    assert view.notes == ()
    assert not view.over


def test_a_feed_that_stops_is_said_with_since_when(folder, feed):
    follower, clock, wall = follow(folder, feed)
    assert follower.look().notes == ()
    clock.now, wall.now = clock.now + 600, wall.now + 600
    (note,) = follower.look().notes
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(feed.written))
    assert f"nothing was written since {since}, 10 min ago" in note
    assert follower.look().headline == "no news of the run."
    # Nobody knows how long a run takes that may have stopped.
    assert "time left" not in dict(follower.look().lines)
    write_feed(folder, replace(feed, steps=41, declared=((2.576, 41),)))
    assert follower.look().notes == ()
    assert "time left" in dict(follower.look().lines)


def test_patience_grows_with_the_length_of_a_step(folder, feed):
    slow = replace(feed, elapsed=40 * 100.0)
    write_feed(folder, slow)
    follower, clock, _ = follow(folder, slow)
    follower.look()
    clock.now += 300
    assert follower.look().notes == ()
    clock.now += 200
    assert len(follower.look().notes) == 1


def test_one_that_was_old_when_first_seen(folder, feed):
    follower, _, wall = follow(folder, feed)
    wall.now += 86_400 * 3
    assert "3 d 0 h ago" in follower.look().notes[0]


def test_a_clock_that_jumps_makes_nothing_stale(folder, feed):
    follower, clock, wall = follow(folder, feed)
    follower.look()
    wall.now += 7200  # this machine's clock is set while watching
    assert follower.look().notes == ()
    wall.now = feed.written - 3600  # the writer's is an hour ahead
    clock.now += 1
    assert follower.look().notes == ("the writer's clock is 60 min ahead of this one.",)


def test_another_version_is_said_and_a_newer_file_refused(folder, feed):
    write_feed(folder, replace(feed, version="9.9.9"))
    assert "written by askgauss 9.9.9" in follow(folder, feed)[0].look().notes[0]
    path = folder / "watch.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"schema": 3}))
    with pytest.raises(FileFormatError, match="newer askgauss"):
        follow(folder, feed)[0].look()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"kind": "askgauss-watch"}', '{"kind": "askgauss-watch", "schema": 1}'],
)
def test_what_is_no_feed_is_refused(folder, text):
    (folder / "watch.json").write_text(text)
    with pytest.raises(FileFormatError, match=r"watch\.json"):
        read_feed(folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", -1), ("elapsed", float("inf")), ("elapsed", 1e300), ("written", float("nan")),
        ("written", 1e300), ("written", -1e300), ("every", -1.0), ("every", float("nan")),
        ("planned", 0), ("begun_after", 10**9), ("confidence", 7.0), ("sampling_rate", -1.0),
        ("status", "odd"), ("declared", ((-1.0, 40),)), ("declared", ((float("nan"), 40),)),
    ],
)  # fmt: skip
def test_numbers_that_cannot_be_are_refused_at_once(folder, feed, name, value):
    write_feed(folder, replace(feed, **{name: value}))
    with pytest.raises(FileFormatError, match=name):
        read_feed(folder)


def test_numbers_at_the_ends_of_their_ranges_are_shown(folder, feed):
    for changes in ({"written": 253_402_300_799.0}, {"written": 0.0}, {"elapsed": 2e11}):
        write_feed(folder, replace(feed, **changes))
        assert Follower(folder).look().line


def test_a_look_does_not_compose_many_noise_levels_again_and_again(folder, feed, monkeypatch):
    """Each takes a fraction of a second, in a page that asks every second."""
    asked = []
    monkeypatch.setattr(
        accounting, "history_epsilon", lambda kinds, delta: asked.append([*kinds]) or 1.0
    )
    for levels, status, composed in (
        (8, "running", True), (9, "running", False), (64, "running", False), (64, "finished", True)
    ):  # fmt: skip
        kinds = tuple((1.0 + 0.01 * level + 0.001 * len(asked), 5) for level in range(levels))
        changed = replace(
            feed, declared=kinds, steps=5 * levels, begun_after=0, sampling_rate=0.1, status=status
        )
        write_feed(folder, changed)
        assert (follow(folder, changed)[0].look().spent is not None) is composed
    write_feed(folder, replace(feed, declared=tuple((1.0 + level, 1) for level in range(65))))
    with pytest.raises(FileFormatError, match="at most 64 declared"):
        read_feed(folder)


def test_feeds_of_other_sizes_are_refused(folder, feed):
    write_feed(folder, replace(feed, course=replace(feed.course, noise=())))
    with pytest.raises(FileFormatError, match="one length"):
        read_feed(folder)
    (folder / "watch.json").write_bytes(b" " * (1 << 23))
    with pytest.raises(FileFormatError, match="no feed"):
        read_feed(folder)


def test_a_feed_that_breaks_later_leaves_the_last_good_one(folder, feed):
    follower = follow(folder, feed)[0]
    follower.look()
    (folder / "watch.json").write_text("{")
    assert "this is what it last said" in follower.look().notes[0]
    (folder / "watch.json").unlink()
    assert "removed" in follower.look().notes[0]
    assert follower.look().feed == feed


def test_before_the_first_feed_one_waits(tmp_path):
    assert Follower(tmp_path).look().headline == "waiting for watch.json."
    assert not Follower(tmp_path).look().over
    with pytest.raises(InvalidArgumentError, match="not there"):
        Follower(tmp_path / "nothing")


def test_a_folder_of_a_run_that_nobody_watched_is_said_and_left(run, tmp_path):
    (tmp_path / "audit.json").write_text("{}")
    done = run("watch", tmp_path)
    assert done.exit_code == 0
    assert "was not watched" in done.stdout


def test_spent_is_unknown_where_the_file_cannot_be_right(folder, feed):
    for declared in ((), ((2.576, 3),)):
        write_feed(folder, replace(feed, declared=declared))
        assert follow(folder, feed)[0].look().spent is None


def test_one_look_and_its_exit_code(run, folder, feed):
    done = run("watch", folder, "--once")
    assert done.exit_code == 0
    assert done.stdout.count("\n") == 1
    assert "step 40 of 100" in done.stdout
    alarm = Alarm(7, "noise", 4.2, 12.0, "The noise is 0.9 times what is declared.")
    write_feed(folder, replace(feed, alarm=alarm))
    done = run("watch", folder / "watch.json", "--once")
    assert done.exit_code == 1
    assert done.stdout.startswith("ALARM. Step 7: noise (evidence 10^4.2). The noise is 0.9")
    assert run("watch", folder / "none").exit_code == 2
    assert run("watch", folder, "--interval", "0").exit_code == 2
    (folder / "watch.json").write_text("{")
    assert run("watch", folder).exit_code == 2


def test_a_file_cannot_command_the_terminal(run, folder, feed):
    alarm = Alarm(7, "noise\n::error::", 4.2, None, "\x1b[31m\nCONSISTENT: all is well")
    write_feed(folder, replace(feed, alarm=alarm))
    shown = run("watch", folder, "--once").stdout
    assert "\x1b" not in shown
    assert shown.count("\n") == 1


def test_a_pipe_gets_plain_lines_and_the_end(folder, feed):
    process = subprocess.Popen(
        [*PROGRAM, "watch", str(folder), "--interval", "0.05"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    first = process.stdout.readline()
    write_feed(folder, replace(feed, steps=100, status="finished"))
    rest, error = process.communicate(timeout=300)
    assert b"step 40 of 100" in first
    assert rest.startswith(b"the run has ended; no alarm.")
    assert error == b""
    assert ESCAPE not in first + rest
    assert process.returncode == 0


def test_a_narrow_terminal(folder, feed):
    """Forty columns: nothing is wider, nothing is lost."""
    pty = pytest.importorskip("pty")
    import fcntl
    import struct
    import termios

    write_feed(folder, replace(feed, status="finished"))
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 40, 0, 0))
    process = subprocess.Popen(
        [*PROGRAM, "watch", str(folder)],
        env=ENVIRONMENT | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"},
        stdin=slave,
        stdout=slave,
        stderr=subprocess.PIPE,
    )
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):
        while piece := os.read(master, 4096):
            shown += piece
    os.close(master)
    process.communicate(timeout=300)
    assert process.returncode == 0
    assert b"the run has ended" in shown
    from rich.console import Console

    for width in (40, 20, 120):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(picture(follow(folder, feed)[0].look(), width))
        text = console.export_text()
        assert max(map(len, text.splitlines())) <= width
        assert "by the accountant" in " ".join(text.split()) or width < 40


def test_bars():
    assert spark((), 5) == ""
    assert spark((float("nan"), 1.0, 1.0), 5) == "▁▁"
    assert len(spark(tuple(range(100)), 7)) == 7


@pytest.fixture
def server(folder, feed):
    with WatchServer(follow(folder, feed)[0], 0) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server, path, method="GET", host=None, token=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=600)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    prefix = server.address.rstrip("/").rpartition("/")[2] if token is None else token
    connection.request(
        method, f"/{prefix}{path}", headers=sent | ({} if host is None else {"Host": host})
    )
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_page_and_its_data(server, feed):
    answer, body = ask(server, "/data.json")
    content = json.loads(body)
    assert answer.status == 200
    assert content["feed"]["steps"] == 40
    assert content["tone"] == "good"
    for path, kind in (("/", "text/html"), ("/watch.js", "text/javascript"), ("/watch.css", "css")):
        answer, body = ask(server, path)
        assert answer.status == 200
        assert kind in answer.getheader("Content-Type")
        assert b"http" not in body.replace(b"http://www.w3.org/2000/svg", b"")
    assert "default-src 'none'" in answer.getheader("Content-Security-Policy")
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert answer.getheader("Cache-Control") == "no-store"
    assert ask(server, "/", "HEAD")[1] == b""
    assert ask(server, "/../watch.py")[0].status == 404
    assert ask(server, "/watch.json")[0].status == 404
    assert ask(server, "/", "POST")[0].status == 501


def test_who_does_not_know_the_address_sees_nothing(server):
    """Every user of the machine may ask; a private feed is for its owner."""
    own = server.address.rstrip("/").rpartition("/")[2]
    assert len(own) >= 32
    for token in ("", own[:-1], f"{own}x", "x" * len(own), "\u00e9", "%2e%2e"):
        for path in ("/", "/data.json", "/watch.js", ""):
            with contextlib.suppress(UnicodeEncodeError):
                answer, body = ask(server, path, token=token)
                assert (answer.status, body) == (403, b"")
    assert ask(server, "", token=own)[0].status == 403


def test_only_this_machine_and_its_own_name(server):
    assert server.server_address[0] == "127.0.0.1"
    assert ask(server, "/data.json", host="evil.example")[0].status == 421
    port = server.server_address[1]
    assert ask(server, "/data.json", host=f"localhost:{port}")[0].status == 200


@pytest.mark.parametrize("path", ["/", "/data.json", "/watch.js"])
def test_no_page_of_another_origin_is_answered(server, path):
    port = server.server_address[1]
    own = f"http://127.0.0.1:{port}"
    for headers, status in (
        ({}, 200),
        ({"Origin": own, "Sec_Fetch_Site": "same-origin"}, 200),
        ({"Sec_Fetch_Site": "none"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": f"http://127.0.0.1:{port + 1}"}, 403),
        ({"Origin": f"https://127.0.0.1:{port}"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
    ):
        for method in ("GET", "HEAD"):
            answer, body = ask(server, path, method=method, **headers)
            assert answer.status == status, headers
            assert status == 200 or not body
    assert (
        ask(server, path, host=f"localhost:{port}", Origin=f"http://localhost:{port}")[0].status
        == 200
    )


def test_a_port_in_use_is_said(run, folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("watch", folder, "--serve", "--port", port)
    assert done.exit_code == 2
    assert f"{port} is taken" in done.stderr
    assert run("watch", folder, "--serve", "--port", 70000).exit_code == 2


def test_a_page_of_a_broken_feed_says_so(folder, server):
    (folder / "watch.json").write_text("{")
    content = json.loads(ask(server, "/data.json")[1])
    assert content["tone"] == "bad"
    assert "watch.json" in content["headline"]


def test_in_a_browser_it_updates_by_itself(folder, feed, server):
    from tests.report.browser import browser, emulate

    with browser() as window:
        emulate(window, scheme="dark", width=390)
        window.get_log("performance")  # what the browser's own first page asked for
        window.get(server.address)
        _until(lambda: "running; no alarm." in window.page_source)
        assert window.find_element("id", "noise").find_elements("tag name", "path")
        alarm = Alarm(66, "noise", 4.0, 12.0, "<b>The noise</b> is 0.9 times what is declared.")
        write_feed(folder, replace(feed, alarm=alarm))
        _until(lambda: "ALARM" in window.title)
        headline = window.find_element("id", "headline")
        assert "<b>The noise</b>" in headline.text  # as text, not as markup
        wide = window.execute_script("return document.documentElement.scrollWidth")
        assert wide <= 390
        logs = window.get_log("browser")
        assert not [entry for entry in logs if entry["level"] == "SEVERE"], logs
        requests = [
            json.loads(entry["message"])["message"]["params"]["request"]["url"]
            for entry in window.get_log("performance")
            if "Network.requestWillBeSent" in entry["message"]
            and "request" in json.loads(entry["message"])["message"]["params"]
        ]
        assert f"{server.address}data.json" in requests
        assert [
            url for url in requests if not url.startswith((server.address, "data:", "chrome:"))
        ] == []


def _until(condition):
    """Wait for what the page does by itself; it looks once a second."""
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.2)
    raise AssertionError("the page did not change")


def test_plan_monitor(run):
    done = run(
        "plan", "--monitor", "--fault", "noise=0.8", "--present", 20, "--absent", 200,
        "--steps", 60,
    )  # fmt: skip
    assert done.exit_code == 0
    assert "80% by step" in done.stdout
    (line,) = (row for row in done.stdout.splitlines() if row.startswith("noise=0.8"))
    _, half, most = line.split()
    assert 1 <= int(half) <= int(most) <= 10
    for wrong in (
        ("--monitor", "--fault", "noise"),
        ("--monitor", "--fault", "luck=3"),
        ("--monitor", "--fault", "period=0.5"),
        ("--monitor", "--find", "steps"),
        ("--fault", "noise=0.9"),
    ):
        assert run("plan", *wrong).exit_code == 2
