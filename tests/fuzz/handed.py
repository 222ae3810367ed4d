"""What people hand to each other: tables of others, results and all that is made of them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from click.testing import CliRunner

import askgauss as ag
from askgauss.cli import app
from askgauss.cli.program import ExitCode
from askgauss.cli.watch_command import picture
from askgauss.cli.watch_view import Follower, _printable
from askgauss.evidence import provenance
from askgauss.evidence.attestation import evidence_pack
from askgauss.evidence.verification import verify
from askgauss.exceptions import FileFormatError
from askgauss.federated import AuditedAggregator
from askgauss.federated.simulated_server import simulate_federated
from askgauss.files import codec
from askgauss.integrations.opacus import CanaryAudit
from askgauss.mechanisms.plans import TreePlan
from askgauss.monitor import feed
from askgauss.recording.commitment import commit
from askgauss.recording.inputs import load_audit_input
from askgauss.replay import ReplayReport
from askgauss.report.html import render, render_replay
from tests.fuzz import mutations
from tests.fuzz.mutations import Mutation
from tests.fuzz.subjects import CLAIM, Subject, Workshop, plain, said
from tests.integrations.runs import make_run
from tests.replay.runs import records, training

_SHIPPED = {"model.safetensors": "0" * 64}


def make(shop: Workshop) -> list[Subject]:
    """One of every kind."""
    archive = (mutations.forge_archive,)
    documents = (mutations.forge_json, mutations.hostile_json)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        committed, opacus = _committed(), _opacus(shop)
        held = load_audit_input(io.BytesIO(opacus))
        result = ag.audit(committed, claim=CLAIM).to_json().encode()
        results = {
            "result of Opacus": ag.audit(held, claim=CLAIM),
            "result of rounds": ag.audit(_rounds(), claim=CLAIM),
        }
    return [
        Subject("committed transcript", _saved(committed), _verified, forgeries=archive),
        Subject("result to verify", result, _against(committed), forgeries=documents),
        Subject("transcript of rounds", _saved(_rounds()), _verified, forgeries=archive),
        Subject("transcript of tree rounds", _saved(_tree_rounds()), _verified, forgeries=archive),
        Subject("finished Opacus audit", opacus, _verified, forgeries=archive),
        Subject("witnessed transcript", _saved(held), _verified, forgeries=archive),
        *(
            Subject(name, item.to_json().encode(), published, forgeries=documents)
            for name, item in results.items()
        ),
        Subject("result as a page", result, _page, forgeries=documents),
        Subject("replay report", _replayed(), _read_report, forgeries=documents),
        Subject("watched run", _watched(shop), _watch(shop), forgeries=documents),
        *_tables(shop),
        Subject("file before a commit", result, _hook(shop), False, documents),
        Subject("git folder", b"ref: refs/heads/main\n", _git(shop), False),
    ]


def _saved(item: Any) -> bytes:
    stream = io.BytesIO()
    item.save(stream)
    return stream.getvalue()


def _committed() -> ag.Transcript:
    run = ag.simulate_dpsgd(
        steps=6, sampling_rate=0.5, noise_multiplier=1.0, present=30, absent=30, seed=0
    )
    promise = commit(seed=0, member=run.member, claim=CLAIM, nonce="a" * 32)
    facts = replace(run.facts, run="a" * 32, seed=0, commitment=promise)
    return run.with_facts(facts)


class _Server:
    def __init__(self) -> None:
        self.noise = np.random.default_rng(1)

    def __call__(self, updates: list[Any], weights: Any) -> Any:
        total = sum(item / max(1.0, float(np.linalg.norm(item))) for item in updates)
        return (total + self.noise.normal(0, 1.0, 60)) / len(updates)


def _rounds() -> ag.Transcript:
    aggregate = AuditedAggregator(
        _Server(), dimension=60, present=8, absent=20, clip_norm=1.0, noise_multiplier=1.0, seed=0
    )
    for _ in range(3):
        aggregate([np.full(60, 0.1)] * 5, [1.0] * 5)
    return aggregate.transcript()


def _tree_rounds() -> Any:
    """Federated learning with correlated noise, and all that is known of its clients."""
    plan = TreePlan(steps=8, release="prefixes")
    return simulate_federated(
        rounds=8, clients=5, noise_multiplier=1.0, present=8, absent=20, dimension=60, plan=plan
    )


def _opacus(shop: Workshop) -> bytes:
    """A checkpoint that was written after the run, with everything that was watched in it."""
    run = make_run(model=torch.nn.Linear(10, 4))
    canaries = ag.DiracCanaries(present=6, absent=6, tensors=(40, 4), seed=1)
    audit = CanaryAudit(run.optimizer, data_loader=run.loader, canaries=canaries)
    with audit:
        run.train()
    audit.save(shop.folder / "finished.npz")
    return (shop.folder / "finished.npz").read_bytes()


def _verified(content: bytes) -> Any:
    """Audited, verified and put into words."""
    found = load_audit_input(io.BytesIO(content))
    with np.errstate(all="ignore"):
        result = ag.audit(found, claim=CLAIM)
    str(result)
    str(verify(result, found))
    return said(found)


def _against(committed: ag.Transcript) -> Callable[[bytes], Any]:
    def read(content: bytes) -> Any:
        found = ag.AuditResult.from_json(content)
        with np.errstate(all="ignore"):
            str(verify(found, committed))
        return found.to_json()

    return read


def published(content: bytes) -> Any:
    """All that a result becomes before it is given away, but for the page."""
    found = ag.AuditResult.from_json(content)
    # Of fewer canaries than may be told of there is no pack.
    pack = {} if found.private else evidence_pack(found, subjects=_SHIPPED)
    for document in pack.values():
        document.encode("utf-8")
    for text in (str(found), repr(found), found.to_markdown(), found.to_junit()):
        text.encode("utf-8")
    return found.to_json()


def _page(content: bytes) -> Any:
    found = ag.AuditResult.from_json(content)
    render(found).encode("utf-8")
    return found.to_json()


def _replayed() -> bytes:
    found = ag.replay(training(logged="loss"), records(), leave_out=17, steps=2)
    return found.to_json().encode()


def _read_report(content: bytes) -> Any:
    found = ReplayReport.from_json(content)
    str(found).encode("utf-8")
    assert found.findings
    render_replay(found).encode("utf-8")
    return found.to_json()


def _watched(shop: Workshop) -> bytes:
    """What a monitor of a live run wrote."""
    folder = shop.folder / "watched-run"
    canaries = ag.DiracCanaries(present=10, absent=14, dimension=200, seed=3)
    monitor = ag.Monitor(claim=CLAIM, folder=folder)
    recorder = ag.Recorder(canaries, sampling_rate=0.5, noise_multiplier=1.0, monitor=monitor)
    noise = np.random.default_rng(2)
    for _ in range(6):
        released = np.zeros(200)
        canaries.plant(released, recorder.sample(), clip_norm=1.0)
        released += noise.normal(0, 1.0, 200)
        recorder.observe(canaries.project(released), background=0, watch=released[canaries.watch])
    monitor.close()
    return (folder / feed.FEED_NAME).read_bytes()


def _watch(shop: Workshop) -> Callable[[bytes], Any]:
    def read(content: bytes) -> Any:
        shop.path(f"looked-at/{feed.FEED_NAME}", content)
        view = Follower(shop.folder / "looked-at").look()
        picture(view, 80)
        json.dumps(_printable(codec.to_plain(view)), allow_nan=False).encode("utf-8")
        return plain(view.feed)

    return read


def _tables(shop: Workshop) -> list[Subject]:
    """Scores as others write them; nothing protects them, and nothing may bring us down."""
    generator = np.random.default_rng(0)
    member = np.arange(24) < 12
    score = generator.normal(size=24) + 3.0 * member
    lines = [f"{value!r},{int(coin)}" for value, coin in zip(score.tolist(), member, strict=True)]
    rows = [
        {"score": value, "member": bool(coin)}
        for value, coin in zip(score.tolist(), member, strict=True)
    ]
    groups = {
        "present": score[member].tolist(),
        "absent": score[~member].tolist(),
        "steps": 5,
        "sampling_rate": 0.5,
        "noise": "gaussian",
    }
    forms = {
        "table.csv": "\n".join(["score,member", *lines]).encode(),
        "table.tsv": "\n".join(["score,member", *lines]).replace(",", "\t").encode(),
        "groups.json": json.dumps(groups).encode(),
        "rows.json": json.dumps(rows).encode(),
        "plain.npz": _npz(np.savez, score=score, member=member),
        "packed.npz": _npz(np.savez_compressed, in_scores=score[member], out_scores=score[~member]),
    }
    with contextlib.suppress(ImportError):
        import pyarrow
        from pyarrow import parquet

        stream = io.BytesIO()
        parquet.write_table(pyarrow.table({"score": score, "member": member}), stream)
        forms["table.parquet"] = stream.getvalue()
    edits: dict[str, Mutation] = {
        "csv": mutations.forge_lines,
        "tsv": mutations.forge_lines,
        "json": mutations.edit_json,
        "npz": mutations.forge_npz,
        "parquet": mutations.forge_columns,
    }
    return [
        Subject(name, content, _table(shop, name), False, (edits[name.rpartition(".")[2]],))
        for name, content in forms.items()
    ]


def _npz(save: Any, **arrays: Any) -> bytes:
    stream = io.BytesIO()
    save(stream, **arrays)
    return stream.getvalue()


def _table(shop: Workshop, name: str) -> Callable[[bytes], Any]:
    def read(content: bytes) -> Any:
        found = load_audit_input(shop.path(name, content))
        with np.errstate(all="ignore"):
            str(ag.audit(found, claim=CLAIM))
        return said(found)

    return read


def _hook(shop: Workshop) -> Callable[[bytes], Any]:
    command: Any = typer.main.get_command(app)

    def read(content: bytes) -> Any:
        path = shop.path("kept.json", content)
        codes = []
        for more in ((), ("--refuse-private",)):
            found = CliRunner().invoke(command, ["check-results", str(path), *more])
            if found.exit_code not in (0, ExitCode.FAILURE) or "Unexpected" in found.stderr:
                raise AssertionError(f"exit code {found.exit_code}: {found.stderr}")
            codes.append(found.exit_code)
        if codes[0] == ExitCode.FAILURE:
            raise FileFormatError("refused")
        return codes

    return read


def _git(shop: Workshop) -> Callable[[bytes], Any]:
    """The commit of a working folder whose git files are damaged."""
    place = shop.folder / "worktree"
    head = place / ".git" / "HEAD"
    branch = place / ".git" / "refs" / "heads" / "main"
    branch.parent.mkdir(parents=True)
    branch.write_text("a" * 40)

    def read(content: bytes) -> Any:
        head.write_bytes(content)
        here = Path.cwd()
        os.chdir(place)
        try:
            commit = provenance._commit()
        finally:
            os.chdir(here)
        if not commit:
            raise FileFormatError("no commit")
        return commit

    return read
